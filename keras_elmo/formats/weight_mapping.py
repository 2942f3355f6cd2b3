"""Weight tables as data: which tensor of a file belongs to which variable, and how it changes."""

import dataclasses
import hashlib
from collections.abc import Callable

import numpy as np

from keras_elmo.formats.hdf5 import misfit_error, misfits

# What to say of a weight file that is not of the options.
WORDS = {"fits": "the options", "advice": "Do the options and weight files belong together?"}


@dataclasses.dataclass(frozen=True)
class Transform:
    """A change of layout between a file and our variables, and its inverse.

    Attributes:
        name: What errors call it.
        load: Takes the arrays of the sources, returns a tuple of those of the targets.
        save: Takes the arrays of the targets, returns a tuple of those of the sources.
    """

    name: str
    load: Callable
    save: Callable


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a weight table.

    Attributes:
        sources: Names of the tensors in the file.
        targets: Paths of the variables, relative to the layer that owns the table.
        transform: The ``Transform`` between the two.
        shapes: Shapes of the tensors in the file.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    transform: Transform
    shapes: tuple[tuple[int, ...], ...]


def variables_by_path(layer) -> dict:
    """Return the variables of a built layer by their path below it."""
    return {v.path.removeprefix(layer.path + "/"): v for v in layer.variables}


def assign(rows, arrays: dict, variables: dict, origin: str) -> None:
    """Copy the tensors of a file into variables: all of them, or none.

    Args:
        rows: The weight table.
        arrays: Tensors of the file by name, NumPy.
        variables: Keras variables by path.
        origin: Name of the file, for errors.

    Raises:
        ValueError: If a tensor is missing, left over, of another shape or type than
            expected, or not finite. One error names all such tensors.
    """
    expected = expected_shapes(rows)
    known = {name: array for name, array in arrays.items() if name in expected}
    if problems := misfits(expected, arrays) + misfits({}, known, values_only=True):
        raise misfit_error(f"Weight file {origin}", problems, **WORDS)
    for path, array in load(rows, arrays).items():
        variables[path].assign(array)


def load(rows, arrays: dict) -> dict:
    """Return the values of our variables by path, NumPy, for the tensors of a file."""
    values: dict = {}
    for row in rows:
        loaded = row.transform.load(*(arrays[name] for name in row.sources))
        values.update(zip(row.targets, loaded, strict=True))
    return values


def extract(rows, variables: dict) -> dict:
    """Return the tensors that a file holds, float32 NumPy by name: the inverse of ``assign``."""
    arrays: dict = {}
    for row in rows:
        saved = row.transform.save(*(to_float32(variables[path]) for path in row.targets))
        arrays.update(zip(row.sources, saved, strict=True))
    return arrays


def expected_shapes(rows) -> dict:
    """Return the shape of every tensor of a file, by name."""
    return {name: shape for row in rows for name, shape in zip(row.sources, row.shapes)}


def fingerprint(values: dict) -> str:
    """Return the SHA-256 of the values, shapes and paths of variables or arrays, in hexadecimal."""
    digest = hashlib.sha256()
    for path in sorted(values):
        array = to_float32(values[path])
        digest.update(f"{path} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def to_float32(value) -> np.ndarray:
    """Return a NumPy array, or the value of a Keras variable, as float32 NumPy."""
    if isinstance(value, np.ndarray):
        return value.astype("float32")
    import keras

    return keras.ops.convert_to_numpy(keras.ops.cast(value.value, "float32"))
