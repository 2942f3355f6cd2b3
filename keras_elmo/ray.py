"""Embed on a Ray cluster with ``map_batches``; Ray reads, writes and repeats lost work.

Ray is optional: ``pip install -e ".[ray]"``. ``examples/ray_embed.py`` is a whole program.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_elmo.embed.embedder import Embedder
from keras_elmo.layer_choice import Layers
from keras_elmo.tokenizers.token_lists import split_tokens
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.files import PathLike

__all__ = ["EmbedBatch", "read_layers"]


class EmbedBatch:
    """Add a column of layer representations to a batch of Ray Data.

    Each actor of ``map_batches`` has one ``Embedder``. The result depends only on the rows of the
    batch, so a batch that Ray computes again has the same bits. Ray sets ``OMP_NUM_THREADS`` to
    the CPUs of an actor, and ONNX Runtime and PyTorch follow it.

    Args:
        preset: str or path. As in ``ElmoLayer.from_preset``; a path must exist on every node.
        column: str. Column of the sentences: lists of tokens, or strings with spaces between
            tokens. A null stays null.
        output: str. Name of the new column. It has one list for each token, of shape
            ``(layers, width)`` or ``(width,)``. ``read_layers`` returns its arrays.
        layers: str, int or list of float. As in ``Embedder.embed``.
        float16: bool. Whether to store float16.
        **kwargs: Arguments of ``Embedder``, such as ``dtype`` and ``batch_tokens``.

    Call arguments:
        table: pyarrow.Table.

    Returns:
        The table with one more column.

    Raises:
        ImportError: If pyarrow is not installed.
        ValueError: If the table does not have the column, or already has the new one; errors of
            ``Embedder``.

    Examples:
        >>> import pyarrow
        >>> embed = EmbedBatch("elmo_mini_en", layers="top")
        >>> table = embed(pyarrow.table({"id": [7], "tokens": [["One", "sentence"]]}))
        >>> table.column_names, read_layers(table)[0].shape
        (['id', 'tokens', 'layers'], (2, 256))

        In Ray::

            ds.map_batches(
                EmbedBatch,
                fn_constructor_args=["elmo_mini_en"],
                batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=8),
            )
    """

    def __init__(
        self,
        preset: PathLike,
        column: str = "tokens",
        output: str = "layers",
        layers: Layers = "all",
        float16: bool = False,
        **kwargs: Any,
    ) -> None:
        import_extra("pyarrow", "EmbedBatch", "PyArrow", "ray")
        self._embedder = Embedder(preset, **kwargs)
        self._column, self._output, self._layers = column, output, layers
        self._dtype = "float16" if float16 else "float32"
        # Of an empty sentence: it provides the shape where a batch has only nulls.
        [self._empty] = self._embedder.embed([[]], layers)

    def __call__(self, table: Any) -> Any:
        names = table.column_names
        if self._column not in names or self._output in names:
            raise invalid(
                f"EmbedBatch expects a column {self._column!r} of sentences, and no column "
                f"{self._output!r}",
                f"columns {', '.join(names)}",
            )
        rows = table.column(self._column).to_pylist()
        sentences = [split_tokens(row) if isinstance(row, str) else row for row in rows]
        present = [sentence for sentence in sentences if sentence is not None]
        found = iter(self._embedder.embed(present, self._layers, remember=False))
        arrays = [None if sentence is None else next(found) for sentence in sentences]
        return table.append_column(self._output, self._as_column(arrays))

    def _as_column(self, arrays: Sequence[np.ndarray | None]) -> Any:
        """Return arrays of ``Embedder.embed`` as a column; None becomes null."""
        pyarrow = import_extra("pyarrow", "EmbedBatch", "PyArrow", "ray")
        given = [self._empty if array is None else array for array in arrays]
        tokens = [np.moveaxis(array, -2, 0) for array in [self._empty, *given]]
        values = np.concatenate(tokens).astype(self._dtype)
        nested = pyarrow.array(values.ravel())
        for size in reversed(values.shape[1:]):
            nested = pyarrow.FixedSizeListArray.from_arrays(nested, size)
        offsets = np.cumsum([len(array) for array in tokens])
        is_null = pyarrow.array([array is None for array in arrays], pyarrow.bool_())
        return pyarrow.LargeListArray.from_arrays(pyarrow.array(offsets), nested, mask=is_null)


def read_layers(table: Any, column: str = "layers") -> list[np.ndarray | None]:
    """Return the arrays of a column that ``EmbedBatch`` added, shaped as ``Embedder.embed``.

    Args:
        table: pyarrow.Table, such as a part of a Parquet file.
        column: str. Name of the column.

    Returns:
        A list of float32 or float16 arrays, one for each row: ``(layers, tokens, width)``, or
        ``(tokens, width)`` for a single layer; None for a null.

    Raises:
        ValueError: If there is no such column.

    Examples:
        >>> import pyarrow
        >>> table = EmbedBatch("elmo_mini_en")(pyarrow.table({"tokens": [["One", "sentence"]]}))
        >>> read_layers(table)[0].shape
        (3, 2, 256)
    """
    names = table.column_names
    shape = _shape_of_tokens(table.schema.field(column).type) if column in names else ()
    if not shape:
        raise invalid(
            f"Expected a column {column!r} that EmbedBatch added",
            ", ".join(f"{field.name}: {field.type}" for field in table.schema),
        )
    arrays: list[np.ndarray | None] = []
    for chunk in table.column(column).chunks:
        values = chunk.values
        for _ in shape:
            values = values.flatten()  # respects the offset of a slice, unlike ``values``
        rows = values.to_numpy(zero_copy_only=False).reshape(-1, *shape)
        for (start, end), is_given in zip(
            itertools.pairwise(chunk.offsets.to_numpy()), chunk.is_valid().to_pylist(), strict=True
        ):
            arrays.append(np.moveaxis(rows[start:end], 0, -2) if is_given else None)
    return arrays


def _shape_of_tokens(kind: Any) -> tuple[int, ...]:
    """Return the sizes of the nested lists of fixed size in a list type of Arrow."""
    sizes: list[int] = []
    kind = getattr(kind, "value_type", None)
    while hasattr(kind, "list_size"):
        sizes.append(kind.list_size)
        kind = kind.value_type
    return tuple(sizes)
