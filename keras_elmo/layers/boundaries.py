"""Where the tokens of a batch of character ids are, and its boundary tokens.

Padding is on the right, so a mask of shape (batch, tokens) is a run of ones and a
run of zeros in every row, and shifting it is all the arithmetic there is. Only
``ops.pad`` is used for that: it works on symbolic tensors of unknown size.
"""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_elmo")
class TokenMask(keras.layers.Layer):
    """Tell tokens from padding.

    A layer of its own so that a functional model shows the mask as one node.

    Args:
        boundaries: Whether the mask is that of the sentences with ``<S>`` and ``</S>``.
        **kwargs: Passed on to ``keras.layers.Layer``.

    Call arguments:
        inputs: Character ids, shape ``(batch, tokens, characters)``, a row of 0 in
            padding. A row of 0 in front of a token counts as a token, so padding is
            on the right whatever comes in.

    Returns:
        Bool, shape ``(batch, tokens)``, or ``(batch, tokens + 2)`` with boundaries.

    Example:

    >>> keras.ops.convert_to_numpy(TokenMask()(np.array([[[259, 98, 260], [0, 0, 0]]])))
    array([[ True, False]])
    """

    def __init__(self, boundaries=False, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.boundaries = boundaries

    def call(self, inputs):
        real = ops.cast(ops.any(inputs > 0, axis=-1), "int32")
        mask = ops.flip(ops.cumsum(ops.flip(real, 1), axis=1), 1) > 0
        return with_boundaries(mask) if self.boundaries else mask

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype="bool")

    def compute_output_shape(self, input_shape):
        batch, tokens = input_shape[:2]
        return batch, tokens if tokens is None else tokens + 2 * self.boundaries

    def get_config(self):
        return {**super().get_config(), "boundaries": self.boundaries}


def with_boundaries(mask):
    """Return the mask with room for ``<S>`` and ``</S>``: ``(batch, tokens + 2)``."""
    return _pad(mask, 2, 0, True)


def add_boundaries(ids, mask, alphabet):
    """Put ``<S>`` in front of every sentence and ``</S>`` behind its own last token.

    Args:
        ids: Character ids, int32, shape ``(batch, tokens, characters)``; the number
            of characters static.
        mask: Bool, shape ``(batch, tokens)``, the ``TokenMask`` of the ids.
        alphabet: Of ``alphabet_of``, whose boundary tokens they are.

    Returns:
        int32, shape ``(batch, tokens + 2, characters)``.
    """
    tokens = _pad(mask, 1, 1)
    from_begin = _pad(_pad(mask, 1, 0, True), 0, 1)
    begin = from_begin & ~tokens
    end = with_boundaries(mask) & ~from_begin
    begin_row, end_row = alphabet.boundary_rows(ids.shape[-1])
    ids = ops.pad(ids, [[0, 0], [1, 1], [0, 0]])
    ids = ops.where(begin[..., None], begin_row, ids)
    return ops.where(end[..., None], end_row, ids)


def _pad(mask, before, after, value=False):
    """Pad the tokens of a mask, as numbers: ONNX has no padding of truth values."""
    mask = ops.cast(mask, "int32")
    return ops.pad(mask, [[0, 0], [before, after]], constant_values=int(value)) > 0
