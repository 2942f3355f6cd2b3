"""Weight mappings: which tensor of a file belongs to which variable, and how the layout changes.

A layout is a table with a row for each kind of tensor. ``make_mapping`` fills in the numbers and
sizes of a config.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_elmo.config import DIRECTIONS, BiLMConfig
from keras_elmo.formats.checks import Shape


@dataclasses.dataclass(frozen=True)
class Transform:
    """A change of layout.

    ``load`` makes the arrays of our variables from a tensor of a file. ``save`` inverts it, and is
    None for formats that are only read.
    """

    load: Callable[[np.ndarray], tuple[np.ndarray, ...]]
    save: Callable[..., np.ndarray] | None = None


@dataclasses.dataclass(frozen=True)
class MappedTensor:
    """A tensor of a file, with its name and shape, and the variables it belongs to.

    ``targets`` are the paths of the variables, relative to the ``BiLM``.
    """

    source: str
    shape: Shape
    transform: Transform
    targets: tuple[str, ...]


WeightMapping: TypeAlias = list[MappedTensor]

# A row has the name of a tensor, its axes, the change of layout, and the paths of the variables.
#
# In names and paths:
#   {i} {k} {l} {d}   number, from 0, of a convolution, highway layer, LSTM layer, direction
#   {layer}           number of an LSTM layer, from 1
#   {direction}       "forward" or "backward"
# In axes, with a factor as in 4D, or a sum as in v+F:
#   D P       cells of an LSTM, features of its output
#   F n w     filters in all; filters of one convolution, their width
#   C c e     characters with and without the padding, features of a character
#   V v       words, features of a word
Layout: TypeAlias = Sequence[tuple[Any, ...]]

AS_IS = Transform(load=lambda x: (x,), save=lambda x: x)


def make_mapping(layout: Layout, config: BiLMConfig, prefix: str = "") -> WeightMapping:
    """Return the mapping of all tensors of a config. Their names begin with ``prefix``."""
    sizes = {
        "e": config.character_embedding_dim,
        "C": config.n_characters,
        "c": config.n_characters - 1,
        "F": config.n_filters,
        "D": config.lstm_dim,
        "P": config.projection_dim,
        "V": config.alphabet.n_words,
        "v": config.alphabet.word_dim,
    }
    return [
        MappedTensor(
            prefix + source.format(**numbers),
            tuple(_axis_size(axis, sizes | numbers) for axis in axes.split()),
            transform,
            tuple(target.format(**numbers) for target in targets),
        )
        for source, axes, transform, *targets in layout
        for numbers in _numbers(targets[0], config)
    ]


def _numbers(target: str, config: BiLMConfig) -> list[dict[str, Any]]:
    """Return the numbers to fill in for each variable of a kind; none if it does not exist."""
    if "{i}" in target:
        return [{"i": i, "w": w, "n": n} for i, (w, n) in enumerate(config.filters)]
    if "{k}" in target:
        return [{"k": k} for k in range(config.n_highway)]
    if "{layer}" in target:
        if "projection" in target and config.projection_dim == config.lstm_dim:
            return []
        return [
            {"d": d, "direction": direction, "l": layer, "layer": layer + 1}
            for d, direction in enumerate(DIRECTIONS)
            for layer in range(config.n_layers)
        ]
    if "word" in target and not config.alphabet.n_words:
        return []
    if "projection" in target and not config.has_projection:
        return []
    return [{}]


def _axis_size(axis: str, sizes: Mapping[str, Any]) -> int:
    """Return the size of an axis, such as ``"4D"`` or ``"v+F"``."""
    size = 0
    for term in axis.split("+"):
        factor, name = re.fullmatch(r"(\d*)(\D*)", term).groups()  # type: ignore[union-attr]
        size += int(factor or 1) * (sizes[name] if name else 1)
    return size


def variables_by_path(layer: Any) -> dict[str, Any]:
    """Return the variables of a built layer. Keys are their paths, relative to the layer."""
    return {v.path.removeprefix(layer.path + "/"): v for v in layer.variables}


def load(mapping: WeightMapping, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the values of our variables by path. Remove each tensor of the file from ``arrays``.

    So only one tensor is in memory twice.
    """
    values: dict[str, np.ndarray] = {}
    for tensor in mapping:
        loaded = tensor.transform.load(arrays.pop(tensor.source))
        values.update(zip(tensor.targets, loaded, strict=True))
    return values


def extract(mapping: WeightMapping, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of a file by name, in float32, from our variables. Inverts ``load``."""
    return {
        tensor.source: tensor.transform.save(  # type: ignore[misc]
            *(to_float32(variables[path]) for path in tensor.targets)
        )
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
    return np.asarray(value, "float32")
