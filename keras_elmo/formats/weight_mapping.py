"""Weight mappings: which tensor of a file belongs to which variable, and how the layout changes."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from keras_elmo.formats.checks import check_tensors


@dataclasses.dataclass(frozen=True)
class Transform:
    """A change of layout between a file and our variables, and its inverse.

    Attributes:
        name: str. Name of the change, for errors.
        load: function. Takes the arrays of the file, returns a tuple of arrays for the variables.
        save: function. Takes the arrays of the variables, returns a tuple of arrays for the file.
    """

    name: str
    load: Callable[..., tuple[np.ndarray, ...]]
    save: Callable[..., tuple[np.ndarray, ...]]


@dataclasses.dataclass(frozen=True)
class MappedTensor:
    """One line of a weight mapping: tensors of a file and the variables they belong to.

    Attributes:
        sources: tuple of str. Names of the tensors in the file.
        targets: tuple of str. Paths of the variables, relative to the layer of the mapping.
        transform: ``Transform`` between the two.
        shapes: tuple of tuples. Shapes of the tensors in the file.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    transform: Transform
    shapes: tuple[tuple[int, ...], ...]


def one_to_one(
    source: str, target: str, transform: Transform, shape: tuple[int, ...]
) -> MappedTensor:
    """Return the line of a mapping for one tensor and one variable."""
    return MappedTensor((source,), (target,), transform, (shape,))


def variables_by_path(layer: Any) -> dict[str, Any]:
    """Return the variables of a built layer. Keys are their paths, relative to the layer."""
    return {v.path.removeprefix(layer.path + "/"): v for v in layer.variables}


def assign(
    mapping: Iterable[MappedTensor],
    arrays: Mapping[str, np.ndarray],
    variables: Mapping[str, Any],
    file_name: str,
) -> None:
    """Copy the tensors of a file into variables by path: all of them or none.

    The errors are those of ``check_tensors``. They contain ``file_name``.
    """
    mapping = list(mapping)
    check_tensors(f"Weight file {file_name}", arrays, expected_shapes(mapping))
    for path, array in load(mapping, arrays).items():
        variables[path].assign(array)


def load(
    mapping: Iterable[MappedTensor], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the values of our variables by path, from the tensors of a file."""
    values: dict[str, np.ndarray] = {}
    for tensor in mapping:
        loaded = tensor.transform.load(*(arrays[name] for name in tensor.sources))
        values.update(zip(tensor.targets, loaded, strict=True))
    return values


def extract(mapping: Iterable[MappedTensor], variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of a file, float32 by name, from our variables. Inverts ``assign``."""
    arrays: dict[str, np.ndarray] = {}
    for tensor in mapping:
        saved = tensor.transform.save(*(to_float32(variables[path]) for path in tensor.targets))
        arrays.update(zip(tensor.sources, saved, strict=True))
    return arrays


def expected_shapes(mapping: Iterable[MappedTensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a file, by name."""
    return {name: shape for tensor in mapping for name, shape in zip(tensor.sources, tensor.shapes)}


def fingerprint(values: Mapping[str, Any]) -> str:
    """Return a SHA-256, in hexadecimal, of variables or arrays: their paths, shapes and values."""
    digest = hashlib.sha256()
    for path in sorted(values):
        array = to_float32(values[path])
        digest.update(f"{path} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def to_float32(value: Any) -> np.ndarray:
    """Return a NumPy array, or the value of a Keras variable, as a float32 array."""
    if isinstance(value, np.ndarray):
        return value.astype("float32")
    import keras

    return keras.ops.convert_to_numpy(keras.ops.cast(value.value, "float32"))
