"""Embed on a Ray cluster with ``map_batches``; Ray reads, writes and repeats lost work.

Ray is optional: ``pip install -e ".[ray]"``. ``examples/ray_embed.py`` is a whole program.
"""

from typing import Any

import numpy as np

from keras_elmo.embed.embedder import Embedder
from keras_elmo.layer_choice import Layers
from keras_elmo.tokenizers.token_lists import split_tokens
from keras_elmo.utils.checks import invalid
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
        KeyError: If the table does not have the column.
        ValueError: Errors of ``Embedder``.

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
        self._embedder = Embedder(preset, **kwargs)
        self._column, self._output, self._layers = column, output, layers
        self._dtype = "float16" if float16 else "float32"

    def __call__(self, table: Any) -> Any:
        import pyarrow

        if self._output in table.column_names:
            expected = f"EmbedBatch expects a table without the output {self._output!r}"
            raise invalid(expected, ", ".join(table.column_names))
        rows = table.column(self._column).to_pylist()
        sentences = [split_tokens(row) if isinstance(row, str) else row or [] for row in rows]
        # The empty sentence in front provides the shape where a batch has no rows.
        arrays = self._embedder.embed([[], *sentences], self._layers, remember=False)
        tokens = [np.moveaxis(array, -2, 0) for array in arrays]
        values = np.concatenate(tokens).astype(self._dtype)
        nested = pyarrow.array(values.ravel())
        for size in reversed(values.shape[1:]):
            nested = pyarrow.FixedSizeListArray.from_arrays(nested, size)
        offsets = pyarrow.array(np.cumsum([len(array) for array in tokens]))
        is_null = pyarrow.array([row is None for row in rows], pyarrow.bool_())
        column = pyarrow.LargeListArray.from_arrays(offsets, nested, mask=is_null)
        return table.append_column(self._output, column)


def read_layers(table: Any, column: str = "layers") -> list[np.ndarray | None]:
    """Return the arrays of a column that ``EmbedBatch`` added, shaped as ``Embedder.embed``.

    Args:
        table: pyarrow.Table, such as a part of a Parquet file.
        column: str. Name of the column.

    Returns:
        A list of float32 or float16 arrays, one for each row: ``(layers, tokens, width)``, or
        ``(tokens, width)`` for a single layer; None for a null.

    Raises:
        KeyError: If there is no such column.

    Examples:
        >>> import pyarrow
        >>> table = EmbedBatch("elmo_mini_en")(pyarrow.table({"tokens": [["One", "sentence"]]}))
        >>> read_layers(table)[0].shape
        (3, 2, 256)
    """
    arrays: list[np.ndarray | None] = []
    for row in table.column(column):
        if not row.is_valid:
            arrays.append(None)
            continue
        values, shape = row.values, []
        while hasattr(values.type, "list_size"):
            shape.append(values.type.list_size)
            values = values.flatten()
        array = values.to_numpy(zero_copy_only=False).reshape(-1, *shape)
        arrays.append(np.moveaxis(array, 0, -2))
    return arrays
