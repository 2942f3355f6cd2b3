"""Batches of similar length, and the stored layers of a frozen biLM, for the task models.

The layers of each text are computed once and written to a file that later runs read.
"""

import hashlib
import io
import random

import keras
import numpy as np
from keras import ops

import keras_elmo

MULTIPLE = 8  # JAX compiles once for each width of a batch, so there are few widths.


class Batches(keras.utils.PyDataset):
    """Batch sentences of similar length, in an order that depends only on the seed.

    Args:
        make_batch: function. Takes the indices of the sentences of a batch, and a random
            generator that depends on the seed, the epoch and the batch, or None without a seed.
            Returns a pair, inputs and targets. Axis 1 of an array is its tokens, padded in inputs
            with 0 and in targets with -1. On JAX, ``Batches`` pads to a multiple of ``MULTIPLE``.
        lengths: list of int. Number of tokens of every sentence.
        chosen: list of int. Indices of the sentences to batch.
        batch_size: int. Sentences in a batch.
        seed: int. Seed for shuffling. None keeps the order of ``chosen`` among sentences of
            equal length.
    """

    def __init__(self, make_batch, lengths, chosen, batch_size, seed=None):
        super().__init__()
        self.make_batch, self.batch_size = make_batch, batch_size
        self.lengths, self.chosen = np.asarray(lengths), np.asarray(chosen)
        self.seed, self.epoch = seed, 0
        self.random = None if seed is None else np.random.default_rng(seed)
        self.on_epoch_end()

    def on_epoch_end(self):
        self.epoch += 1
        order = self.random.permutation(self.chosen) if self.random else self.chosen
        order = order[np.argsort(self.lengths[order], kind="stable")]
        starts = np.arange(0, len(order), self.batch_size)
        starts = self.random.permutation(starts) if self.random else starts
        self.indices = [order[start : start + self.batch_size] for start in starts]

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, number):
        batch = self._batch(number)
        if number != 1 or keras.backend.backend() != "tensorflow":
            return batch
        # If an array has one width in the first two batches, TensorFlow expects this width of all.
        return tuple(_wider(*pair) for pair in zip(batch, self._batch(0), (0, -1)))

    def _batch(self, number):
        # Each batch gets a new generator, because a backend may ask for a batch twice.
        random = self.random and np.random.default_rng([self.seed, self.epoch, number])
        batch = self.make_batch(self.indices[number], random)
        if keras.backend.backend() != "jax":
            return batch
        return tuple(_pad_to_multiple(arrays, value) for arrays, value in zip(batch, (0, -1)))

    def predict(self, model):
        """Return the output of a model for each chosen sentence, in the order of ``chosen``."""
        found = {}
        for number, indices in enumerate(self.indices):
            outputs = model.predict_on_batch(self._batch(number)[0])
            outputs = keras.tree.map_structure(ops.convert_to_numpy, outputs)
            for row, i in enumerate(indices):
                found[i] = keras.tree.map_structure(lambda x, row=row: x[row], outputs)
        return [found[i] for i in self.chosen]


def _pad_to_multiple(arrays, value):
    """Pad arrays to a multiple of ``MULTIPLE`` tokens."""

    def pad(array):
        return array if array.ndim < 2 else _pad(array, -array.shape[1] % MULTIPLE, value)

    return keras.tree.map_structure(pad, arrays)


def _wider(arrays, others, value):
    """Return arrays with one more token where they have as many tokens as other arrays."""

    def widen(array, other):
        is_same = array.ndim > 1 and array.shape[1] == other.shape[1]
        return _pad(array, 1, value) if is_same else array

    return keras.tree.map_structure(widen, arrays, others)


def _pad(array, tokens, value):
    widths = [(0, 0), (0, tokens), *[(0, 0)] * (array.ndim - 2)]
    return np.pad(array, widths, constant_values=value)


class StoredLayers:
    """The layers of sentences, from one file, which the first run writes.

    Args:
        elmo: ElmoLayer. Computes the layers.
        sentences: iterable of sequences of str. All sentences that are needed; equal ones are
            computed once.
        folder: path. Folder of the file.
    """

    def __init__(self, elmo, sentences, folder):
        self.shape = None, elmo.config.n_layers + 1, 2 * elmo.config.projection_dim
        texts = sorted({" ".join(sentence) for sentence in sentences})
        self.rows = {text: row for row, text in enumerate(texts)}
        key = elmo.fingerprint(), elmo.config.digest(), *texts
        digest = hashlib.sha256("\n".join(key).encode()).hexdigest()
        path = folder / f"sentences-{digest[:16]}.hdf5"
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            text, state = io.StringIO("".join(f"{x}\n" for x in texts)), random.getstate()
            keras_elmo.Embedder(elmo).embed_file(text, path, float16=True, resume=True)
            # Keras draws seeds from this state. Later runs, which read the file, start from it.
            random.setstate(state)
        self.dataset = keras_elmo.LayerDataset(path)

    def inputs(self, sentences):
        """Return the layers of some sentences, padded: (sentences, tokens, layers, width)."""
        rows = [self.rows[" ".join(sentence)] for sentence in sentences]
        return self.dataset.gather(rows)["layers"]


def open_elmo(preset, sentences=(), folder=None):
    """Return a biLM as a layer, or with a folder as stored layers of sentences; None for none."""
    elmo = keras_elmo.ElmoLayer.from_preset(preset, save_bilm=False) if preset else None
    return StoredLayers(elmo, sentences, folder) if elmo and folder else elmo


def elmo_input(elmo, sentences):
    """Return what a model reads for ELMo: stored layers, or character ids."""
    if isinstance(elmo, StoredLayers):
        return elmo.inputs(sentences)
    config = elmo.config
    if config.code_points is None:
        tokenize = keras_elmo.CharacterTokenizer(config.max_characters_per_token)
    else:
        known = config.code_points
        tokenize = keras_elmo.CodePointTokenizer(
            known.characters, known.words, config.max_characters_per_token
        )
    return ops.convert_to_numpy(tokenize(sentences))


def representations_of(elmo, inputs, characters=None):
    """Return the layer representations of a model, from ``characters`` or a new input of it."""
    if isinstance(elmo, StoredLayers):
        inputs.append(keras.Input(elmo.shape))
        return inputs[-1]
    if characters is None:
        characters = keras.Input((None, elmo.config.alphabet.row_length), dtype="int32")
        inputs.append(characters)
    elif elmo.config.code_points is not None:
        raise ValueError(
            "Expected a biLM that reads bytes, as the characters of this model. Received: one that "
            "reads code points. Use --cache"
        )
    return elmo(characters)
