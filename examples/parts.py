"""Parts of coreference.py, questions.py, bert_layers.py and proteins.py.

They batch examples of similar length, compute the layers of a frozen biLM once, choose the best
epoch and write the scores.
"""

import argparse
import json
import pathlib
import tempfile
import time

import keras
import numpy as np

import keras_elmo

# XLA would compile a model again for each width of a batch, which takes TensorFlow minutes.
JIT = "auto" if keras.backend.backend() == "jax" else False


class Batches(keras.utils.PyDataset):
    """Batches of examples of similar length, in a new order in every epoch.

    Args:
        inputs: dict from the name of an input to its examples: arrays of shape ``(tokens, ...)``.
        targets: dict from the name of an output of the model to its examples: numbers, or arrays.
        lengths: list of int. Length of every example.
        batch_size: int. Examples in a batch.
        seed: int or None. Seed for shuffling; None keeps one order.
        chosen: list of int or None. Indices of the examples to batch; None for all.
    """

    def __init__(self, inputs, targets, lengths, batch_size=32, seed=None, chosen=None):
        super().__init__()
        self.inputs, self.targets, self.lengths = inputs, targets, lengths
        self.chosen = np.arange(len(lengths)) if chosen is None else np.array(chosen)
        self.batch_size = batch_size
        self.random = None if seed is None else np.random.default_rng(seed)
        self.on_epoch_end()

    def on_epoch_end(self):
        random = self.random
        order = random.permutation(self.chosen) if random else self.chosen
        order = sorted(order, key=lambda i: self.lengths[i])
        starts = range(0, len(order), self.batch_size)
        starts = random.permutation(starts) if random else starts
        self.batches = [order[start : start + self.batch_size] for start in starts]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, number):
        # If the first two batches have equal widths, TensorFlow expects this width of all.
        more = int(number == 1)
        inputs, targets = (
            {name: pad([rows[i] for i in self.batches[number]], more) for name, rows in x.items()}
            for x in (self.inputs, self.targets)
        )
        return inputs, targets


def pad(rows, more=0):
    """Stack arrays, with zeros after the shorter ones. JAX compiles few widths: multiples of 8."""
    rows = [np.asarray(row) for row in rows]
    kind = "float32" if rows[0].dtype.kind == "f" else "int32"
    if rows[0].ndim == 0:
        return np.array(rows, kind)
    width = -(-max(map(len, rows)) // 8) * 8 + more
    padded = np.zeros((len(rows), width, *rows[0].shape[1:]), kind)
    for target, row in zip(padded, rows):
        target[: len(row)] = row
    return padded


def predict(model, batches):
    """Return the outputs of a model, a dict for every example, in the order of the examples."""
    found = {}
    for number, indices in enumerate(batches.batches):
        outputs = model.predict_on_batch(batches[number][0])
        for row, i in enumerate(indices):
            found[i] = {name: values[row] for name, values in outputs.items()}
    return [found[i] for i in batches.chosen]


class FrozenLayers:
    """The layer representations of texts, from files that the biLM writes once.

    The biLM reads a text sentence by sentence if ``split`` is true, and equal sentences once. A
    sentence ends after a full stop, a question mark or an exclamation mark.
    """

    def __init__(self, embedder, texts, file, split=True):
        self.pieces, sentences = [], {}  # the number of each distinct sentence
        for text in texts:
            ends = [n for n, token in enumerate(text[:-1], 1) if split and token in ".?!"]
            spans = zip([0, *ends], [*ends, len(text)])
            pieces = [tuple(text[start:end]) for start, end in spans]
            self.pieces.append([sentences.setdefault(x, len(sentences)) for x in pieces])
        file.parent.mkdir(parents=True, exist_ok=True)
        self.dataset = keras_elmo.LayerDataset.from_sentences(embedder, list(sentences), file=file)
        self.shape = self.dataset.gather([0])["layers"].shape[2:]

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, i):
        found = [self.dataset.gather([n])["layers"][0] for n in self.pieces[i]]
        return np.concatenate(found)


def train(model, batches, score, settings):
    """Train a model, keep the weights of the epoch with the best score, and return its facts."""
    seconds = []

    def end(epoch, logs):
        seconds.append(time.perf_counter() - begin[-1])
        logs["dev"] = np.ravel(score())[0]  # the first of several measures

    begin = []
    scoring = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: begin.append(time.perf_counter()), on_epoch_end=end
    )
    best = keras.callbacks.EarlyStopping(
        "dev", mode="max", patience=settings.patience, restore_best_weights=True
    )
    model.fit(batches, epochs=settings.epochs, callbacks=[scoring, best], verbose=2)
    if best.best_weights is not None:
        model.set_weights(best.best_weights)
    # The first epoch compiles.
    return {"epochs_trained": len(seconds), "seconds_per_epoch": round(min(seconds), 1)}


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
    add("--preset", dest="elmo", default="elmo_small_en", help="biLM: name, directory or .zip")
    add("--no-elmo", dest="elmo", action="store_const", const="none", help="leave ELMo out")
    add("--vectors", type=pathlib.Path, help="word vectors in the text format of word2vec")
    add("--cache", type=pathlib.Path, help="folder that keeps the layers for later runs")
    add("--epochs", type=int, default=epochs, help="largest number of epochs")
    add("--patience", type=int, default=patience, help="epochs without a better score on dev")
    add("--batch-size", type=int, default=32)
    add("--learning-rate", type=float, default=1e-3)
    add("--seed", type=int, default=1)
    add("--scores", type=pathlib.Path, help="JSON file to write")
    parser.set_defaults(folder=tempfile.TemporaryDirectory)
    return parser


def report(settings, dev, test, **facts):
    """Write the scores to --scores, and print them, in percent."""
    given = {name: value for name, value in vars(settings).items() if name != "folder"}
    for name, value in given.items():
        given[name] = value.name if isinstance(value, pathlib.Path) else value
    if settings.scores:
        content = {"dev": dev, "test": test, **facts, "settings": given}
        settings.scores.parent.mkdir(parents=True, exist_ok=True)
        settings.scores.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    print(f"dev {100 * dev:.1f} test {100 * test:.1f}")
