"""Batches of the layer representations in an hdf5 file, or in Parquet files."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np

from keras_elmo.embed.parquet import ParquetLayers
from keras_elmo.formats.hdf5 import open_hdf5
from keras_elmo.utils.checks import check_whole

_OPENING = threading.Lock()  # Threads share the open file.


class LayerDataset(keras.utils.PyDataset):
    r"""Batches of the layer representations in a file, padded, with their mask.

    A task model trains on layers that were computed once, with a ``ScalarMix`` as its first
    layer. This is the third way to use a biLM in bilm-tf. ``fit``, ``evaluate`` and ``predict``
    accept the dataset on every backend.

    A batch is a dict of ``layers``, float32, shape ``(batch, tokens, layers, width)``, and
    ``mask``, bool, shape ``(batch, tokens)``. With labels it is a pair of this dict and the
    array of labels. ``gather`` makes a batch of the sentences you choose.

    The dataset opens the file at the first batch. ``close()`` or the end of a ``with`` block
    closes it. A pickle contains only the path: with ``workers=2, use_multiprocessing=True``
    every worker process opens the file for itself.

    Args:
        file: Path. An hdf5 file with all layers, written by ``Embedder.embed_file``, bilm-tf or
            AllenNLP; or a Parquet file, or a folder of them, with the column ``layers`` that
            ``keras_elmo.ray`` writes. Parquet is read in row groups: fast in file order, slow
            for a large folder with ``shuffle``.
        labels: Sequence or None. One label for each sentence: a number, or a list of numbers,
            one a token, padded with 0. None for inputs without labels.
        batch_size: int. Sentences in a batch.
        shuffle: bool. Whether to draw new batches in every epoch.
        seed: int. Seed for shuffling.
        **kwargs: Arguments of ``keras.utils.PyDataset``.

    Raises:
        ImportError: If the file is Parquet and pyarrow is not installed.
        OSError: If the file cannot be read or is damaged.
        ValueError: If the file does not contain all layers, if the labels do not match it, or
            if ``batch_size`` is less than 1. A batch raises it if the layers of a sentence are
            not finite or have another shape.

    Example:

    >>> import io
    >>> text = io.StringIO("One sentence .\nTwo")
    >>> embedder = keras_elmo.Embedder("elmo_mini_en")
    >>> _ = embedder.embed_file(text, "layers.hdf5", progress=False)
    >>> with LayerDataset("layers.hdf5", labels=[1, 0]) as dataset:
    ...     inputs, labels = dataset[0]
    >>> inputs["layers"].shape, inputs["mask"].shape, labels.shape
    ((2, 3, 3, 256), (2, 3), (2,))

    Reference:
        Peters et al., 2018, section 3.2, https://arxiv.org/abs/1802.05365
    """

    def __init__(
        self,
        file: str | os.PathLike,
        labels: Sequence | np.ndarray | None = None,
        batch_size: int = 32,
        shuffle: bool = False,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._batch_size = check_whole("LayerDataset", "batch_size", batch_size)
        self._path = Path(file)
        self._file: ParquetLayers | _Hdf5Layers | None = None
        self._process: int | None = None
        layers = self._open()
        count, self._shape = layers.count, layers.shape
        self.close()
        if len(self._shape) != 2:
            raise ValueError(
                "LayerDataset expects a file with all layers, shape (layers, tokens, width) for "
                f"each line from 0 on. Received: {self._path} with {layers.contents}"
            )
        if labels is not None and len(labels) != count:
            raise ValueError(
                f"LayerDataset expects a label for each of the {count} sentences of {self._path}. "
                f"Received: {len(labels)} labels"
            )
        self._labels = labels
        # One dtype for all batches: the dtype of a single batch could cut 0.5 to 0.
        arrays = [np.asarray(label) for label in ([] if labels is None else labels)]
        self._dtype = np.result_type(*(array.dtype for array in arrays if array.size), "int8")
        self._order = np.arange(count)
        self._random = np.random.default_rng(seed) if shuffle else None
        self.on_epoch_end()

    def __len__(self) -> int:
        return -(-len(self._order) // self._batch_size)

    def on_epoch_end(self) -> None:
        """Draw the batches of the next epoch."""
        if self._random is not None:
            self._random.shuffle(self._order)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"LayerDataset has batches 0 to {len(self) - 1}. Received: {index}")
        # Keras on TensorFlow assumes that all batches have the width that the first two share.
        # Give the second batch one more column of padding in that case.
        is_same = index == 1 and self._width(self._rows(0)) == self._width(self._rows(1))
        return self._gather(self._rows(index), more=int(is_same))

    def _rows(self, index: int) -> np.ndarray:
        return self._order[index * self._batch_size : (index + 1) * self._batch_size]

    def _width(self, sentences: np.ndarray) -> int:
        return max(self._open().tokens(i) for i in sentences)

    def _array(self, sentence: int) -> np.ndarray:
        """Return the layers of a sentence, (tokens, layers, width); check their shape."""
        array = self._open().array(sentence)
        if array is None or array.ndim != 3 or array.shape[::2] != self._shape:
            layers, width = self._shape
            found = "none" if array is None else f"{array.dtype} of shape {array.shape}"
            raise ValueError(
                f"LayerDataset expects floats of shape ({layers}, tokens, {width}) for sentence "
                f"{sentence} of {self._path}. Received: {found}"
            )
        return np.moveaxis(array, 0, 1)

    def _open(self) -> "ParquetLayers | _Hdf5Layers":
        """Return the open file."""
        with _OPENING:
            if self._file is None or self._process != os.getpid():  # A forked process opens it.
                is_parquet = self._path.is_dir() or self._path.suffix == ".parquet"
                self._file = (ParquetLayers if is_parquet else _Hdf5Layers)(self._path)
                self._process = os.getpid()
            return self._file

    def close(self) -> None:
        """Close the file; the next batch opens it again."""
        if self._file is not None and self._process == os.getpid():
            self._file.close()
        self._file = self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_file": None, "_process": None}

    def gather(self, sentences: Sequence[int] | np.ndarray) -> Any:
        """Return the batch of the sentences you choose.

        Args:
            sentences: Sequence of int. Indices of sentences in the file, one or more, in the
                order of the rows.

        Returns:
            A batch, as described for the class.

        Raises:
            ValueError: If there is no index, if the file has no such sentence, or if the
                argument is not a list of indices.
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

    def _gather(self, chosen: np.ndarray, more: int = 0) -> Any:
        arrays = [self._array(i) for i in chosen]
        lengths = np.array([len(array) for array in arrays])
        width = lengths.max() + more
        layers = np.zeros((len(arrays), width, *self._shape), "float32")
        for row, array in zip(layers, arrays, strict=True):
            row[: len(array)] = array
        inputs = {"layers": layers, "mask": np.arange(width) < lengths[:, None]}
        if self._labels is None:
            return inputs
        labels = [self._labels[i] for i in chosen]
        if np.ndim(labels[0]) == 0:
            return inputs, np.array(labels, self._dtype)
        padded = np.zeros((len(labels), width), self._dtype)
        for row, label, length, i in zip(padded, labels, lengths, chosen, strict=True):
            if len(label) != length:
                raise ValueError(
                    f"LayerDataset expects {length} labels for sentence {i}, one a token. "
                    f"Received: {len(label)} labels"
                )
            row[:length] = label
        return inputs, padded

    def to_tf_dataset(self) -> Any:
        """Return a ``tf.data.Dataset``; with ``shuffle`` every pass is a new epoch."""
        import tensorflow as tf

        signature = tf.nest.map_structure(
            lambda x: tf.TensorSpec((None, None, *x.shape[2:])[: x.ndim], x.dtype), self[0]
        )

        def epoch() -> Any:
            yield from (self[i] for i in range(len(self)))
            self.on_epoch_end()

        return tf.data.Dataset.from_generator(epoch, output_signature=signature)


class _Hdf5Layers:
    """The layer representations in an hdf5 file, one dataset a line; as ``ParquetLayers``."""

    def __init__(self, path: Path) -> None:
        self._file = open_hdf5(path, kind="Layer file", remedy="Embed the text again")
        names = {name for name in self._file.names() if name.isascii() and name.isdecimal()}
        self.count = len(names)
        shape = self._file.declared("0").shape if "0" in names else ()
        fits = len(shape) == 3 and names == {str(i) for i in range(self.count)}
        self.shape = shape[::2] if fits else ()
        self.contents = f"{self.count} lines of shape {shape}"
        self._is_checked = np.zeros(self.count, "bool")

    @property
    def is_open(self) -> bool:
        return self._file.is_open

    def tokens(self, line: int) -> int:
        return self._file.declared(str(line)).shape[1]

    def array(self, line: int) -> np.ndarray:
        if self._is_checked[line]:  # Checking takes longer than reading: do it once.
            return self._file.read_again(str(line))
        array = self._file.read(str(line), kinds="f")
        self._is_checked[line] = True
        return array

    def close(self) -> None:
        self._file.close()
