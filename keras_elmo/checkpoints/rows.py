"""Weight tables as data: which tensor of a file belongs to which variable, and how it changes."""

import dataclasses
import hashlib
from collections.abc import Callable

import keras
import numpy as np


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
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    transform: Transform


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
    problems = []
    expected = expected_shapes(rows, variables)
    for name, shape in expected.items():
        array = arrays.get(name)
        if array is None:
            problems.append(f"'{name}' is missing, expected shape {shape}")
        elif array.dtype.kind != "f":
            problems.append(f"'{name}' must hold floats, found dtype {array.dtype}")
        elif array.shape != shape:
            problems.append(f"'{name}' has shape {array.shape}, expected {shape}")
        elif not np.isfinite(array).all():
            problems.append(f"'{name}' holds NaN or infinite values")
    problems += [
        f"'{name}' is not part of this biLM, found shape {array.shape}"
        for name, array in arrays.items()
        if name not in expected
    ]
    if problems:
        raise ValueError(
            f"Weight file {origin} does not fit the options, nothing was loaded. Received: "
            + "; ".join(problems)
            + ". Do the options and weight files belong together?"
        )
    for row in rows:
        loaded = row.transform.load(*(arrays[name] for name in row.sources))
        for path, array in zip(row.targets, loaded, strict=True):
            variables[path].assign(array)


def extract(rows, variables: dict) -> dict:
    """Return the tensors that a file holds, float32 NumPy by name: the inverse of ``assign``."""
    arrays = {}
    for row in rows:
        saved = row.transform.save(*(to_float32(variables[path]) for path in row.targets))
        arrays.update(zip(row.sources, saved, strict=True))
    return arrays


def expected_shapes(rows, variables: dict) -> dict:
    """Return the shape of every tensor that ``assign`` wants, by name."""
    shapes = {}
    for row in rows:
        blanks = (np.empty(tuple(variables[path].shape), "float32") for path in row.targets)
        for name, blank in zip(row.sources, row.transform.save(*blanks), strict=True):
            shapes[name] = blank.shape
    return shapes


def fingerprint(variables: dict) -> str:
    """Return the SHA-256 of the values, shapes and paths of variables, in hexadecimal."""
    digest = hashlib.sha256()
    for path in sorted(variables):
        array = to_float32(variables[path])
        digest.update(f"{path} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def to_float32(variable) -> np.ndarray:
    """Return the value of a Keras variable as float32 NumPy."""
    return keras.ops.convert_to_numpy(keras.ops.cast(variable.value, "float32"))
