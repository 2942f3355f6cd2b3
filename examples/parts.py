"""Shared parts of the task models: options, training, scores, and layers of longer texts."""

import argparse
import contextlib
import json
import lzma
import pathlib
import tempfile
import time

import keras
import numpy as np
from cached_layers import MULTIPLE, Batches, StoredLayers

import keras_elmo

# XLA would compile a model again for each width of a batch, which takes TensorFlow minutes.
JIT = "auto" if keras.backend.backend() == "jax" else False


def open_text(path):
    """Open a text file, plain or .xz."""
    return (lzma.open if str(path).endswith(".xz") else open)(path, "rt", encoding="utf-8-sig")


def padded_batches(inputs, targets, lengths, batch_size=32, seed=None, chosen=None):
    """Return the batches of examples that are arrays.

    Args:
        inputs: dict from the name of an input to its examples: arrays of shape ``(tokens, ...)``.
        targets: dict from the name of an output of the model to its examples: numbers, or arrays.
        lengths: list of int. Length of every example.
        batch_size: int. Examples in a batch.
        seed: int or None. Seed for shuffling; None keeps one order.
        chosen: list of int or None. Indices of the examples to batch; None for all.
    """

    def make_batch(indices, random):
        return tuple(
            {name: pad([rows[i] for i in indices], value) for name, rows in x.items()}
            for x, value in ((inputs, 0), (targets, -1))
        )

    chosen = range(len(lengths)) if chosen is None else chosen
    return Batches(make_batch, lengths, chosen, batch_size, seed)


def pad(rows, value=0):
    """Stack arrays, with a value after the shorter ones, to a multiple of ``MULTIPLE`` rows."""
    rows = [np.asarray(row) for row in rows]
    kind = "float32" if rows[0].dtype.kind == "f" else "int32"
    if rows[0].ndim == 0:
        return np.array(rows, kind)
    width = -(-max(map(len, rows)) // MULTIPLE) * MULTIPLE
    padded = np.full((len(rows), width, *rows[0].shape[1:]), value, kind)
    for target, row in zip(padded, rows):
        target[: len(row)] = row
    return padded


def sentences_of(text):
    """Return the sentences of a list of tokens. A sentence ends after ".", "?" or "!"."""
    ends = [n for n, token in enumerate(text[:-1], 1) if token in ".?!"]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)])]


class TextLayers:
    """The layers of texts, from a file in a folder, which the first run writes.

    Args:
        elmo: ElmoLayer. Computes the layers.
        texts: list of lists of str. Tokens of each text.
        folder: path. Folder of the file.
        split: bool. Whether the biLM reads a text sentence by sentence.
    """

    def __init__(self, elmo, texts, folder, split=True):
        self.sentences = [sentences_of(text) if split else [text] for text in texts]
        self.stored = StoredLayers(elmo, (x for some in self.sentences for x in some), folder)
        self.shape = self.stored.shape[1:]

    def __getitem__(self, i):
        return np.concatenate([self.stored.inputs([x])[0] for x in self.sentences[i]])


@contextlib.contextmanager
def layer_folder(cache):
    """Yield the folder of the layers: ``cache``, or a temporary one if it is None."""
    with tempfile.TemporaryDirectory() as temporary:
        yield cache or pathlib.Path(temporary)


def fraction(text):
    """Return a number above 0 and up to 1, for an option."""
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and up to 1. Received: {text}")
    return float(text)


def draw_share(share, seed, *lists):
    """Return a random share of some lists of equal length, in order, that depends on the seed."""
    size = len(lists[0])
    order = np.random.default_rng(seed).permutation(size)
    drawn = sorted(order[: max(1, round(share * size))])
    return [[x[i] for i in drawn] for x in lists]


def train(model, batches, score, settings, save=None, measure="F1"):
    """Train a model, keep the weights of the epoch with the best score, and return facts.

    Args:
        model: Model. The compiled model.
        batches: Batches. Training examples.
        score: function. Returns the score on dev, or an array that begins with it.
        settings: namespace. ``epochs`` is the largest number of epochs, ``patience`` the number
            of epochs without a better score after which training stops; None for all epochs.
        save: function or None. Called after each epoch that is better than all before.
        measure: str. Name of the score, to print.

    Returns:
        Dict of ``dev``, the best score, ``epochs_trained`` and ``seconds_per_epoch``.
    """
    begin, seconds, progress = [], [], [-float("inf")]

    def end(epoch, logs):
        seconds.append(time.perf_counter() - begin[-1])
        dev = float(np.ravel(score())[0])
        # While the score is 0, a lower loss is progress.
        logs.update(dev=dev, progress=dev or -logs["loss"])
        print(f"epoch {epoch + 1}: loss {logs['loss']:.3f}, dev {measure} {dev:.4f}", flush=True)
        progress.append(logs["progress"])
        if save and progress[-1] > max(progress[:-1]):
            save()

    scoring = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: begin.append(time.perf_counter()), on_epoch_end=end
    )
    patience = settings.epochs if settings.patience is None else settings.patience
    best = keras.callbacks.EarlyStopping(
        "progress", mode="max", patience=patience, restore_best_weights=True
    )
    # Batches shuffles.
    model.fit(batches, epochs=settings.epochs, callbacks=[scoring, best], shuffle=False, verbose=0)
    # The first epoch compiles.
    facts = {"epochs_trained": len(seconds), "seconds_per_epoch": round(min(seconds), 1)}
    return {"dev": max(0.0, *progress), **facts}


def accuracy(model, batches, labels):
    """Return the share of examples whose label gets the highest probability."""
    return np.mean([x.argmax() == label for x, label in zip(batches.predict(model), labels)])


def layer_weights(model):
    """Return the layer weights of each ScalarMix of a model, by its name."""
    mixes = [x for x in model.layers if isinstance(x, keras_elmo.ScalarMix)]
    return {mix.name: [round(float(w), 4) for w in mix.layer_weights] for mix in mixes}


def make_parser(text, epochs, patience=5):
    """Return a parser with the options that the scripts share."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--preset", default="elmo_small_en", help="biLM: name, directory or .zip")
    add("--no-elmo", dest="preset", action="store_const", const=None, help="leave ELMo out")
    add("--vectors", type=pathlib.Path, help="text file of word vectors, such as GloVe's")
    add("--cache", type=pathlib.Path, help="folder that keeps the layers for later runs")
    add("--epochs", type=int, default=epochs, help="largest number of epochs")
    stop = "stop after N epochs without a better score on dev"
    add("--patience", type=int, default=patience, metavar="N", help=stop)
    add("--batch-size", type=int, default=32)
    add("--learning-rate", type=float, default=1e-3)
    add("--seed", type=int, default=1)
    add("--scores", type=pathlib.Path, help="JSON file to write")
    return parser


def report(settings, model, dev, test, **facts):
    """Print the scores in percent; write them to --scores, with backend and layer weights."""
    weights = layer_weights(model)
    given = {
        name: value.name if isinstance(value, pathlib.Path) else value
        for name, value in vars(settings).items()
    }
    if settings.scores:
        facts |= {"backend": keras.backend.backend(), "layer_weights": weights, "settings": given}
        content = {"dev": float(dev), "test": float(test), **facts}
        settings.scores.parent.mkdir(parents=True, exist_ok=True)
        settings.scores.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    for name, values in weights.items():
        print(f"layer weights {name}: {values}")
    print(f"dev {100 * dev:.1f} test {100 * test:.1f}")
