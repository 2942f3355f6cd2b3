"""Time an epoch of a classifier: ElmoLayer inside the model, and LayerDataset.from_sentences.

    python benchmarks/epoch.py --text sentences.txt [--preset elmo_small_en] [--sentences 600]

--text has one tokenised sentence per line. The labels are random. Prints wall seconds; each case
runs one epoch first. "task model alone" reads random vectors, as wide as the mixed layers.
"""

import argparse
import pathlib
import tempfile
import time

import keras
import numpy as np
from keras import layers

import keras_elmo
from keras_elmo.text_input import read_sentences


def task_model(x, mask=None):
    """Return the scores of a biLSTM classifier."""
    return layers.Dense(5)(layers.Bidirectional(layers.LSTM(128))(x, mask=mask))


def epoch(model, *data, **settings):
    """Return the seconds of the second epoch."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    model.fit(*data, verbose=0, **settings)
    start = time.perf_counter()
    model.fit(*data, verbose=0, **settings)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--preset", default="elmo_small_en")
    parser.add_argument("--sentences", type=int, default=600)
    arguments = parser.parse_args()
    sentences = [s[:60] for s in read_sentences(arguments.text)[: arguments.sentences]]
    labels = np.random.default_rng(0).integers(0, 5, len(sentences))
    seconds = {}

    ids = np.array(keras_elmo.CharacterTokenizer()(sentences))
    inputs = keras.Input((None, 50), dtype="int32")
    mixed = keras_elmo.ScalarMix()(keras_elmo.ElmoLayer.from_preset(arguments.preset)(inputs))
    inside = keras.Model(inputs, task_model(mixed))
    seconds["ElmoLayer inside the model"] = epoch(inside, ids, labels)

    embedder = keras_elmo.Embedder(arguments.preset)
    width = 2 * embedder.config.projection_dim
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        file = f"{folder}/train.hdf5"
        dataset = keras_elmo.LayerDataset.from_sentences(embedder, sentences, labels, file=file)
        seconds["from_sentences, once"] = time.perf_counter() - start
        stored = keras.Input((None, embedder.config.n_layers + 1, width), name="layers")
        mask = keras.Input((None,), dtype="bool", name="mask")
        model = keras.Model(
            {"layers": stored, "mask": mask},
            task_model(keras_elmo.ScalarMix()(stored, mask=mask), mask),
        )
        with dataset:
            seconds["LayerDataset"] = epoch(model, dataset)

    vectors = keras.Input((None, width))
    random = np.random.default_rng(0).normal(size=(*ids.shape[:2], width)).astype("float32")
    alone = keras.Model(vectors, task_model(vectors))
    seconds["task model alone"] = epoch(alone, random, labels)
    for name, value in seconds.items():
        print(f"| {name} | {value:.1f} |")


if __name__ == "__main__":
    main()
