"""Read and write hdf5 files.

An ``OSError`` means that a file is missing or damaged, a ``ValueError`` that its content is not
the expected one. Both name the file.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from keras_elmo.formats.checks import check_tensors
from keras_elmo.utils.checks import invalid, shorten
from keras_elmo.utils.files import PathLike, check_file, local_path

# HDF5 writes some data only when the file is closed.
_ROOM_TO_CLOSE = 16 << 20


def read_arrays(
    file: PathLike, expected: dict | None = None, kind: str = "Weight file", kinds: str = "f"
) -> dict[str, np.ndarray]:
    """Read all datasets, which must be finite numbers of the expected shapes, by name.

    ``kind`` names the file in errors. ``kinds`` are the allowed kinds of NumPy dtypes.
    """
    with Hdf5Reader(file, kind) as opened:
        datasets = {name: opened.declared(name) for name in opened.dataset_names()}
        if expected is None:
            expected = {name: dataset.shape for name, dataset in datasets.items()}
        check_tensors(opened.name, datasets, expected, kinds)
        arrays = {name: opened.read(name) for name in datasets}
    check_tensors(opened.name, arrays, expected, kinds)
    return arrays


def write_arrays(file: PathLike, arrays: dict, **filters: Any) -> None:
    """Write arrays by name. Pass ``filters`` to ``create_dataset``."""
    with h5py.File(file, "w") as opened:
        for name, array in arrays.items():
            add_dataset(opened, name, array, **filters)


def add_dataset(file: h5py.File, name: str, array: np.ndarray, **filters: Any) -> None:
    """Add a dataset to a file that is open for writing."""
    check_room(file, array.nbytes)
    file.create_dataset(name, data=array, **filters)


def check_room(file: h5py.File, n_bytes: int) -> None:
    """Raise an ``OSError`` if the disk is too full to write. HDF5 would crash the process."""
    if shutil.disk_usage(file.filename).free < n_bytes + _ROOM_TO_CLOSE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.filename)


class Hdf5Reader:
    """An hdf5 file that is open for reading. Use it in ``with``, or close it.

    Errors contain the ``kind`` and the name of the file, and the ``remedy``.
    """

    def __init__(
        self, file: PathLike, kind: str = "Weight file", remedy: str = "Fetch it again"
    ) -> None:
        self.name = f"{kind} {file}"
        self._remedy = remedy
        check_file(file, self.name)
        with self._renamed_errors():
            self._file = h5py.File(local_path(file), "r")

    def __enter__(self) -> "Hdf5Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def dataset_names(self) -> list[str]:
        """Return the names of all datasets, in groups too."""
        names: list[str] = []
        with self._renamed_errors():
            self._file.visit(names.append)  # opening each item would take 20 times longer
        groups = {name.rpartition("/")[0] for name in names}
        return [name for name in names if name not in groups]

    def names(self) -> list[str]:
        """Return the names of the groups and datasets, without those inside groups."""
        with self._renamed_errors():
            return list(self._file)

    def declared(self, name: str) -> h5py.Dataset:
        """Return a dataset, whose shape and dtype can be checked before it is read."""
        with self._renamed_errors():
            dataset = self._file.get(name)
            if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
                expected = f"{self.name} must contain the dataset '{name}'"
                raise invalid(expected, "a file without it", self._remedy)
            # HDF5 reads zeros, of any size, where an unfinished file stores nothing.
            if dataset.size and not dataset.id.get_storage_size():
                raise OSError(f"{self.name} is damaged: '{name}' is not stored. {self._remedy}")
        return dataset

    def read(self, name: str) -> np.ndarray:
        """Read a dataset."""
        dataset = self.declared(name)
        with self._renamed_errors():
            # PyTorch takes native byte order only.
            return np.asarray(dataset.astype(dataset.dtype.newbyteorder("="))[()])

    def read_strings(self, name: str, start: int = 0, stop: int | None = None) -> list[str]:
        """Read texts of a one-dimensional dataset."""
        dataset = self.declared(name)
        if h5py.check_string_dtype(dataset.dtype) is None or dataset.ndim != 1:
            raise invalid(f"{self.name} must contain a list of text in '{name}'", "numbers")
        with self._renamed_errors():
            return [bytes(row).decode("utf-8") for row in dataset[start:stop]]

    def attribute(self, name: str) -> str:
        """Return an attribute of the file, which must be text."""
        with self._renamed_errors():
            value = self._file.attrs.get(name)
        if not isinstance(value, str):
            expected = f"{self.name} must have text as its attribute '{name}'"
            raise invalid(expected, shorten(value), self._remedy)
        return value

    def copy(self, name: str, target: h5py.File) -> None:
        """Copy a dataset, still compressed, into an ``h5py.File`` that is open for writing."""
        dataset = self.declared(name)
        check_room(target, dataset.nbytes)
        self._file.copy(dataset, target, name)  # an error may be the target's

    @contextlib.contextmanager
    def _renamed_errors(self) -> Iterator[None]:
        """Replace errors of h5py, of any type, by an ``OSError`` that names the file."""
        try:
            yield
        except Exception as error:
            if str(error).startswith(self.name):  # an error of this module
                raise
            reason = " ".join(str(error).split())[:300]
            is_locked = isinstance(error, BlockingIOError)
            advice = "Another process is writing it" if is_locked else self._remedy
            raise OSError(
                f"{self.name} is damaged or not an hdf5 file ({reason}). {advice}"
            ) from error
