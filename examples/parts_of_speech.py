"""Probe which layer of a biLM predicts parts of speech best.

    python examples/parts_of_speech.py --train train.conllu --dev dev.conllu --test test.conllu

This repeats table 6 of the paper. The probe is a linear softmax classifier of single tokens. It
reads the frozen representation of the token: one layer, or a learned mix of all layers.
The files are in the format of Universal Dependencies (.conllu or .conllu.xz).
"""

import argparse
import json

import keras
import numpy as np
from parts import open_text

import keras_elmo

COLUMNS = {"universal": 3, "penn": 4}


def read_conllu(path, column, limit=None):
    """Read a file; return its sentences as lists of tokens, and the tags of all tokens."""
    sentences, tags = [[]], []
    with open_text(path) as file:
        for line in file:
            fields = line.rstrip("\r\n").split("\t")
            if fields[0].isdigit():  # skip comments, contractions and empty nodes
                if len(sentences) > (limit or np.inf):
                    break
                sentences[-1].append(fields[1].replace(" ", ""))
                tags.append(fields[column])
            elif not line.strip() and sentences[-1]:
                sentences.append([])
    return [sentence for sentence in sentences[:limit] if sentence], tags


def probe(parts, layer, n_tags, seed, epochs, batch_size, learning_rate):
    """Train a linear probe; return its accuracy on test in the epoch with the best dev accuracy.

    Args:
        parts: dict. For ``train``, ``dev`` and ``test`` a pair: representations, float16,
            ``(tokens, layers, width)``, and tag ids.
        layer: int or None. Layer to read; None mixes all layers.
        n_tags: int. Number of tags.
        seed: int. Seed of the initial weights and of the order.
        epochs: int. Passes over the training part.
        batch_size: int. Tokens per batch.
        learning_rate: float. Learning rate of Adam.
    """
    keras.utils.set_random_seed(seed)
    n_layers, width = parts["train"][0].shape[1:]
    inputs = x = keras.Input((1, n_layers, width))  # sentences of one token
    x = x[:, :, layer] if layer is not None else keras_elmo.ScalarMix()(x)
    outputs = keras.layers.Dense(n_tags)(x[:, 0])
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(learning_rate), loss, metrics=["accuracy"])
    x, y = {}, {}
    for name, (arrays, tags) in parts.items():
        x[name], y[name] = arrays[:, None], tags
    best = -1.0, None
    for _ in range(epochs):
        model.fit(x["train"], y["train"], batch_size, verbose=0)
        dev, test = (model.evaluate(x[n], y[n], 4096, verbose=0)[1] for n in ("dev", "test"))
        if dev > best[0]:
            best = dev, test
    return 100 * best[1]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("train", "dev", "test"):
        parser.add_argument(f"--{name}", required=True, help=".conllu or .conllu.xz file")
    parser.add_argument("--tags", choices=COLUMNS, default="universal")
    parser.add_argument("--preset", default="elmo_small_en", help="name, directory or .zip")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256, help="tokens per batch")
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--limit", type=int, help="largest number of sentences to read from each file"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()

    embedder = keras_elmo.Embedder(arguments.preset)
    parts, names = {}, {}
    for part in ("train", "dev", "test"):
        path, column = getattr(arguments, part), COLUMNS[arguments.tags]
        sentences, tags = read_conllu(path, column, arguments.limit)
        arrays = [array.swapaxes(0, 1).astype("float16") for array in embedder.embed(sentences)]
        numbers = [names.setdefault(tag, len(names)) for tag in tags]
        parts[part] = np.concatenate(arrays), np.array(numbers)
    rows = {f"layer {j}": j for j in range(parts["train"][0].shape[1])} | {"mix": None}
    table = {}
    for row, layer in rows.items():
        settings = arguments.epochs, arguments.batch_size, arguments.learning_rate
        found = [probe(parts, layer, len(names), s, *settings) for s in arguments.seeds]
        mean, deviation = np.mean(found), np.std(found, ddof=len(found) > 1)
        table[row] = {"mean": mean, "deviation": deviation}
        if not arguments.json:
            print(f"{row:<10}{mean:6.2f} +- {deviation:.2f}", flush=True)
    if arguments.json:
        print(json.dumps({"preset": arguments.preset, "accuracy": table}))


if __name__ == "__main__":
    main()
