"""Compute the mask of a batch of character ids, and add boundary tokens to the batch.

Padding tokens are on the right, so the mask of a sentence is ones, then zeros. ``_pad`` adds ones
or zeros at both ends of a mask, which shifts it. A boundary token is where two shifted masks
differ; ``add_boundaries`` has an example.
"""

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

    Two ones in front lengthen the row of ones by two: by ``<S>`` and ``</S>``.
    """
    return _pad(mask, before=2, value=True)


def add_boundaries(ids: Tensor, mask: Tensor, alphabet: Any) -> Tensor:
    """Add ``<S>`` before the first token of every sentence and ``</S>`` after its last token.

    Args:
        ids: Character ids, int32, shape ``(batch, tokens, characters)``; ``characters`` static.
        mask: Bool, shape ``(batch, tokens)``. The ``token_mask`` of the ids.
        alphabet: The alphabet of the biLM, with the rows of the boundary tokens.

    Returns:
        int32, shape ``(batch, tokens + 2, characters)``.
    """
    # An example of a sentence with two tokens, padded to three:
    #   mask                1 1 0
    #   is_token          0 1 1 0 0
    #   start_and_tokens  1 1 1 0 0
    #   with_boundaries   1 1 1 1 0
    is_token = _pad(mask, before=1, after=1)
    start_and_tokens = _pad(_pad(mask, before=1, value=True), after=1)
    is_start = start_and_tokens & ~is_token
    is_end = with_boundaries(mask) & ~start_and_tokens
    start_row, end_row = alphabet.boundary_rows(ids.shape[-1])
    ids = ops.pad(ids, [[0, 0], [1, 1], [0, 0]])
    ids = ops.where(is_start[..., None], start_row, ids)
    return ops.where(is_end[..., None], end_row, ids)


def _pad(mask: Tensor, before: int = 0, after: int = 0, value: bool = False) -> Tensor:
    """Pad a mask along the tokens. It pads integers, because ONNX cannot pad booleans.

    It uses ``ops.pad``, which also works on symbolic tensors of unknown size.
    """
    mask = ops.cast(mask, "int32")
    return ops.pad(mask, [[0, 0], [before, after]], constant_values=int(value)) > 0
