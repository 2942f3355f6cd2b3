"""The mask of a batch of character ids, and its boundary tokens.

Padding is on the right, so a mask of shape (batch, tokens) is a run of ones and a
run of zeros in every row, and shifting it is all the arithmetic there is. Only
``ops.pad`` is used for that: it works on symbolic tensors of unknown size.
"""

from keras import ops

from keras_elmo.characters import BEGIN_SENTENCE, END_SENTENCE, boundary_row


def token_mask(ids):
    """Return 1 for tokens and 0 for padding.

    A row of zeros in front of a token counts as a token, so padding is on the right
    whatever comes in.

    Args:
        ids: Character ids, int, shape ``(batch, tokens, characters)``, 0 in padding.

    Returns:
        int32, shape ``(batch, tokens)``.
    """
    real = ops.cast(ops.any(ids > 0, axis=-1), "int32")
    return ops.cast(ops.flip(ops.cumsum(ops.flip(real, 1), axis=1), 1) > 0, "int32")


def mask_with_boundaries(mask):
    """Return the mask, int32, shape ``(batch, tokens + 2)``, with room for ``<S>`` and ``</S>``."""
    return ops.pad(mask, [[0, 0], [2, 0]], constant_values=1)


def add_boundaries(ids, mask):
    """Put ``<S>`` in front of every sentence and ``</S>`` behind its own last token.

    Args:
        ids: Character ids, int32, shape ``(batch, tokens, characters)``; the number
            of characters static.
        mask: The ``token_mask`` of the ids.

    Returns:
        int32, shape ``(batch, tokens + 2, characters)``.
    """
    tokens = ops.pad(mask, [[0, 0], [1, 1]])
    with_begin = ops.pad(ops.pad(mask, [[0, 0], [1, 0]], constant_values=1), [[0, 0], [0, 1]])
    begin = (with_begin - tokens)[..., None]
    end = (mask_with_boundaries(mask) - with_begin)[..., None]
    characters = ids.shape[-1]
    return (
        ops.pad(ids, [[0, 0], [1, 1], [0, 0]])
        + begin * boundary_row(BEGIN_SENTENCE, characters)
        + end * boundary_row(END_SENTENCE, characters)
    )
