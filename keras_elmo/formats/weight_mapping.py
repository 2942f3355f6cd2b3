"""Weight mappings: which tensor of a file belongs to which variable, and how the layout changes."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np

from keras_elmo.formats.checks import Arrays, Shape


@dataclasses.dataclass(frozen=True)
class Transform:
    """A change of layout.

    ``load`` makes the arrays of our variables from a tensor of a file, and ``save`` inverts it.
    """

    load: Callable[[np.ndarray], tuple[np.ndarray, ...]]
    save: Callable[..., np.ndarray]


@dataclasses.dataclass(frozen=True)
class MappedTensor:
    """A tensor of a file, with its name and shape, and the variables it belongs to.

    ``targets`` are the paths of the variables, relative to the layer.
    """

    source: str
    shape: Shape
    transform: Transform
    targets: tuple[str, ...]


class WeightMapping(list[MappedTensor]):
    """The tensors of a file."""

    def add(self, source: str, shape: Shape, transform: Transform, *targets: str) -> None:
        """Add a tensor. For the arguments see ``MappedTensor``."""
        self.append(MappedTensor(source, shape, transform, targets))


def variables_by_path(layer: Any) -> dict[str, Any]:
    """Return the variables of a built layer. Keys are their paths, relative to the layer."""
    return {v.path.removeprefix(layer.path + "/"): v for v in layer.variables}


def load(mapping: Iterable[MappedTensor], arrays: Arrays) -> dict[str, np.ndarray]:
    """Return the values of our variables by path, from the tensors of a file."""
    values: dict[str, np.ndarray] = {}
    for tensor in mapping:
        loaded = tensor.transform.load(arrays[tensor.source])
        values.update(zip(tensor.targets, loaded, strict=True))
    return values


def extract(mapping: WeightMapping, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of a file by name, in float32, from our variables. Inverts ``load``."""
    return {
        tensor.source: tensor.transform.save(*(to_float32(variables[p]) for p in tensor.targets))
        for tensor in mapping
    }


def expected_shapes(mapping: WeightMapping) -> dict[str, Shape]:
    """Return the shape of every tensor of a file, by name."""
    return {tensor.source: tensor.shape for tensor in mapping}


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
    return keras.ops.convert_to_numpy(keras.ops.cast(value.value, "float32"))
