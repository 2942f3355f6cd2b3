"""Batches of the layer representations in an hdf5 file."""

import json
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

import keras
import numpy as np

from keras_elmo.formats.hdf5 import Hdf5Reader
from keras_elmo.layer_choice import LayerChoice, Layers
from keras_elmo.tokenizers.token_lists import rows_of, split_tokens
from keras_elmo.utils.checks import check_whole, invalid, shorten
from keras_elmo.utils.files import PathLike, local_path

# The tokens of a sentence, or None if a file does not store them.
Sentence: TypeAlias = list[str] | None

_OPENING = threading.Lock()  # Threads share the open file.
_CHECKED_NAMES = 20
# Datasets with the text of the lines: ours, and AllenNLP's.
_LINES, _INDEX_OF_LINES = "sentences", "sentence_to_index"


class LayerDataset(keras.utils.PyDataset):
    r"""Batches of the layer representations in a file, padded, with their mask.

    A task model trains on layers that were computed once, with a ``ScalarMix`` as its first
    layer. This is the third way to use a biLM in bilm-tf. ``fit``, ``evaluate`` and ``predict``
    accept the dataset on every backend.

    A batch is a dict of ``layers``, float32, shape ``(batch, tokens, layers, width)``, and
    ``mask``, bool, shape ``(batch, tokens)``. With labels it is a pair of this dict and the
    array of labels; with weights it is a triple. ``gather`` makes a batch of the sentences you
    choose.

    For ``predict``, use ``shuffle=False``: the results have the order of the batches. If the model
    has an output for each token, also give ``length``: Keras cannot join batches of several
    lengths on JAX and PyTorch, and returns a ragged tensor on TensorFlow.

    The dataset opens the file at the first batch. ``close()`` or the end of a ``with`` block
    closes it. A pickle contains only the path: with ``workers=2, use_multiprocessing=True``
    every worker process opens the file for itself.

    Args:
        file: Path. An hdf5 file written by ``Embedder.embed_file``, bilm-tf, AllenNLP or
            ELMoForManyLangs. A file with one layer gives ``layers`` 1.
        labels: Sequence, pandas or Arrow column, or None. One label for each sentence, in the
            order of ``sentences``: a number; or a list with an entry for each token, a number or
            a one-hot list, padded with 0. The rows of a NumPy array of shape ``(sentences,
            classes)`` are one-hot labels of sentences. None for inputs without labels.
        batch_size: int. Sentences in a batch.
        shuffle: bool. Whether to draw new batches in every epoch.
        seed: int. Seed for shuffling.
        layers: str, int or list of float. The layers of the file to return, as in
            ``Embedder.embed``. A single layer or a weighted sum gives ``layers`` 1.
        sample_weight: Sequence or None. One weight for each sentence, or a list with one for
            each token; in the form of ``labels``.
        length: int or None. Tokens of every batch. None pads each batch to its longest sentence.
        **kwargs: Arguments of ``keras.utils.PyDataset``.

    Attributes:
        sentences: list or None. The tokens of each sentence, in the order of the dataset. If the
            names in the file are sentences, that order is alphabetical. None if the file does
            not store its sentences; None in the list for a line that AllenNLP does not store.

    Raises:
        OSError: If the file cannot be read or is damaged.
        ValueError: If the file contains something else, if the labels do not match it, or if
            an argument is invalid. A batch raises it if the layers of a sentence are not finite
            or have another shape, or if a sentence is longer than ``length``.

    Examples:
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
        file: PathLike,
        labels: Sequence | np.ndarray | None = None,
        batch_size: int = 32,
        shuffle: bool = False,
        seed: int = 0,
        *,
        layers: Layers = "all",
        sample_weight: Sequence | np.ndarray | None = None,
        length: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._batch_size = check_whole("LayerDataset", "batch_size", batch_size)
        self._length = None if length is None else check_whole("LayerDataset", "length", length)
        self._path = local_path(file)
        self._file: _Hdf5Layers | None = None
        self._process: int | None = None
        opened = self._open()
        self._count, self._shape = opened.count, opened.shape
        self.close()
        self._choice = LayerChoice.of(layers, self._shape[0])
        if sample_weight is not None and labels is None:
            raise invalid("LayerDataset expects sample_weight with labels", "no labels")
        columns = {"labels": labels, "sample_weight": sample_weight}
        self._targets = [
            _Targets(name, column, self._count)
            for name, column in columns.items()
            if column is not None
        ]
        self._random = np.random.default_rng(seed) if shuffle else None
        self._order = self._draw()
        self._read = 0  # batches since then

    @classmethod
    def from_sentences(
        cls,
        embedder: Any,
        sentences: Iterable[Sequence[str]],
        labels: Sequence | np.ndarray | None = None,
        *,
        file: PathLike,
        layers: Layers = "all",
        float16: bool = True,
        progress: bool = True,
        **kwargs: Any,
    ) -> Self:
        """Embed sentences into a file, unless it contains them, and return the dataset.

        The frozen biLM reads each sentence once. Later epochs read the file, and so do later
        programs with the same sentences and the same biLM.

        Args:
            embedder: Embedder. It computes the layers.
            sentences: Iterable of lists of str. The tokens of each sentence.
            labels: Sequence or None. As in ``LayerDataset``.
            file: str or path. The hdf5 file to write, or to read if it exists.
            layers: str, int or list of float. The layers to store, as in ``Embedder.embed``.
            float16: bool. Whether to store float16, half the size.
            progress: bool. Whether to show a progress bar on stderr.
            **kwargs: Arguments of ``LayerDataset``.

        Raises:
            OSError: If the file cannot be written.
            ValueError: If the file exists and was made from other sentences or another biLM; if
                a sentence is not a list of tokens; if a token is empty or contains white space;
                if ``embedder`` is not an ``Embedder``; errors of ``LayerDataset``.

        Examples:
            >>> embedder = keras_elmo.Embedder("elmo_mini_en")
            >>> sentences = [["Good", "."], ["Bad", "."]]
            >>> LayerDataset.from_sentences(embedder, sentences, [1, 0], file="train.hdf5")[0][1]
            array([1, 0])
        """
        if not hasattr(embedder, "embed_file"):
            raise invalid(
                "LayerDataset.from_sentences expects an Embedder",
                f"embedder={shorten(embedder)}",
                "Pass Embedder(preset)",
            )
        settings = {"layers": layers, "float16": float16, "progress": progress}
        embedder.embed_file(rows_of(sentences), file, resume=True, **settings)
        return cls(file, labels, **kwargs)

    def __len__(self) -> int:
        return -(-self._count // self._batch_size)

    def _draw(self) -> np.ndarray:
        """Return a new order of the sentences; with ``shuffle`` a random one."""
        if self._random is None:
            return np.arange(self._count)
        return self._random.permutation(self._count)

    def on_epoch_end(self) -> None:
        """Draw the batches of the next epoch.

        With ``steps_per_epoch``, Keras calls this also in the middle of a pass. The order stays
        until as many batches were read as a pass has, so that passes are complete. Keras may read
        ahead in a thread: an order is a new array, which never changes.
        """
        # Workers begin anew with every epoch, and may read in other processes.
        if self.workers > 1 or self.use_multiprocessing or self._read >= len(self):
            self._order, self._read = self._draw(), 0

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"LayerDataset has batches 0 to {len(self) - 1}. Received: {index}")
        self._read += 1
        order, more = self._order, 0
        if index == 1 and keras.backend.backend() == "tensorflow":
            # Keras assumes that all batches have the width that the first two share. Give the
            # second batch one more column of padding in that case.
            first, second = (
                max(len(self._array(i)) for i in self._rows(order, batch)) for batch in (0, 1)
            )
            more = int(first == second)
        return self._gather(self._rows(order, index), more)

    def _rows(self, order: np.ndarray, index: int) -> np.ndarray:
        return order[index * self._batch_size : (index + 1) * self._batch_size]

    def _array(self, sentence: int) -> np.ndarray:
        """Return the chosen layers of a sentence, (tokens, layers, width); check their shape."""
        array = self._open().array(sentence)
        layers, width = self._shape
        if _layers_and_width(array.shape) != self._shape:
            raise invalid(
                f"LayerDataset expects floats of shape ({layers}, tokens, {width}) for sentence "
                f"{sentence} of {self._path}",
                f"{array.dtype} of shape {array.shape}",
            )
        array = array.reshape(layers, array.shape[-2], width)
        if self._choice.weights is not None:
            chosen = [array[layer].astype("float32") for layer in self._choice.layers]
            array = self._choice.combine(chosen)[None]
        return np.moveaxis(array, 0, 1)

    @property
    def sentences(self) -> list[Sentence] | None:
        """The tokens of each sentence, or None if the file does not store its sentences."""
        return self._open().sentences()

    def _open(self) -> "_Hdf5Layers":
        """Return the open file."""
        with _OPENING:
            if self._file is None or self._process != os.getpid():  # A forked process opens it.
                self._file, self._process = _Hdf5Layers(self._path), os.getpid()
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
        are_indices = chosen.dtype.kind in "iu" and chosen.ndim == 1
        if not (are_indices and chosen.size and 0 <= chosen.min() <= chosen.max() < self._count):
            raise invalid(
                f"LayerDataset.gather expects indices of 0 to {self._count - 1}, one or more",
                f"sentences={sentences}",
            )
        return self._gather(chosen)

    def _gather(self, chosen: np.ndarray, more: int = 0) -> Any:
        arrays = [self._array(i) for i in chosen]
        lengths = np.array([len(array) for array in arrays])
        width = self._length or lengths.max() + more
        if lengths.max() > width:
            raise invalid(
                f"LayerDataset expects sentences of at most length={width} tokens",
                f"{lengths.max()} in sentence {chosen[lengths.argmax()]}",
            )
        layers = np.zeros((len(arrays), width, *arrays[0].shape[1:]), "float32")
        for row, array in zip(layers, arrays, strict=True):
            row[: len(array)] = array
        inputs = {"layers": layers, "mask": np.arange(width) < lengths[:, None]}
        if not self._targets:
            return inputs
        return inputs, *(targets.batch(chosen, lengths, width) for targets in self._targets)


class _Targets:
    """Labels or weights: for each sentence a number, a vector, or a list with one for each token.

    Args:
        name: str. Name of the argument, for errors.
        column: Sequence, or column of a table.
        count: int. Number of sentences.
    """

    def __init__(self, name: str, column: Any, count: int) -> None:
        # A pandas column would be read by its index.
        values = column if isinstance(column, str | bytes) else rows_of(column)
        if not isinstance(values, list):
            raise invalid(
                f"LayerDataset expects {name} to be a list, an array or one column of a table",
                type(values).__name__,
            )
        if len(values) != count:
            raise invalid(
                f"LayerDataset expects {name} for each of the {count} sentences of the file",
                f"{len(values)} {name}",
            )
        try:
            arrays = [np.asarray(value) for value in values]
        except ValueError:  # lists of several lengths inside a list
            arrays = [np.array(values, object)]
        # One dtype for all batches: the dtype of a single batch could cut 0.5 to 0.
        self._dtype = np.result_type(*{array.dtype for array in arrays if array.size}, "int8")
        shapes = {array.shape[1:] if array.ndim else None for array in arrays if array.size}
        if self._dtype.kind not in "biuf" or len(shapes) > 1:
            raise invalid(
                f"LayerDataset expects {name} to be numbers, or all of them lists of numbers",
                shorten(values),
            )
        self._arrays = arrays
        self._inner = next(iter(shapes), None)  # the shape of an entry; None for one a sentence
        if isinstance(column, np.ndarray) and column.ndim == 2:
            self._inner = None

    def batch(self, chosen: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
        """Return the targets of some sentences with these numbers of tokens, padded to a width."""
        arrays = [self._arrays[i] for i in chosen]
        if self._inner is None:
            return np.array(arrays, self._dtype)
        padded = np.zeros((len(arrays), width, *self._inner), self._dtype)
        for row, array, length, i in zip(padded, arrays, lengths, chosen, strict=True):
            if len(array) != length:
                raise invalid(
                    f"LayerDataset expects one number as the label of sentence {i}, or a list of "
                    f"{length} numbers, one a token",
                    f"a list of {len(array)}",
                )
            if length:
                row[:length] = array
        return padded


class _Hdf5Layers:
    """The layer representations in an hdf5 file, one dataset a sentence.

    Datasets are named by the number of the line, or by the sentence. AllenNLP joins tokens with
    spaces, ELMoForManyLangs with tabs.
    """

    def __init__(self, path: Path) -> None:
        self._file = Hdf5Reader(path, kind="Layer file", remedy="Embed the text again")
        texts = {name for name in (_LINES, _INDEX_OF_LINES) if not self._is_sentence(name)}
        names = sorted(set(map(str, self._file.names())) - texts)  # bytes if not in UTF-8
        numbers = {name for name in names if name.isascii() and name.isdecimal()}
        self._names: list[str] | range = range(len(numbers))
        if not numbers or any(self._is_sentence(n) for n in names if n not in numbers):
            self._names = [name for name in self._file.walk() if name not in texts]
            checked = self._names[:_CHECKED_NAMES]
            # hdf5 removes slashes at the start of a name, so a few can differ.
            is_complete = 2 * sum(map(self._is_sentence, checked)) > len(checked)
        else:
            is_complete = numbers == set(map(str, self._names))
        self.count = len(self._names)
        first = self._file.declared(str(self._names[0])).shape if is_complete else ()
        self.shape = _layers_and_width(first)
        if not self.shape:
            self.close()
            raise invalid(
                "LayerDataset expects arrays of shape (layers, tokens, width) or (tokens, width), "
                "named by their lines, all from 0 on, or by their sentences",
                f"{path} with {len(names)} names, such as {shorten(names[:3])}",
            )
        self._is_checked = np.zeros(self.count, "bool")

    def array(self, sentence: int) -> np.ndarray:
        name = str(self._names[sentence])
        if self._is_checked[sentence]:  # Checking takes longer than reading: do it once.
            return self._file.read_again(name)
        array = self._file.read(name, kinds="f")
        self._is_checked[sentence] = True
        return array

    def sentences(self) -> list[Sentence] | None:
        if not isinstance(self._names, range):
            return list(map(_tokens_of_name, self._names))
        names = self._file.names()
        if _LINES in names:
            return list(map(split_tokens, self._file.read_strings(_LINES)))
        if _INDEX_OF_LINES not in names:
            return None
        sentences: list[Sentence] = [None] * self.count
        for sentence, i in json.loads(self._file.read_strings(_INDEX_OF_LINES)[0]).items():
            sentences[int(i)] = sentence.split()
        return sentences

    def close(self) -> None:
        self._file.close()

    def _is_sentence(self, name: str) -> bool:
        """Return whether a dataset has one row for each token of its name."""
        try:
            declared = self._file.declared(name)
        except ValueError:  # a group, for example
            return False
        shape = declared.shape
        is_layers = declared.dtype.kind == "f" and len(shape) in (2, 3)
        return is_layers and shape[-2] == len(_tokens_of_name(name))


def _layers_and_width(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the layers and the width of an array, or an empty tuple for other arrays."""
    return (1, *shape)[-3::2] if len(shape) in (2, 3) else ()


def _tokens_of_name(name: str) -> list[str]:
    """Return the tokens of a sentence that AllenNLP or ELMoForManyLangs used as a name."""
    name = name.replace("$period$", ".").replace("$backslash$", "/")
    return name.split("\t") if "\t" in name else name.split()
