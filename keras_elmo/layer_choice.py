"""Which layers of a biLM to return, and how they are combined."""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any, Self, TypeAlias

import numpy as np

from keras_elmo.utils.checks import invalid, is_number, is_whole, shorten

# The choices of users: "all", "top", "average", the number of a layer, or a weight for each layer.
Layers: TypeAlias = str | int | Sequence[float] | np.ndarray


@dataclasses.dataclass(frozen=True)
class LayerChoice:
    """Which layers of a biLM to return, and how they are combined.

    Attributes:
        name: str, int or tuple of float. The choice as the user wrote it, for JSON and errors. A
            number is counted from layer 0.
        layers: tuple of int. The layers that are needed.
        weights: tuple of float, or None. The weights of ``layers`` in their sum. None is for
            ``"all"``, which returns every layer.
    """

    name: str | int | tuple[float, ...]
    layers: tuple[int, ...]
    weights: tuple[float, ...] | None

    @classmethod
    def of(cls, layers: Layers | Self, count: int) -> Self:
        """Check the ``layers`` that a user wrote, for ``count`` layers, layer 0 included.

        Raises:
            ValueError: If it is not one of the values that ``Embedder.embed`` documents.

        Examples:
            >>> LayerChoice.of(-1, 3).layers
            (2,)
            >>> LayerChoice.of([0.25, 0.75, 0], 3)
            LayerChoice(name=(0.25, 0.75, 0.0), layers=(0, 1), weights=(0.25, 0.75))
        """
        if isinstance(layers, cls):
            return layers
        every = tuple(range(count))
        average = (1 / count,) * count
        named = {"all": (every, None), "top": (every[-1:], (1.0,)), "average": (every, average)}
        if isinstance(layers, str) and layers in named:
            return cls(layers, *named[layers])
        if is_whole(layers, -count) and layers < count:
            layer = int(layers) % count
            return cls(layer, (layer,), (1.0,))
        if isinstance(layers, list | tuple | np.ndarray) and len(np.shape(layers)) == 1:
            given = [float(weight) for weight in layers if is_number(weight)]
            if len(given) == len(layers) == count and any(given):
                used = tuple(layer for layer in every if given[layer])
                return cls(tuple(given), used, tuple(given[layer] for layer in used))
        raise invalid(
            f"Expected layers to be 'all', 'top', 'average', a number from {-count} to "
            f"{count - 1}, or a list of {count} weights that are not all 0",
            f"layers={shorten(layers)}",
        )

    def combine(self, layers: Sequence[Any]) -> Any:
        """Return the weighted sum of the arrays or tensors of ``self.layers``; not for "all"."""
        if self.weights is None or self.weights == (1.0,):
            [layer] = layers
            return layer
        terms = (weight * x for weight, x in zip(self.weights, layers, strict=True))
        return functools.reduce(operator.add, terms)
