"""Shared parts of the task models: batches of similar length, and layers of a frozen biLM.

The layers of each text are computed once and written to a file that later runs read.
"""

import hashlib
import io
import json

import keras
import numpy as np
from keras import layers

import keras_elmo

LAYERS = "all", "top", "token"  # "token" is layer 0, without context.
_ONE_LAYER = {"top": -1, "token": 0}


class Batches(keras.utils.PyDataset):
    """Batch sentences of similar length, in an order that depends only on the seed.

    Args:
        make_batch: function. Takes the indices of the sentences of a batch, and a random
            generator that depends on the seed, the epoch and the batch, or None without a seed.
        lengths: list of int. Number of tokens of every sentence.
        chosen: list of int. Indices of the sentences to batch.
        batch_size: int. Sentences in a batch.
        seed: int. Seed for shuffling. None keeps the order of ``chosen`` among sentences of
            equal length.
        passes: int. Passes over the sentences in an epoch.
    """

    def __init__(self, make_batch, lengths, chosen, batch_size, seed=None, passes=1):
        super().__init__()
        self.make_batch, self.batch_size, self.passes = make_batch, batch_size, passes
        self.lengths, self.chosen = np.asarray(lengths), np.asarray(chosen)
        self.seed, self.epoch = seed, 0
        self.random = None if seed is None else np.random.default_rng(seed)
        self.on_epoch_end()

    def on_epoch_end(self):
        self.epoch += 1
        self.indices = [batch for _ in range(self.passes) for batch in self._one_pass()]
        # If the first two batches have equal widths, TensorFlow expects this width of all.
        widths = [self.lengths[batch].max() for batch in self.indices]
        other = next((n for n, width in enumerate(widths) if width != widths[0]), 0)
        if other:
            self.indices[1], self.indices[other] = self.indices[other], self.indices[1]

    def _one_pass(self):
        order = self.random.permutation(self.chosen) if self.random else self.chosen
        order = order[np.argsort(self.lengths[order], kind="stable")]
        starts = np.arange(0, len(order), self.batch_size)
        starts = self.random.permutation(starts) if self.random else starts
        return [order[start : start + self.batch_size] for start in starts]

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, number):
        # Each batch gets a new generator, because a backend may ask for a batch twice.
        random = self.random and np.random.default_rng([self.seed, self.epoch, number])
        return self.make_batch(self.indices[number], random)


def passes_per_epoch(share):
    """Return the passes over the data in an epoch: more for a small share, to train it enough.

    A hundredth of the data has ten passes, so an epoch has a tenth of the steps.

    Raises:
        ValueError: If the share is not above 0 and up to 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"--share expects a number above 0 and up to 1. Received: {share}")
    return max(1, round(share**-0.5))


def layer_files(elmo, texts, folder):
    """Return the layers of each text from a file, which the first run writes.

    Args:
        elmo: ``ElmoLayer``. Computes the layers.
        texts: dict from str to list of str. Maps the name of a text to its sentences, with
            spaces between the tokens.
        folder: path. Folder of the files.

    Returns:
        Dict from the name of a text to its ``LayerDataset``.
    """
    embedder = keras_elmo.Embedder(elmo)
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, sentences in texts.items():
        text = "\n".join(sentences)
        key = hashlib.sha256(f"{elmo.fingerprint()}\n{text}".encode()).hexdigest()
        path = folder / f"{name}-{key[:16]}.hdf5"
        if not path.exists():
            embedder.embed_file(io.StringIO(text), path, float16=True, resume=True)
        files[name] = keras_elmo.LayerDataset(path)
    return files


class StoredLayers:
    """Gives the layers of sentences from one file, which the first run writes.

    Args:
        preset: str. The biLM: a name, a directory or a .zip.
        sentences: iterable of sequences of str. All sentences that are needed; equal ones are
            computed once.
        folder: path. Folder of the file.
    """

    def __init__(self, preset, sentences, folder):
        elmo = keras_elmo.ElmoLayer.from_preset(preset)
        self.shape = None, elmo.config.n_layers + 1, 2 * elmo.config.projection_dim
        texts = sorted({" ".join(sentence) for sentence in sentences})
        self.rows = {text: row for row, text in enumerate(texts)}
        self.dataset = layer_files(elmo, {"sentences": texts}, folder)["sentences"]

    def inputs(self, sentences):
        """Return the model's input of some sentences: (sentences, tokens, layers, width)."""
        rows = [self.rows[" ".join(sentence)] for sentence in sentences]
        return self.dataset.gather(rows)["layers"]


def open_elmo(preset, sentences, folder=None):
    """Return the biLM as a layer, or with a folder as stored layers of the sentences."""
    if folder:
        return StoredLayers(preset, sentences, folder)
    return keras_elmo.ElmoLayer.from_preset(preset)


def representations_of(elmo, characters, inputs):
    """Return the layer representations of a model; stored ones become one more of its inputs."""
    if isinstance(elmo, StoredLayers):
        inputs.append(keras.Input(elmo.shape))
        return inputs[-1]
    return elmo(characters)


def write_scores(path, score, model):
    """Write the score on test, and the layer weights of the mixes in a model, as JSON."""
    mixes = [layer for layer in model.layers if isinstance(layer, keras_elmo.ScalarMix)]
    weights = {mix.name: mix.layer_weights.tolist() for mix in mixes}
    path.write_text(json.dumps({"test": score, "layer_weights": weights}), "utf-8")


def elmo_places(settings, representations, mask):
    """Return a function that concatenates ELMo to x at the chosen places, and a dict of mixes.

    Args:
        settings: namespace. ``elmo`` is the place, ``layers`` one of ``LAYERS``, ``l2`` the
            lambda of the mix.
        representations: tensor. Layer representations of the biLM, of shape
            ``(batch, tokens, layers, width)``, or None.
        mask: bool tensor. Shape ``(batch, tokens)``.

    Returns:
        A function of x, of shape ``(batch, tokens, ...)``, the place ``"input"`` or
        ``"output"``, and the dropout on ELMo. A dict from place to ``ScalarMix``, which the
        function fills.
    """
    mixes = {}

    def with_elmo(x, place, dropout=0.5):
        if settings.elmo not in (place, "both"):
            return x
        if settings.layers in _ONE_LAYER:  # One layer needs no mix: the next layer can scale it.
            layer = representations[:, :, _ONE_LAYER[settings.layers]]
            return layers.Concatenate()([x, layers.Dropout(dropout)(layer)])
        mix = keras_elmo.ScalarMix(dropout=dropout, l2=settings.l2, name=f"mix_at_{place}")
        mixes[place] = mix
        return layers.Concatenate()([x, mixes[place](representations, mask=mask)])

    return with_elmo, mixes
