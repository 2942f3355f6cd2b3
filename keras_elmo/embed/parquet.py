"""Layer representations in Arrow tables and Parquet files."""

import bisect
import collections
import json
import pathlib
import threading

import numpy as np

# Row groups that stay in memory while batches are read.
_GROUPS_IN_MEMORY = 8


def import_pyarrow():
    """Return ``pyarrow`` and ``pyarrow.parquet``, or say how to install them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install 'keras-elmo[ray]'") from error
    return pyarrow, pyarrow.parquet


def add_layers(table, name, arrays, shape, float16=False):
    """Return an Arrow table with a column of layer representations more.

    The column is a ``large_list`` with a ``fixed_size_list`` of floats for each token; its
    metadata tell ``layers`` and ``width``.

    Args:
        table: ``pyarrow.Table``.
        name: Of the new column.
        arrays: A float array for each row, shape ``(tokens, *shape)``; None for a null.
        shape: ``(layers, width)``, or ``(width,)`` for one layer.
        float16: Whether to keep half precision.
    """
    pyarrow, _ = import_pyarrow()
    dtype = "float16" if float16 else "float32"
    lengths = [0 if array is None else len(array) for array in arrays]
    size = int(np.prod(shape))
    values = np.empty((sum(lengths), size), dtype)
    offsets = np.cumsum([0, *lengths], dtype="int64")
    for array, start, end in zip(arrays, offsets[:-1], offsets[1:], strict=True):
        if array is not None:
            values[start:end] = array.reshape(-1, size)
    tokens = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.ravel()), size)
    is_null = pyarrow.array([array is None for array in arrays], pyarrow.bool_())
    column = pyarrow.LargeListArray.from_arrays(pyarrow.array(offsets), tokens, mask=is_null)
    layers = {"layers": str(shape[0])} if len(shape) == 2 else {}
    field = pyarrow.field(name, column.type, metadata={**layers, "width": str(shape[-1])})
    return table.append_column(field, column)


def read_layers(table, name="layers") -> list:
    """Return the arrays of a column that ``add_layers`` made.

    Args:
        table: ``pyarrow.Table``.
        name: Of the column.

    Returns:
        An array for each row, ``(tokens, layers, width)``, or ``(tokens, width)`` of one
        layer, float32 or float16; None for a null.

    Raises:
        ValueError: If there is no such column.
    """
    shape = layers_shape(table.schema, name)
    arrays: list = []
    for chunk in table.column(name).chunks:
        values = chunk.values
        flat = values.values.to_numpy(zero_copy_only=False)
        rows = flat[values.offset * values.type.list_size :].reshape(-1, *shape)
        ends, is_valid = chunk.offsets.to_numpy(), chunk.is_valid().to_pylist()
        arrays += [
            rows[start:end] if valid else None
            for start, end, valid in zip(ends[:-1], ends[1:], is_valid, strict=True)
        ]
    return arrays


def layers_shape(schema, name) -> tuple:
    """Return ``(layers, width)``, or ``(width,)`` of one layer, as a column's metadata tell.

    Raises:
        ValueError: If the schema has no such column of layer representations.
    """
    pyarrow, _ = import_pyarrow()
    places = schema.get_all_field_indices(name)
    if len(places) == 1:
        field = schema.field(places[0])
        metadata = field.metadata or {}
        numbers = [metadata[key] for key in (b"layers", b"width") if key in metadata]
        if all(number.isdigit() for number in numbers) and b"width" in metadata:
            shape = tuple(int(number) for number in numbers)
            kinds = (pyarrow.float32(), pyarrow.float16())
            if field.type in [
                pyarrow.large_list(pyarrow.list_(kind, int(np.prod(shape)))) for kind in kinds
            ]:
                return shape
    raise ValueError(
        f"Expected a column {name!r} of layer representations. "
        f"Received: {', '.join(f'{field.name}: {field.type}' for field in schema)}"
    )


def parquet_files(path) -> list[pathlib.Path]:
    """Return the Parquet files of a folder in the order of their names, or the one file."""
    path = pathlib.Path(path)
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path]


def _check_complete(path, count):
    """Raise unless a folder that ``embed_files`` writes has all its files."""
    settings = pathlib.Path(path, "_settings.json")
    if settings.exists():
        expected = json.loads(settings.read_text()).get("files", count)
        if count != expected:
            raise ValueError(
                f"Expected the {expected} files of the job that writes {path}. Received: {count}. "
                "Wait for it, or resume it (resume=True, --resume)"
            )


class ParquetLayers:
    """The layer representations in Parquet files, read a row group at a time.

    Args:
        path: A file, or a folder of them, read in the order of their names.
        name: Of the column.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If there is no file, or one without such a column; if the job that writes
            the folder is not done.
    """

    def __init__(self, path, name="layers"):
        pyarrow, parquet = import_pyarrow()
        self._name = name
        self._path = path
        paths = parquet_files(path)
        if not paths:
            raise ValueError(f"Expected a folder of Parquet files. Received: {path}, with none")
        _check_complete(path, len(paths))
        self._files, self._groups, shapes = [], [], set()
        self.count = 0
        for file in paths:
            try:
                opened = parquet.ParquetFile(file)
            except FileNotFoundError:
                raise
            except (OSError, pyarrow.ArrowException) as error:
                raise OSError(f"{file} is no Parquet file, or damaged ({error})") from None
            self._files.append(opened)
            shapes.add(layers_shape(opened.schema_arrow, name))
            for group in range(opened.num_row_groups):
                self._groups.append((self.count, opened, group))
                self.count += opened.metadata.row_group(group).num_rows
        self._starts = [start for start, _, _ in self._groups]
        if len(shapes) > 1:
            raise ValueError(f"Expected layers of one shape in {path}. Received: {sorted(shapes)}")
        [self.shape] = shapes
        self.contents = f"{self.count} rows of shape {self.shape}"
        self._read: collections.OrderedDict = collections.OrderedDict()
        self._reading = threading.Lock()  # Arrow's readers serve one thread at a time
        self.is_open = True

    def array(self, row):
        """Return the array of a row, as ``read_layers`` does; threads take turns."""
        with self._reading:
            array = self._array(row)
        if array is not None and not np.isfinite(array).all():
            raise ValueError(
                f"Expected finite layers in {self._path}. Received: NaN or inf in row {row}. "
                "Embed the text again"
            )
        return array

    def _array(self, row):
        place = bisect.bisect_right(self._starts, row) - 1
        start, file, group = self._groups[place]
        if place not in self._read:
            pyarrow, _ = import_pyarrow()
            try:
                table = file.read_row_group(group, [self._name])
                self._read[place] = read_layers(table, self._name)
            except (OSError, pyarrow.ArrowException) as error:
                raise OSError(f"{self._path} is damaged ({error})") from None
            if len(self._read) > _GROUPS_IN_MEMORY:
                self._read.popitem(last=False)
        self._read.move_to_end(place)
        return self._read[place][row - start]

    def describe(self, array):
        """Return what is wrong with an array, in words; all of them are of one shape."""
        return f"shape {array.shape}"

    def tokens(self, row) -> int:
        """Return the number of tokens of a row."""
        array = self.array(row)
        return 0 if array is None else len(array)

    def close(self):
        """Close the files."""
        for file in self._files:
            file.close()
        self._read.clear()
        self.is_open = False
