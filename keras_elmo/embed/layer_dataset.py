"""Batches of the layer representations in an hdf5 file."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_elmo.formats.hdf5 import Hdf5Reader
from keras_elmo.layer_choice import LayerChoice, Layers
from keras_elmo.tokenizers.token_lists import rows_of, split_tokens
from keras_elmo.utils.checks import check_whole, invalid, shorten
from keras_elmo.utils.files import PathLike, local_path

_REMEDY = "Embed the text again"


class LayerDataset(keras.utils.PyDataset):
    r"""Batches of the layer representations in a file, padded, with their mask.

    A task model trains on layers that were computed once, with a ``ScalarMix`` as its first
    layer. This is the third way to use a biLM in bilm-tf. ``fit``, ``evaluate`` and ``predict``
    accept the dataset on every backend.

    A batch is a dict of ``layers``, float32, shape ``(batch, tokens, layers, width)``, and
    ``mask``, bool, shape ``(batch, tokens)``. With labels it is a pair of this dict and the
    array of labels; with weights it is a triple. On TensorFlow, the second batch can have one more
    column of padding. ``gather`` makes a batch of the sentences you choose.

    For ``predict``, use ``shuffle=False``: the results have the order of the batches. If the model
    has an output for each token, also give ``length``: Keras cannot join batches of several
    lengths on JAX and PyTorch, and returns a ragged tensor on TensorFlow.

    The file is open only while a batch is read. A pickle contains its path, not its content.

    Args:
        file: Path. An hdf5 file whose datasets are named by the number of the sentence, as
            ``Embedder.embed_file``, bilm-tf and AllenNLP write it. A file with one layer gives
            ``layers`` 1.
        labels: Sequence, pandas or Arrow column, or None. One label for each sentence of the
            file, in order: a number; or a list with an entry for each token, a number or a
            one-hot list, padded with 0. The rows of a NumPy array of shape ``(sentences,
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
        sentences: list or None. The tokens of each sentence. None if the file does not store its
            sentences as ``embed_file`` does.

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
        >>> inputs, labels = LayerDataset("layers.hdf5", labels=[1, 0])[0]
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
        with self._open() as opened:
            names = sorted(opened.dataset_names())
            numbers = set(filter(str.isdecimal, names))
            shape = opened.declared("0").shape if "0" in numbers else ()
        self._count, self._shape = len(numbers), _layers_and_width(shape)
        if numbers != set(map(str, range(self._count))) or not self._shape:
            raise invalid(
                "LayerDataset expects arrays of shape (layers, tokens, width) or (tokens, width), "
                "named by the numbers of their sentences, all from 0 on",
                f"{self._path} with {len(names)} names, such as {shorten(names[:3])}",
            )
        self._choice = LayerChoice.of(layers, self._shape[0])
        if sample_weight is not None and labels is None:
            raise invalid("LayerDataset expects sample_weight with labels", "no labels")
        columns = {"labels": labels, "sample_weight": sample_weight}
        self._targets = {
            name: _to_arrays(name, column, self._count)
            for name, column in columns.items()
            if column is not None
        }
        self._random = np.random.default_rng(seed) if shuffle else None
        self._order = self._draw()
        self._read = 0  # batches since then
        self._first_width = 0

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
                errors of ``LayerDataset``.

        Examples:
            >>> embedder = keras_elmo.Embedder("elmo_mini_en")
            >>> sentences = [["Good", "."], ["Bad", "."]]
            >>> LayerDataset.from_sentences(embedder, sentences, [1, 0], file="train.hdf5")[0][1]
            array([1, 0])
        """
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

        With ``steps_per_epoch``, Keras calls this also in the middle of a pass. The order then
        stays until as many batches were read as a pass has. Workers begin anew with every epoch,
        and may read in other processes.
        """
        if self.workers > 1 or self.use_multiprocessing or self._read >= len(self):
            # A new array, because Keras may be reading a batch of the old one in a thread.
            self._order, self._read = self._draw(), 0

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"LayerDataset has batches 0 to {len(self) - 1}. Received: {index}")
        self._read += 1
        start = index * self._batch_size
        return self._gather(self._order[start : start + self._batch_size], index)

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

    def _gather(self, chosen: np.ndarray, index: int | None = None) -> Any:
        """Return the batch of some sentences, which is the batch with this index of a pass."""
        with self._open() as file:
            arrays = [self._array(file, i) for i in chosen]
        lengths = np.array([len(array) for array in arrays])
        width = self._length or lengths.max()
        if lengths.max() > width:
            raise invalid(
                f"LayerDataset expects sentences of at most length={width} tokens",
                f"{lengths.max()} in sentence {chosen[lengths.argmax()]}",
            )
        if index == 0:
            self._first_width = width
        elif index == 1 and width == self._first_width and not self._length:
            # Keras on TensorFlow assumes that all batches have the width that the first two share.
            width += keras.backend.backend() == "tensorflow"
        layers = _pad(arrays, width, "float32")
        if not np.isfinite(layers).all():
            expected = f"LayerDataset expects finite layers in {self._path}"
            received = f"NaN or infinity in one of the sentences {shorten(chosen.tolist())}"
            raise invalid(expected, received, _REMEDY)
        inputs = {"layers": layers, "mask": np.arange(width) < lengths[:, None]}
        if not self._targets:
            return inputs
        targets = (self._target(name, chosen, lengths, width) for name in self._targets)
        return inputs, *targets

    def _target(self, name: str, chosen: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
        """Return the labels or the weights of a batch."""
        values = self._targets[name]
        if isinstance(values, np.ndarray):
            return values[chosen]
        for i, length in zip(chosen, lengths, strict=True):
            if len(values[i]) != length:
                raise invalid(
                    f"LayerDataset expects {name} for each of the {length} tokens of sentence "
                    f"{i}, or a number for each sentence",
                    f"{len(values[i])} {name}",
                )
        return _pad([values[i] for i in chosen], width, values[0].dtype)

    def _array(self, file: Hdf5Reader, sentence: int) -> np.ndarray:
        """Return the chosen layers of a sentence, (tokens, layers, width); check them."""
        array = file.read(str(sentence))
        layers, width = self._shape
        if array.dtype.kind != "f" or _layers_and_width(array.shape) != self._shape:
            raise invalid(
                f"LayerDataset expects floats of shape ({layers}, tokens, {width}) for sentence "
                f"{sentence} of {self._path}",
                f"{array.dtype} of shape {array.shape}",
                _REMEDY,
            )
        array = array.reshape(layers, array.shape[-2], width)
        if self._choice.weights is not None:
            chosen = [array[layer].astype("float32") for layer in self._choice.layers]
            array = self._choice.combine(chosen)[None]
        return np.moveaxis(array, 0, 1)

    @property
    def sentences(self) -> list[list[str]] | None:
        """The tokens of each sentence, or None if the file does not store its sentences."""
        with self._open() as file:
            if "sentences" not in file.dataset_names():
                return None
            return [split_tokens(line) for line in file.read_strings("sentences")]

    def _open(self) -> Hdf5Reader:
        return Hdf5Reader(self._path, kind="Layer file", remedy=_REMEDY)


def _layers_and_width(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the layers and the width of an array, or an empty tuple for other arrays."""
    return (1, *shape)[-3::2] if len(shape) in (2, 3) else ()


def _to_arrays(name: str, column: Any, count: int) -> np.ndarray | list[np.ndarray]:
    """Return the labels or weights of all sentences.

    Returns:
        An array with a row for each sentence; or a list of arrays with a row for each token.
    """
    rows = rows_of(column)  # A pandas column would be read by its index.
    if not isinstance(rows, list) or len(rows) != count:
        raise invalid(
            f"LayerDataset expects {name} for each of the {count} sentences of the file, in a "
            "list, an array or one column of a table",
            f"{len(rows)} {name}" if isinstance(rows, list) else type(rows).__name__,
        )
    arrays = [np.asarray(row) for row in rows]
    filled = [array for array in arrays if array.size]
    # One dtype for all batches: the dtype of a single batch could cut 0.5 to 0.
    dtype = np.result_type("int8", *{array.dtype for array in filled})
    if dtype.kind not in "biuf":
        raise invalid(f"LayerDataset expects {name} to be numbers", shorten(rows))
    is_table = isinstance(column, np.ndarray) and column.dtype != object and column.ndim < 3
    if is_table or not any(array.ndim for array in arrays):
        return np.array(arrays, dtype)
    shape = filled[0].shape[1:] if filled else ()
    if any(not array.ndim or array.shape[1:] != shape for array in filled):
        raise invalid(f"LayerDataset expects {name} of one shape for all tokens", shorten(rows))
    return [array.reshape(-1, *shape).astype(dtype) for array in arrays]


def _pad(arrays: list[np.ndarray], width: int, dtype: Any) -> np.ndarray:
    """Return the arrays as one, (arrays, width, ...), with zeros after the end of each."""
    padded = np.zeros((len(arrays), width, *arrays[0].shape[1:]), dtype)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return padded
