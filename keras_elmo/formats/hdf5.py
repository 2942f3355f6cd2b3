"""Read and write hdf5 files.

An ``OSError`` means that a file is missing or damaged, a ``ValueError`` that its content is not
the expected one. Both name the file.
"""

from contextlib import AbstractContextManager
from typing import Any

import h5py
import numpy as np

from keras_elmo.formats.checks import check_tensors
from keras_elmo.utils.checks import invalid, shorten
from keras_elmo.utils.files import PathLike, check_file, library_errors, local_path


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
            opened.create_dataset(name, data=array, **filters)


class Hdf5Reader(AbstractContextManager):
    """An hdf5 file that is open for reading until its ``with`` block ends.

    Errors contain the ``kind`` and the name of the file, and the ``remedy``.
    """

    def __init__(
        self, file: PathLike, kind: str = "Weight file", remedy: str = "Fetch it again"
    ) -> None:
        self.name = f"{kind} {file}"
        self._remedy = remedy
        check_file(file, self.name)
        with self._library_errors():
            self._file = h5py.File(local_path(file), "r")

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def dataset_names(self) -> list[str]:
        """Return the names of all datasets, in groups too."""
        names: list[str] = []
        with self._library_errors():
            self._file.visit(names.append)  # opening each item would take 20 times longer
        groups = {name.rpartition("/")[0] for name in names}
        return [name for name in names if name not in groups]

    def declared(self, name: str) -> h5py.Dataset:
        """Return a dataset, whose shape and dtype can be checked before it is read."""
        with self._library_errors():
            dataset = self._file.get(name)
            is_dataset = isinstance(dataset, h5py.Dataset) and dataset.shape is not None
            # HDF5 reads zeros, of any size, where an unfinished file stores nothing.
            is_stored = is_dataset and (not dataset.size or dataset.id.get_storage_size())
        if not is_dataset:
            expected = f"{self.name} must contain the dataset '{name}'"
            raise invalid(expected, "a file without it", self._remedy)
        if not is_stored:
            raise OSError(f"{self.name} is damaged: '{name}' is not stored. {self._remedy}")
        return dataset

    def read(self, name: str) -> np.ndarray:
        """Read a dataset."""
        dataset = self.declared(name)
        with self._library_errors():
            # PyTorch takes native byte order only.
            return np.asarray(dataset.astype(dataset.dtype.newbyteorder("="))[()])

    def read_strings(self, name: str) -> list[str]:
        """Read texts of a one-dimensional dataset."""
        dataset = self.declared(name)
        if h5py.check_string_dtype(dataset.dtype) is None or dataset.ndim != 1:
            raise invalid(f"{self.name} must contain a list of text in '{name}'", "numbers")
        with self._library_errors():
            return [bytes(row).decode("utf-8") for row in dataset[()]]

    def attribute(self, name: str) -> str:
        """Return an attribute of the file, which must be text."""
        with self._library_errors():
            value = self._file.attrs.get(name)
        if not isinstance(value, str):
            expected = f"{self.name} must have text as its attribute '{name}'"
            raise invalid(expected, shorten(value), self._remedy)
        return value

    def copy(self, name: str, target: h5py.File) -> None:
        """Copy a dataset, still compressed, into an ``h5py.File`` that is open for writing."""
        dataset = self.declared(name)
        self._file.copy(dataset, target, name)  # an error may be the target's

    def _library_errors(self) -> AbstractContextManager:
        """Replace errors of h5py, of any type, by an ``OSError`` that names the file."""
        return library_errors(f"{self.name} is damaged or not an hdf5 file", self._remedy)
