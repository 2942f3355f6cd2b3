"""Compute the mask of a batch of character ids, and add boundary tokens to the batch."""

from typing import Any

import keras
from keras import ops

from keras_elmo.utils.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_elmo")
class TokenMask(keras.layers.Layer):
    """Return the ``token_mask`` of character ids; with ``boundaries``, also for both boundaries.

    It is a layer because the mask is then one node in the graph of a functional model.
    """

    def __init__(self, boundaries: bool = False, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.boundaries = boundaries
        self.supports_masking = True  # Otherwise Keras warns of inputs with a mask.

    def call(self, inputs: Tensor) -> Tensor:
        mask = token_mask(inputs)
        return with_boundaries(mask) if self.boundaries else mask

    def get_config(self) -> dict:
        return {**super().get_config(), "boundaries": self.boundaries}


def token_mask(ids: Tensor) -> Tensor:
    """Return the mask ``(batch, tokens)`` of character ids: True up to the last token.

    Examples:
        >>> keras.ops.convert_to_numpy(token_mask(np.array([[[259, 98, 260], [0, 0, 0]]])))
        array([[ True, False]])
    """
    # A sum from the right is positive up to the last token.
    real = ops.cast(ops.any(ids > 0, axis=-1), "int32")
    return ops.flip(ops.cumsum(ops.flip(real, 1), axis=1), 1) > 0


def with_boundaries(mask: Tensor) -> Tensor:
    """Return the mask of the sentences with boundary tokens: ``(batch, tokens + 2)``.

    Padding is on the right, so two ones on the left add two tokens.
    """
    mask = ops.cast(mask, "int32")  # ONNX cannot pad booleans.
    return ops.pad(mask, [[0, 0], [2, 0]], constant_values=1) > 0


def add_boundaries(ids: Tensor, mask: Tensor, alphabet: Any) -> Tensor:
    """Add ``<S>`` before the first token of every sentence and ``</S>`` after its last token.

    Args:
        ids: Character ids, int32, shape ``(batch, tokens, characters)``; ``characters`` static.
        mask: Bool, shape ``(batch, tokens)``. The ``token_mask`` of the ids.
        alphabet: The alphabet of the biLM, with the rows of the boundary tokens.

    Returns:
        int32, shape ``(batch, tokens + 2, characters)``.
    """
    start, end = alphabet.boundary_rows(ids.shape[-1])
    n_tokens = ops.sum(ops.cast(mask, "int32"), axis=1)[:, None, None]
    ids = ops.pad(ids, [[0, 0], [1, 1], [0, 0]])
    place = ops.arange(ops.shape(ids)[1], dtype="int32")[:, None]
    ids = ops.where(place == 0, start, ids)
    return ops.where(place == n_tokens + 1, end, ids)
