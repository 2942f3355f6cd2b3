"""Layer representations in Arrow tables and Parquet files."""

import bisect
import contextlib
import functools
import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_elmo.embed.run_folder import stored_settings
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.files import PathLike

# Row groups that stay in memory while batches are read.
_GROUPS_IN_MEMORY = 8


def import_pyarrow() -> tuple[Any, Any]:
    """Return the modules ``pyarrow`` and ``pyarrow.parquet``, or say how to install them."""
    parquet = import_extra("pyarrow.parquet", "Parquet", "PyArrow", "ray")
    import pyarrow

    return pyarrow, parquet


@contextlib.contextmanager
def parquet_errors(path: PathLike) -> Iterator[None]:
    """Replace errors of pyarrow, of several types, by an ``OSError`` that names the file."""
    pyarrow, _ = import_pyarrow()
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pyarrow.ArrowException) as error:
        raise OSError(f"{path} is damaged or not a Parquet file ({error})") from None


def is_parquet(path: Path) -> bool:
    """Return whether a path names Parquet: a file, or a folder of files."""
    return path.is_dir() or path.suffix.lower() == ".parquet"


def add_layers(
    table: Any,
    name: str,
    arrays: Sequence[np.ndarray | None],
    shape: tuple[int, ...],
    float16: bool = False,
) -> Any:
    """Return an Arrow table with one more column, of layer representations.

    The column is a ``large_list`` with one ``fixed_size_list`` of floats for each token. Its
    metadata contain ``layers`` and ``width``.

    Args:
        table: pyarrow.Table.
        name: str. Name of the new column.
        arrays: Sequence of arrays as from ``Embedder.embed``, one for each row; None for a null.
        shape: tuple of int. ``(layers, width)``, or ``(width,)`` for one layer.
        float16: bool. Whether to store float16.
    """
    pyarrow, _ = import_pyarrow()
    lengths = [0 if array is None else array.shape[-2] for array in arrays]
    size = math.prod(shape)
    values = np.empty((sum(lengths), size), "float16" if float16 else "float32")
    offsets = np.cumsum([0, *lengths], dtype="int64")
    for array, start, end in zip(arrays, offsets[:-1], offsets[1:], strict=True):
        if array is not None:
            values[start:end] = np.moveaxis(array, -2, 0).reshape(-1, size)
    tokens = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.ravel()), size)
    is_null = pyarrow.array([array is None for array in arrays], pyarrow.bool_())
    column = pyarrow.LargeListArray.from_arrays(pyarrow.array(offsets), tokens, mask=is_null)
    layers = {"layers": str(shape[0])} if len(shape) == 2 else {}
    field = pyarrow.field(name, column.type, metadata={**layers, "width": str(shape[-1])})
    return table.append_column(field, column)


def read_layers(table: Any, name: str = "layers") -> list[np.ndarray | None]:
    """Return the arrays of a column of layer representations, shaped as ``Embedder.embed``.

    Args:
        table: pyarrow.Table.
        name: str. Name of the column.

    Returns:
        A list of float32 or float16 arrays, one for each row: ``(layers, tokens, width)``, or
        ``(tokens, width)`` for a single layer; None for a null.

    Raises:
        ImportError: If pyarrow is not installed.
        ValueError: If there is no such column.

    Examples:
        >>> import pyarrow
        >>> from keras_elmo.ray import EmbedBatch
        >>> table = EmbedBatch("elmo_mini_en")(pyarrow.table({"tokens": [["One", "sentence"]]}))
        >>> read_layers(table)[0].shape
        (3, 2, 256)
    """
    shape = layers_shape(table.schema, name)
    arrays: list[np.ndarray | None] = []
    for chunk in table.column(name).chunks:
        values = chunk.values
        flat = values.values.to_numpy(zero_copy_only=False)
        rows = flat[values.offset * values.type.list_size :].reshape(-1, *shape)
        ends, is_valid = chunk.offsets.to_numpy(), chunk.is_valid().to_pylist()
        arrays += [
            np.moveaxis(rows[start:end], 0, -2) if valid else None
            for start, end, valid in zip(ends[:-1], ends[1:], is_valid, strict=True)
        ]
    return arrays


def layers_shape(schema: Any, name: str) -> tuple[int, ...]:
    """Return ``(layers, width)`` of a column, or ``(width,)`` for a single layer.

    Raises:
        ValueError: If the schema has no such column of layer representations.
    """
    pyarrow, _ = import_pyarrow()
    fields = [field for field in schema if field.name == name]
    metadata = fields[0].metadata or {} if len(fields) == 1 else {}
    numbers = [metadata[key] for key in (b"layers", b"width") if key in metadata]
    if b"width" in metadata and all(number.isdigit() for number in numbers):
        shape = tuple(map(int, numbers))
        for kind in (pyarrow.float32(), pyarrow.float16()):
            if fields[0].type == pyarrow.large_list(pyarrow.list_(kind, math.prod(shape))):
                return shape
    raise ValueError(
        f"Expected a column {name!r} of layer representations. "
        f"Received: {', '.join(f'{field.name}: {field.type}' for field in schema)}"
    )


def parquet_files(path: PathLike) -> list[Path]:
    """Return the Parquet files of a folder, sorted by name; or the path of a single file."""
    path = Path(path)
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path]


class ParquetLayers:
    """The layer representations in a Parquet file or a folder of files, read by row group.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If there is no file, if a file has no such column, or if the run that writes
            the folder has not finished.
    """

    def __init__(self, path: Path) -> None:
        _, parquet = import_pyarrow()
        self._path = path
        paths = parquet_files(path)
        expected = stored_settings(path).get("files", len(paths))
        if len(paths) != expected:
            raise ValueError(
                f"Expected the {expected} files of the run that writes {path}. Received: "
                f"{len(paths)}. Wait for the run, or continue it (resume=True, --resume)"
            )
        if not paths:
            raise ValueError(f"Expected a folder of Parquet files. Received: {path}, without any")
        self._files, self._groups, self._starts, shapes = [], [], [], set()
        self.count = 0
        for file in paths:
            with parquet_errors(file):
                opened = parquet.ParquetFile(file)
            self._files.append(opened)
            shapes.add(layers_shape(opened.schema_arrow, "layers"))
            for group in range(opened.num_row_groups):
                self._groups.append((opened, group))
                self._starts.append(self.count)
                self.count += opened.metadata.row_group(group).num_rows
        if len(shapes) > 1:
            raise ValueError(f"Expected layers of one shape in {path}. Received: {sorted(shapes)}")
        [self.shape] = shapes
        self._group = functools.lru_cache(_GROUPS_IN_MEMORY)(self._read_group)
        self._lock = threading.Lock()  # A ParquetFile serves one thread at a time.

    def array(self, row: int) -> np.ndarray | None:
        """Return the array of a row, as ``read_layers`` does; threads take turns."""
        place = bisect.bisect_right(self._starts, row) - 1
        with self._lock:
            array = self._group(place)[row - self._starts[place]]
        if array is not None and not np.isfinite(array).all():
            raise ValueError(
                f"Expected finite layers in {self._path}. Received: NaN or inf in row {row}. "
                "Embed the text again"
            )
        return array

    def _read_group(self, place: int) -> list[np.ndarray | None]:
        file, group = self._groups[place]
        with parquet_errors(self._path):
            return read_layers(file.read_row_group(group, ["layers"]))

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
        self._group.cache_clear()
