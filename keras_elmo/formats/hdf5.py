"""Read and write hdf5 files. Every dataset is checked before it is read.

An hdf5 file can refer to other files, define datasets in terms of themselves, or declare
terabytes in a kilobyte. This module accepts arrays of numbers, and text where a caller asks for
text. It refuses everything else and names the dataset.

An ``OSError`` means that a file is missing or damaged, a ``ValueError`` that its content is not
the expected one. Both name the file.
"""

import contextlib
import io
import math
import os
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from keras_elmo.formats.checks import Declared, check_tensors, largest_size
from keras_elmo.utils.files import PathLike, check_file, local_path

_NUMBERS = (h5py.h5t.INTEGER, h5py.h5t.FLOAT)
_LARGEST_CHUNK = 16 << 20  # unless the dataset itself is larger
_MOST_NAMES = 100_000
_DEEPEST_NAME = 16


def read_arrays(
    file: PathLike, expected: dict | None = None, *, kind: str = "Weight file", **texts: str
) -> dict[str, np.ndarray]:
    """Read all datasets of a file, as ``Hdf5Reader.read_all`` does."""
    with Hdf5Reader(file, kind) as opened:
        return opened.read_all(expected, **texts)


def write_arrays(
    file: PathLike, arrays: dict, attributes: dict | None = None, **filters: Any
) -> None:
    """Write arrays and attributes by name. Pass ``filters`` to ``create_dataset``."""
    with create_hdf5(file) as opened:
        opened.attrs.update(attributes or {})
        for name, array in arrays.items():
            opened.create_dataset(name, data=array, **filters)


@contextlib.contextmanager
def create_hdf5(file: PathLike) -> Iterator[h5py.File]:
    """Open a new hdf5 file for writing. An ``OSError``, as of a full disk, is raised at the end.

    HDF5 can crash the process after an exception inside its writes. It therefore writes through an
    object that never fails, and the error is raised when the file is closed.
    """
    output = _Output(file, "w+")
    try:
        with h5py.File(output, "w") as opened:
            yield opened
    finally:
        output.close()
        if output.error:
            raise output.error


class _Output(io.FileIO):
    """A new file that keeps the first error of writing, and drops what comes after it."""

    error: BaseException | None = None

    def write(self, data: Any) -> int:
        end = self.tell() + len(data)
        try:
            rest = memoryview(data)
            while rest and not self.error:
                rest = rest[super().write(rest) :]
        except BaseException as error:  # also an interrupt
            self.error = error
        self.seek(end)
        return len(data)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        n = super().readinto(view) or 0
        view[n:] = bytes(len(view) - n)  # dropped data
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except BaseException as error:
            self.error = self.error or error
            return self.tell()


class Hdf5Reader:
    """An hdf5 file that is open for reading. Use it in ``with``, or close it.

    Errors contain the ``kind`` and the name of the file, and the ``remedy``.
    """

    def __init__(
        self, file: PathLike, kind: str = "Weight file", remedy: str = "Fetch it again"
    ) -> None:
        self.name = f"{kind} {file}"
        self._remedy = remedy
        self._path = local_path(file)
        with self._renamed_errors():
            check_file(self._path, self.name)
            self._size = os.path.getsize(self._path)
            self._file = h5py.File(self._path, "r")

    def __enter__(self) -> "Hdf5Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._renamed_errors():
            self._file.close()

    def names(self, group: str = "") -> list[str]:
        """Return the names of the groups and datasets in a group, without its subgroups."""
        with self._renamed_errors():
            names = list(self._open(group))
        for name in names:
            if isinstance(name, bytes):
                raise ValueError(f"{self.name} must have names in UTF-8. Received: {name!r}")
        return names

    def walk(self, most: int = _MOST_NAMES) -> list[str]:
        """Return the names of all datasets, as ``group/dataset``, of at most ``most`` names."""
        datasets: list[str] = []
        groups, seen = [""], 0
        while groups:
            group = groups.pop()
            with self._renamed_errors():
                parent = self._open(group).id
            for inner in self.names(group):
                name = f"{group}/{inner}".removeprefix("/")
                seen += 1
                if seen > most or name.count("/") > _DEEPEST_NAME:
                    raise ValueError(
                        f"{self.name} must not contain more than {most} names, nested "
                        f"{_DEEPEST_NAME} deep. Received: '{name[:60]}' beyond that"
                    )
                # Opening each dataset takes 20 times longer.
                with self._renamed_errors():
                    if parent.links.get_info(inner.encode()).type != h5py.h5l.TYPE_HARD:
                        raise self._refusal("a link", name)
                    kind = h5py.h5o.get_info(parent, inner.encode()).type
                (groups if kind == h5py.h5o.TYPE_GROUP else datasets).append(name)
        return sorted(datasets)

    def declared(self, name: str) -> Declared:
        """Check a dataset of numbers or text, and return the shape and dtype it declares."""
        with self._renamed_errors():
            dataset = self._dataset(name)
            return Declared(dataset.shape, dataset.dtype)

    def read(self, name: str, kinds: str = "fiu") -> np.ndarray:
        """Read a dataset of finite numbers, of some kinds of NumPy dtypes."""
        declared = self.declared(name)
        return self._read({name: declared}, {name: declared.shape}, kinds)[name]

    def read_again(self, name: str) -> np.ndarray:
        """Read a dataset without checks. ``read`` must have read it while the file was open."""
        with self._renamed_errors():
            dataset = h5py.h5d.open(self._file.id, name.encode())
            # PyTorch takes native byte order only.
            array = np.empty(dataset.shape, dataset.dtype.newbyteorder("="))
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
        return array

    def read_all(self, expected: dict | None = None, **texts: str) -> dict[str, np.ndarray]:
        """Read all datasets, which must be finite floats of the expected shapes, by name.

        The ``texts`` are ``fits`` and ``remedy`` of ``check_tensors``.
        """
        declared = {name: self.declared(name) for name in self.walk()}
        if expected is None:
            expected = {name: found.shape for name, found in declared.items()}
        return self._read(declared, expected, "f", **texts)

    def _read(
        self, declared: dict[str, Declared], expected: dict, kinds: str, **texts: str
    ) -> dict[str, np.ndarray]:
        texts = {"fits": "what was expected", "remedy": self._remedy, **texts}
        check_tensors(self.name, declared, expected, kinds=kinds, **texts)
        total = sum(found.nbytes for found in declared.values())
        if total > largest_size(self._size):
            raise self._refusal(f"{total} bytes in a file of {self._size} bytes", "all datasets")
        arrays = {name: self.read_again(name) for name in declared}
        check_tensors(self.name, arrays, expected, kinds=kinds, **texts)
        return arrays

    def read_strings(self, name: str, start: int = 0, stop: int | None = None) -> list[str]:
        """Read texts of a one-dimensional dataset. A scalar text is a list of one."""
        with self._renamed_errors():
            dataset = self._dataset(name)
            if dataset.id.get_type().get_class() != h5py.h5t.STRING or dataset.ndim > 1:
                raise ValueError(
                    f"{self.name} must contain a list of text in '{name}'. Received: numbers"
                )
            length = len(dataset) if dataset.ndim else 1
            stop = length if stop is None else min(stop, length)
            strings: list[str] = []
            total = 0
            # All elements can refer to one long text: read a few at a time, and count the bytes.
            for first in range(start, stop, 64):
                part = dataset[first : min(first + 64, stop)] if dataset.ndim else [dataset[()]]
                part = [text if isinstance(text, bytes) else bytes(text) for text in part]
                strings += [text.decode("utf-8") for text in part]
                total += sum(map(len, part))
                if total > largest_size(self._size):
                    raise self._refusal("more text than the file has room for", name)
        return strings

    def attribute(self, name: str) -> Any:
        """Return an attribute of the file, which must be a str or a number."""
        with self._renamed_errors():
            found = "none"
            if name in self._file.attrs:
                stored, found = self._file.attrs.get_id(name), "another type"
                kind = stored.get_type().get_class()
                if stored.shape == () and kind == h5py.h5t.STRING:
                    value = self._file.attrs[name]
                    return (value if isinstance(value, bytes) else value.encode()).decode()
                if stored.shape == () and kind in _NUMBERS:
                    return self._file.attrs[name].item()
            raise ValueError(
                f"{self.name} must have the attribute '{name}', text or a number. "
                f"Received: {found}. {self._remedy}"
            )

    def copy(self, name: str, target: h5py.File) -> None:
        """Copy a dataset, still compressed, into an ``h5py.File`` that is open for writing."""
        with self._renamed_errors():
            self._file.copy(self._dataset(name), target, name)

    def _open(self, name: str) -> Any:
        """Return a group or dataset. Follow hard links only."""
        item = self._file
        for part in name.split("/") if name else ():
            if not (isinstance(item, h5py.Group) and item.id.links.exists(part.encode())):
                raise ValueError(
                    f"{self.name} must contain '{name}'. Received: a file without it. "
                    f"{self._remedy}"
                )
            if item.id.links.get_info(part.encode()).type != h5py.h5l.TYPE_HARD:
                raise self._refusal("a link", name)
            item = item[part]
        if not isinstance(item, h5py.Group | h5py.Dataset):
            raise self._refusal("a named type", name)
        return item

    def _dataset(self, name: str) -> h5py.Dataset:
        """Return a dataset that this file stores completely, in about the size it declares."""
        dataset = self._open(name)
        problem = "a group" if isinstance(dataset, h5py.Group) else self._problem(dataset)
        if problem:
            raise self._refusal(problem, name)
        return dataset

    def _problem(self, dataset: h5py.Dataset) -> str | None:
        """Return why a dataset is refused, or None."""
        properties, stored_type = dataset.id.get_create_plist(), dataset.id.get_type()
        layout = properties.get_layout()
        if layout == h5py.h5d.VIRTUAL:
            return "a virtual dataset"
        if properties.get_external_count():
            return "a dataset stored in another file"
        if stored_type.get_class() not in (*_NUMBERS, h5py.h5t.STRING):
            return "values other than numbers or text"
        if dataset.shape is None:
            return "a dataset without a shape"
        nbytes = math.prod(dataset.shape) * stored_type.get_size()
        stored = dataset.id.get_storage_size()
        if stored > self._size or nbytes > largest_size(stored):
            return f"shape {dataset.shape} in {stored} bytes of a file of {self._size} bytes"
        if layout != h5py.h5d.CHUNKED:
            return "a dataset that was never written" if stored < nbytes else None
        chunk = math.prod(dataset.chunks) * stored_type.get_size()
        if chunk > max(nbytes, _LARGEST_CHUNK):
            return f"chunks of {chunk} bytes"
        pairs = zip(dataset.shape, dataset.chunks, strict=True)
        if dataset.id.get_num_chunks() != math.prod(-(-size // part) for size, part in pairs):
            return "a dataset that was never completely written"
        return None

    def _refusal(self, problem: str, name: str) -> ValueError:
        return ValueError(
            f"{self.name} must contain plain datasets, completely written and stored in this file. "
            f"Received: {problem}, '{name}'. {self._remedy}"
        )

    @contextlib.contextmanager
    def _renamed_errors(self) -> Iterator[None]:
        """Replace errors of h5py, of any type, by an ``OSError`` that names the file."""
        try:
            yield
        except PermissionError as error:
            raise PermissionError(f"{self.name} cannot be read ({error.strerror})") from None
        except BlockingIOError as error:
            raise OSError(f"{self.name} is being written by another process") from error
        except Exception as error:
            if str(error).startswith(self.name):  # an error of this module
                raise
            reason = " ".join(str(error).split())[:300]
            raise OSError(
                f"{self.name} is damaged or not an hdf5 file ({reason}). {self._remedy}"
            ) from error
