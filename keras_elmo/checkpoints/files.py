"""Options and weight files, read whole and written whole."""

import contextlib
import json
import os
import pathlib
import tempfile

import h5py
import numpy as np


def read_options(file, origin: str) -> dict:
    """Read an options file.

    Args:
        file: Path or binary file object.
        origin: Name of the file, for errors.

    Returns:
        The decoded JSON object.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not JSON.
    """
    if isinstance(file, dict):
        raise ValueError(
            "Expected the path of an options file. Received: a dict. For a layer with random "
            "weights use ElmoLayer(BiLMConfig.from_options(options))"
        )
    try:
        content = file.read() if hasattr(file, "read") else pathlib.Path(file).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"Options file {origin} does not exist") from None
    try:
        return json.loads(content)
    except ValueError as error:
        raise ValueError(f"Options file {origin} is not JSON: {error}") from error


def read_hdf5(file, origin: str) -> dict:
    """Read all tensors of an hdf5 file.

    Args:
        file: Path or binary file object.
        origin: Name of the file, for errors.

    Returns:
        Dict of NumPy arrays by name.

    Raises:
        FileNotFoundError: If there is no such file.
        OSError: If it is not an hdf5 file, or not a whole one.
    """
    arrays = {}

    def read(name, item):
        if isinstance(item, h5py.Dataset):
            arrays[name] = np.asarray(item[()])

    try:
        with h5py.File(file, "r") as weights:
            weights.visititems(read)
    except FileNotFoundError:
        raise FileNotFoundError(f"Weight file {origin} does not exist") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"Weight file {origin} is a directory") from None
    except (OSError, RuntimeError, KeyError) as error:
        raise OSError(
            f"Weight file {origin} is damaged or not an hdf5 file ({error}). Fetch it again"
        ) from error
    return arrays


def write_hdf5(file, arrays: dict) -> None:
    """Write arrays as the datasets of an hdf5 file."""
    with h5py.File(file, "w") as weights:
        for name, array in arrays.items():
            weights.create_dataset(name, data=array)


@contextlib.contextmanager
def atomic_write(*paths):
    """Yield temporary paths in the same folders, which replace ``paths`` if all goes well.

    Example:

    >>> with atomic_write("options.json") as (temporary,):
    ...     temporary.write_text("{}")
    2
    """
    paths = [pathlib.Path(path) for path in paths]
    temporary = []
    try:
        for path in paths:
            handle, name = tempfile.mkstemp(prefix=path.name + ".", suffix=".tmp", dir=path.parent)
            os.close(handle)
            temporary.append(pathlib.Path(name))
        yield temporary
        for source, path in zip(temporary, paths, strict=True):
            os.chmod(source, 0o644)
            os.replace(source, path)
    finally:
        for source in temporary:
            source.unlink(missing_ok=True)


replacing = atomic_write
