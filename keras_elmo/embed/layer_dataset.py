"""Batches of the layer representations in an hdf5 file, or in Parquet files."""

import os
import pathlib
import threading

import keras
import numpy as np

from keras_elmo.embed.parquet import ParquetLayers
from keras_elmo.formats.hdf5 import open_hdf5

_OPENING = threading.Lock()  # threads share the open file


class LayerDataset(keras.utils.PyDataset):
    """Batches of the layer representations in a file, padded, with their mask.

    A task model then trains on layers that were computed once, with a ``ScalarMix`` in
    front, as bilm-tf's third way to use a biLM has it. ``fit``, ``evaluate`` and ``predict``
    take it on every backend.

    Args:
        file: Path of an hdf5 file that ``Embedder.embed_file``, bilm-tf or AllenNLP
            wrote with all layers; or of a Parquet file, or a folder of them, with the
            column ``layers`` that ``keras_elmo.ray`` wrote. Parquet is read in row groups, so
            it is quick in its own order, and slow with ``shuffle`` if it is large.
        labels: One for each sentence: a number, or a list of numbers, one a token,
            padded with 0. None to give inputs only.
        batch_size: Sentences in a batch.
        shuffle: Whether to draw new batches for every epoch.
        seed: Of the shuffling.
        **kwargs: Passed on to ``keras.utils.PyDataset``.

    A batch is a dict of ``layers``, float32 ``(batch, tokens, layers, width)``, and
    ``mask``, bool ``(batch, tokens)``; with labels, the pair of it and their array.
    Batches of your own making, with other inputs beside the layers, come from ``gather``.

    The file is open from the first batch on, until ``close()`` or the end of a ``with``. A
    pickle holds its path only, so that the worker processes of ``fit``, however they are
    started (``workers=2, use_multiprocessing=True``), open it for themselves.

    Raises:
        OSError: If the file cannot be read or is damaged.
        ValueError: If the file does not hold all layers, the labels do not fit it, or
            ``batch_size`` is not 1 or more; from a batch, if the layers of a sentence are not
            finite or not of one shape with the rest.

    Example:

    >>> layers = keras.Input((None, 3, 8), name="layers")
    >>> mask = keras.Input((None,), dtype="bool", name="mask")
    >>> mixed = keras_elmo.ScalarMix()(layers, mask=mask)
    >>> model = keras.Model({"layers": layers, "mask": mask}, mixed)

    Reference:
        Peters et al., 2018, section 3.2, https://arxiv.org/abs/1802.05365
    """

    def __init__(self, file, labels=None, batch_size=32, shuffle=False, seed=0, **kwargs):
        super().__init__(**kwargs)
        if batch_size < 1:
            raise ValueError(
                "LayerDataset expects batch_size to be 1 or more. "
                f"Received: batch_size={batch_size}"
            )
        self._path = pathlib.Path(file)
        self._file = self._process = None
        layers = self._layers()
        count, self._shape = layers.count, layers.shape
        self.close()
        if len(self._shape) != 2:
            raise ValueError(
                "LayerDataset expects a file with all layers, (layers, tokens, width) for each "
                f"line, from 0 on. Received: {self._path}, which holds {layers.contents}"
            )
        if labels is not None and len(labels) != count:
            raise ValueError(
                f"LayerDataset expects a label for each of the {count} sentences of {self._path}. "
                f"Received: {len(labels)} labels"
            )
        self._labels = labels
        # One type for all: a batch's own could cut 0.5 to 0.
        arrays = [np.asarray(label) for label in ([] if labels is None else labels)]
        self._dtype = np.result_type(*(array.dtype for array in arrays if array.size), "int8")
        self._order = np.arange(count)
        self._batch_size = batch_size
        self._random = np.random.default_rng(seed) if shuffle else None
        self.on_epoch_end()

    def __len__(self):
        return -(-len(self._order) // self._batch_size)

    def on_epoch_end(self):
        """Draw the batches of the next epoch."""
        if self._random is not None:
            self._random.shuffle(self._order)

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(f"LayerDataset has batches 0 to {len(self) - 1}. Received: {index}")
        # Keras on TensorFlow takes a width that the first two batches share for that of all,
        # so the second one is a column of padding wider then.
        alike = index == 1 and self._width(self._rows(0)) == self._width(self._rows(1))
        return self._gather(self._rows(index), more=int(alike))

    def _rows(self, index):
        return self._order[index * self._batch_size : (index + 1) * self._batch_size]

    def _width(self, sentences):
        return max(self._layers().tokens(i) for i in sentences)

    def _array(self, sentence):
        """Return the layers of a sentence, (tokens, layers, width), once they are checked."""
        array = self._layers().array(sentence)
        if array is None or array.ndim != 3 or array.shape[1:] != self._shape:
            layers, width = self._shape
            found = "none" if array is None else self._layers().describe(array)
            raise ValueError(
                f"LayerDataset expects floats of shape ({layers}, tokens, {width}) for sentence "
                f"{sentence} of {self._path}. Received: {found}"
            )
        return array

    def _layers(self):
        """Return the open file."""
        with _OPENING:
            if self._process != os.getpid():  # a process that was forked opens its own
                is_parquet = self._path.is_dir() or self._path.suffix == ".parquet"
                self._file = (ParquetLayers if is_parquet else _Hdf5Layers)(self._path)
                self._process = os.getpid()
            return self._file

    def close(self):
        """Close the file; another batch would open it again."""
        if self._process == os.getpid():
            self._file.close()
        self._file = self._process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getstate__(self):
        return {**self.__dict__, "_file": None, "_process": None}

    def gather(self, sentences):
        """Return the batch of the sentences you choose.

        Args:
            sentences: Their indices in the file, one or more, in the order of the rows.

        Returns:
            As the batches of the class.

        Raises:
            ValueError: If there is no index, or one that the file does not have, or what
                is given is a mask or anything else.
        """
        chosen = np.asarray(sentences)
        count = len(self._order)
        are_indices = chosen.dtype.kind in "iu" and chosen.ndim == 1
        if not are_indices or not chosen.size or chosen.min() < 0 or chosen.max() >= count:
            raise ValueError(
                f"LayerDataset.gather expects indices of 0 to {count - 1}, one or more. "
                f"Received: sentences={sentences}"
            )
        return self._gather(chosen)

    def _gather(self, chosen, more=0):
        arrays = [self._array(i) for i in chosen]
        lengths = np.array([len(array) for array in arrays])
        width = lengths.max() + more
        layers = np.zeros((len(arrays), width, *arrays[0].shape[1:]), "float32")
        for row, array in zip(layers, arrays, strict=True):
            row[: len(array)] = array
        inputs = {"layers": layers, "mask": np.arange(width) < lengths[:, None]}
        if self._labels is None:
            return inputs
        return inputs, self._padded_labels(chosen, lengths, width)

    def _padded_labels(self, chosen, lengths, width):
        labels = [self._labels[i] for i in chosen]
        if np.ndim(labels[0]) == 0:
            return np.array(labels, self._dtype)
        padded = np.zeros((len(labels), width), self._dtype)
        for row, label, length, i in zip(padded, labels, lengths, chosen, strict=True):
            if len(label) != length:
                raise ValueError(
                    f"LayerDataset expects {length} labels for sentence {i}, one a token. "
                    f"Received: {len(label)} labels"
                )
            row[:length] = label
        return padded

    def to_tf_dataset(self):
        """Return a ``tf.data.Dataset``; with ``shuffle`` each time through it is another epoch."""
        import tensorflow as tf

        signature = tf.nest.map_structure(
            lambda x: tf.TensorSpec((None, None, *x.shape[2:])[: x.ndim], x.dtype), self[0]
        )

        def epoch():
            yield from (self[i] for i in range(len(self)))
            self.on_epoch_end()

        return tf.data.Dataset.from_generator(epoch, output_signature=signature)


class _Hdf5Layers:
    """The layer representations in an hdf5 file, a dataset a line."""

    def __init__(self, path):
        self._file = open_hdf5(path, kind="Layer file", remedy="Embed the text again")
        names = {name for name in self._file.names() if name.isascii() and name.isdecimal()}
        self.count = len(names)
        shape = self._file.declared("0").shape if "0" in names else ()
        fits = len(shape) == 3 and names == {str(i) for i in range(self.count)}
        self.shape = shape[::2] if fits else ()
        self.contents = f"{self.count} lines of shape {shape}"
        self._read = np.zeros(self.count, "bool")  # the lines read before

    @property
    def is_open(self):
        return self._file.is_open

    def tokens(self, line):
        return self._file.declared(str(line)).shape[1]

    def array(self, line):
        if self._read[line]:  # a line is checked once; that takes longer than to read it
            array = self._file.read_again(str(line))
        else:
            array = self._file.read(str(line), kinds="f")
            self._read[line] = True
        return np.moveaxis(array, 0, 1) if array.ndim == 3 else array

    def describe(self, array):
        shape = np.moveaxis(array, 0, 1).shape if array.ndim == 3 else array.shape
        return f"{array.dtype} of shape {shape}"

    def close(self):
        self._file.close()
