"""The one reader and writer of hdf5 files: what a file declares is checked before it is read.

An hdf5 file can be a program of sorts: links to other files, virtual datasets that refer to
themselves and end the process, terabytes declared in a kilobyte. Here a file holds arrays of
numbers, and text where a caller asks for it; all else is refused by name.

- A file that is small and read whole: ``read_arrays(path, expected={name: shape})``.
- A file read bit by bit: ``with open_hdf5(path) as file``, then ``file.names()``,
  ``file.declared(name)``, ``file.read(name)``, ``file.read_strings(name)``,
  ``file.attribute(name)``; ``file.copy(name, target)`` copies a dataset as it is stored.
- Writing: ``write_arrays`` to the temporary path of ``atomic_write``.

Whatever is wrong, the error is an ``OSError`` (damaged, missing) or a ``ValueError`` (whole, but
not what was expected) that names the file.
"""

import contextlib
import dataclasses
import math
import os
import stat
import zlib

import h5py
import numpy as np

# What h5py and NumPy raise for a damaged file, seen or thinkable.
_H5PY_ERRORS = (
    OSError,
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    SystemError,
)
_NUMBERS = (h5py.h5t.INTEGER, h5py.h5t.FLOAT)
_OTHER_TYPES = {
    h5py.h5t.STRING: "text",
    h5py.h5t.TIME: "times",
    h5py.h5t.BITFIELD: "bit fields",
    h5py.h5t.OPAQUE: "opaque bytes",
    h5py.h5t.COMPOUND: "compound values",
    h5py.h5t.REFERENCE: "references",
    h5py.h5t.ENUM: "enumerated values",
    h5py.h5t.VLEN: "arrays of any length",
    h5py.h5t.ARRAY: "arrays in arrays",
}
_LINKS = {h5py.h5l.TYPE_SOFT: "a soft link", h5py.h5l.TYPE_EXTERNAL: "a link to another file"}
_COMPRESSIONS = (h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_LZF)
_FILTERS = (*_COMPRESSIONS, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32)

# Weights shrink to a half or a third; a file beyond these bounds is made to fill the memory.
LARGEST_RATIO = 100
MEBIBYTE = 1 << 20
SLACK = 64 * MEBIBYTE
_LARGEST_CHUNK = 16 * MEBIBYTE  # or that of the dataset, if that is more
_LARGEST_LZF_CHUNK = 4 * MEBIBYTE
_HARMLESS_CHUNK = MEBIBYTE // 4  # a thousand times that, which gzip can reach, fits everywhere
_MOST_NAMES = 100_000
_DEEPEST_NAME = 16
_MOST_PROBLEMS = 20
_LARGEST_FLOAT32 = np.finfo("float32").max


@dataclasses.dataclass(frozen=True)
class Declared:
    """The shape and NumPy dtype that a file declares for a dataset."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_arrays(file, origin=None, expected=None, *, kinds="f", kind="Weight file", **words):
    """Read all datasets of a file.

    Args:
        file: Path or binary file object.
        origin: Name of the file, for errors.
        expected: The shape of every dataset by name; None for any.
        kinds: Kinds of NumPy dtypes that are allowed.
        kind: What errors call such a file.
        **words: ``fits`` and ``advice`` of ``misfit_error``.

    Returns:
        Dict of NumPy arrays by name.

    Raises:
        OSError: If the file is missing or damaged.
        ValueError: If it holds other datasets than expected, or anything but finite numbers.
    """
    with open_hdf5(file, origin, kind) as opened:
        return opened.read_all(expected, kinds, **words)


def open_hdf5(file, origin=None, kind="Weight file", remedy="Fetch it again"):
    """Open a file for reading; a ``Hdf5Reader``, to be closed or used in ``with``.

    Args:
        file: Path or binary file object.
        origin: Name of the file, for errors; the path if not given.
        kind: What errors call such a file.
        remedy: What to do if it is damaged.
    """
    return Hdf5Reader(file, origin, kind, remedy)


def write_arrays(file, arrays: dict, attributes=None, **filters) -> None:
    """Write arrays as the datasets of an hdf5 file.

    Args:
        file: Path.
        arrays: NumPy arrays by name.
        attributes: Attributes of the file by name.
        **filters: Of ``h5py.Group.create_dataset``, as ``compression``.
    """
    with h5py.File(file, "w") as opened:
        opened.attrs.update(attributes or {})
        for name, array in arrays.items():
            opened.create_dataset(name, data=array, **filters)


class Hdf5Reader:
    """An hdf5 file that is open for reading; every dataset is checked before it is read.

    Args:
        file: Path or binary file object.
        origin: Name of the file, for errors; the path if not given.
        kind: What errors call such a file.
        remedy: What to do if it is damaged.

    Raises:
        OSError: If the file is missing or damaged.
    """

    def __init__(self, file, origin=None, kind="Weight file", remedy="Fetch it again"):
        self.name = f"{kind} {file if origin is None else origin}"
        self._remedy = remedy
        self._file = None
        with self._naming():
            self._size = _size_of(file)
            self._file = h5py.File(file, "r")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether the file is not closed yet."""
        return bool(self._file)

    def close(self) -> None:
        """Close the file."""
        with self._naming():
            self._file.close()

    def names(self, group="") -> list[str]:
        """Return the names directly in a group, datasets and groups alike."""
        with self._naming():
            names = list(self._open(group))
        for name in names:
            if isinstance(name, bytes):
                raise ValueError(f"{self.name} must have names in UTF-8. Received: {name!r}")
        return names

    def walk(self) -> list[str]:
        """Return the names of all datasets, as ``group/dataset``."""
        datasets: list[str] = []
        groups = [""]
        seen = 0
        while groups:
            group = groups.pop()
            for name in self.names(group):
                name = f"{group}/{name}".lstrip("/")
                seen += 1
                if seen > _MOST_NAMES or name.count("/") > _DEEPEST_NAME:
                    raise ValueError(
                        f"{self.name} must not hold more than {_MOST_NAMES} names, nested "
                        f"{_DEEPEST_NAME} deep. Received: '{name[:60]}' beyond that"
                    )
                is_group = isinstance(self._open(name), h5py.Group)
                (groups if is_group else datasets).append(name)
        return sorted(datasets)

    def declared(self, name) -> Declared:
        """Return what the file declares for a dataset of numbers or of text, checked."""
        dataset = self._dataset(name)
        with self._naming():
            return Declared(dataset.shape, dataset.dtype)

    def read(self, name, shape=None, kinds="fiu", is_finite=True) -> np.ndarray:
        """Read a dataset of numbers.

        Args:
            name: Of the dataset.
            shape: What it must have; None for any.
            kinds: Kinds of NumPy dtypes that are allowed.
            is_finite: Whether all must be finite.

        Raises:
            OSError: If the file is damaged.
            ValueError: If there is no such dataset, or one not as above.
        """
        dataset = self._dataset(name)
        with self._naming():
            declared = Declared(dataset.shape, dataset.dtype)
        expected = {name: declared.shape if shape is None else shape}
        if problems := misfits(expected, {name: declared}, kinds):
            raise misfit_error(self.name, problems, advice=self._remedy)
        with self._naming():
            array = np.asarray(dataset[()])
            array = array.astype(array.dtype.newbyteorder("="), copy=False)  # PyTorch has no other
        if is_finite and (problems := misfits({}, {name: array}, values_only=True)):
            raise misfit_error(self.name, problems, advice=self._remedy)
        return array

    def read_again(self, name) -> np.ndarray:
        """Read a dataset that ``read`` has read, and thus checked, since the file is open."""
        with self._naming():
            dataset = h5py.h5d.open(self._file.id, name.encode())
            array = np.empty(dataset.shape, dataset.dtype.newbyteorder("="))
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
        return array

    def read_all(self, expected=None, kinds="f", **words) -> dict:
        """Read all datasets; arguments, result and errors of ``read_arrays``."""
        declared = {name: self.declared(name) for name in self.walk()}
        if expected is None:
            expected = {name: found.shape for name, found in declared.items()}
        if problems := misfits(expected, declared, kinds):
            raise misfit_error(self.name, problems, **words)
        total = sum(found.nbytes for found in declared.values())
        if total > LARGEST_RATIO * self._size + SLACK:
            raise self._refusal(f"{total} bytes in a file of {self._size}", "in all")
        arrays = {name: self.read(name, kinds=kinds, is_finite=False) for name in declared}
        if problems := misfits({}, arrays, values_only=True):
            raise misfit_error(self.name, problems, **words)
        return arrays

    def read_strings(self, name, start=0, stop=None) -> list[str]:
        """Read a one-dimensional dataset of text, or some of it; a single text as a list of one."""
        dataset = self._dataset(name)
        with self._naming():
            is_text = dataset.id.get_type().get_class() == h5py.h5t.STRING
            length = len(dataset) if dataset.ndim == 1 else 1
        if not is_text or dataset.ndim > 1:
            raise ValueError(f"{self.name} must hold a list of text in '{name}'. Received: numbers")
        strings: list[str] = []
        total, stop = 0, length if stop is None else min(stop, length)
        for first in range(start, stop, 64):  # few at once: all can point to the same long text
            with self._naming():
                part = dataset[first : min(first + 64, stop)] if dataset.ndim else [dataset[()]]
                part = [text if isinstance(text, bytes) else bytes(text) for text in part]
                strings += [text.decode("utf-8") for text in part]
            total += sum(map(len, part))
            if total > LARGEST_RATIO * self._size + SLACK:
                raise self._refusal("more text than the file can hold", name)
        return strings

    def attributes(self) -> list[str]:
        """Return the names of the attributes of the file."""
        with self._naming():
            return [str(name) for name in self._file.attrs]

    def attribute(self, name):
        """Return an attribute of the file, a str or a number.

        Raises:
            ValueError: If there is none, or one of another type.
        """
        with self._naming():
            exists = name in self._file.attrs
            if exists:
                kind = self._file.attrs.get_id(name).get_type().get_class()
                shape = self._file.attrs.get_id(name).shape
        if not exists or shape != () or kind not in (*_NUMBERS, h5py.h5t.STRING):
            found = "none" if not exists else _OTHER_TYPES.get(kind, "an array")
            raise ValueError(
                f"{self.name} must have the attribute '{name}', text or a number. "
                f"Received: {found}. {self._remedy}"
            )
        with self._naming():
            value = self._file.attrs[name]
            value = value.decode("utf-8") if isinstance(value, bytes) else value
            return str(value.encode("utf-8"), "utf-8") if isinstance(value, str) else value.item()

    def copy(self, name, target) -> None:
        """Copy a dataset, as it is stored, into an ``h5py.File`` that is open for writing."""
        dataset = self._dataset(name)
        with self._naming():
            self._file.copy(dataset, target, name)

    def _open(self, name):
        """Return the group or dataset of a name, reached by hard links only."""
        item = self._file
        for part in name.split("/") if name else ():
            with self._naming():
                is_there = isinstance(item, h5py.Group) and item.id.links.exists(part.encode())
                link = item.id.links.get_info(part.encode()).type if is_there else None
            if not is_there:
                raise ValueError(
                    f"{self.name} must hold '{name}'. Received: a file without. {self._remedy}"
                )
            if link != h5py.h5l.TYPE_HARD:
                raise self._refusal(_LINKS.get(link, "a link of a kind of its own"), name)
            with self._naming():
                item = item[part]
        if not isinstance(item, h5py.Group | h5py.Dataset):
            raise self._refusal("a named type", name)
        return item

    def _dataset(self, name):
        """Return a dataset whose array is all in this file and no larger than it claims."""
        dataset = self._open(name)
        if isinstance(dataset, h5py.Group):
            raise self._refusal("a group", name)
        with self._naming():
            oddity = self._oddity(dataset)
        if oddity:
            raise self._refusal(oddity, name)
        return dataset

    def _oddity(self, dataset):
        """Return what is wrong with a dataset, if anything."""
        plist = dataset.id.get_create_plist()
        layout = plist.get_layout()
        if layout == h5py.h5d.VIRTUAL:
            return "a virtual dataset"
        if plist.get_external_count():
            return "a dataset stored in another file"
        kind = dataset.id.get_type().get_class()
        if kind not in (*_NUMBERS, h5py.h5t.STRING):
            return _OTHER_TYPES.get(kind, "an unknown type")
        if dataset.shape is None:
            return "a dataset without a shape"
        nbytes = math.prod(dataset.shape) * dataset.id.get_type().get_size()
        stored = dataset.id.get_storage_size()
        if stored > self._size or nbytes > LARGEST_RATIO * stored + SLACK:
            return f"shape {dataset.shape} in {stored} bytes of a file of {self._size}"
        if layout != h5py.h5d.CHUNKED:
            return "a dataset that was never written" if stored < nbytes else None
        return _oddity_of_chunks(dataset, plist, nbytes)

    def _refusal(self, oddity, name):
        return ValueError(
            f"{self.name} must hold plain datasets, all written and in this file. "
            f"Received: {oddity}, '{name}'. {self._remedy}"
        )

    @contextlib.contextmanager
    def _naming(self):
        """Give every error of h5py the name of the file."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.name} does not exist") from None
        except IsADirectoryError:
            raise IsADirectoryError(f"{self.name} is a directory") from None
        except PermissionError as error:
            raise PermissionError(f"{self.name} cannot be read ({error.strerror})") from None
        except BlockingIOError as error:
            raise OSError(f"{self.name} is being written by another process") from error
        except _H5PY_ERRORS as error:
            reason = " ".join(str(error).split())[:300]
            raise OSError(
                f"{self.name} is damaged or not an hdf5 file ({reason}). {self._remedy}"
            ) from error


def _size_of(file):
    if hasattr(file, "read"):
        place = file.tell()
        size = file.seek(0, os.SEEK_END)
        file.seek(place)
        return size
    status = os.stat(file)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError
    if not stat.S_ISREG(status.st_mode):
        raise OSError("a device or a pipe")
    return status.st_size


def _oddity_of_chunks(dataset, plist, nbytes):
    """Return what is wrong with the chunks of a dataset, if anything."""
    codes = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    packed = [i for i, code in enumerate(codes) if code in _COMPRESSIONS]
    if len(set(codes)) < len(codes) or not set(codes) <= set(_FILTERS) or len(packed) > 1:
        return "a compression other than gzip or lzf"
    if packed and set(codes[packed[0] + 1 :]) - {h5py.h5z.FILTER_FLETCHER32}:
        return "a compression other than gzip or lzf"
    largest = math.prod(dataset.chunks) * dataset.id.get_type().get_size()
    if largest > max(nbytes, _LARGEST_CHUNK):
        return f"chunks of {largest} bytes"
    pairs = zip(dataset.shape, dataset.chunks, strict=True)
    if dataset.id.get_num_chunks() != math.prod(-(-size // chunk) for size, chunk in pairs):
        return "a dataset that was never wholly written"
    if not packed or dataset.id.get_storage_size() <= _HARMLESS_CHUNK:
        return None
    chunks = []
    dataset.id.chunk_iter(lambda info: chunks.append((info.chunk_offset, info.size)))
    for offset, size in chunks:
        if size <= _HARMLESS_CHUNK:
            continue
        if codes[packed[0]] == h5py.h5z.FILTER_LZF:
            if size > _LARGEST_LZF_CHUNK:
                return f"a chunk of {size} bytes"
            continue
        mask, content = dataset.id.read_direct_chunk(offset)
        # A checksum of four bytes can be inside; the library would unpack without a bound.
        if not mask and _unpacks_beyond(content, largest + 4):
            return f"a chunk that unpacks to more than its {largest} bytes"
    return None


def _unpacks_beyond(content, most):
    try:
        return len(zlib.decompressobj().decompress(content, most + 1)) > most
    except zlib.error:
        return False  # reading it will say so


def misfits(expected: dict, found: dict, kinds="f", values_only=False) -> list[str]:
    """Return what is wrong with arrays, or with what a file declares, a sentence each.

    Args:
        expected: Shapes by name.
        found: Arrays by name, or ``Declared``.
        kinds: Kinds of NumPy dtypes that are allowed.
        values_only: Whether to look only for values that are not finite in float32.
    """
    if values_only:
        floats = {name: array for name, array in found.items() if array.dtype.kind == "f"}
        infinite = [name for name, array in floats.items() if not np.isfinite(array).all()]
        larger = [
            name
            for name, array in floats.items()
            if array.dtype.itemsize > 4 and (np.abs(array) > _LARGEST_FLOAT32).any()
        ]
        return [f"'{name}' holds NaN or infinite values" for name in infinite] + [
            f"'{name}' holds values beyond float32" for name in larger if name not in infinite
        ]
    problems = []
    for name, shape in expected.items():
        array = found.get(name)
        if array is None:
            problems.append(f"'{name}' is missing, expected shape {shape}")
        elif array.dtype.kind not in kinds:
            wanted = "floats" if kinds == "f" else "numbers"
            problems.append(f"'{name}' must hold {wanted}, found dtype {array.dtype}")
        elif array.shape != tuple(shape):
            problems.append(f"'{name}' has shape {array.shape}, expected {tuple(shape)}")
    return problems + [
        f"'{name}' is not expected, found shape {array.shape}"
        for name, array in found.items()
        if name not in expected
    ]


def misfit_error(name, problems, fits="what was expected", advice="Fetch it again"):
    """Return the ``ValueError`` for the problems that ``misfits`` found in a file."""
    more = len(problems) - _MOST_PROBLEMS
    shown = problems[:_MOST_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
    return ValueError(
        f"{name} does not fit {fits}, nothing was loaded. Received: {'; '.join(shown)}. {advice}"
    )
