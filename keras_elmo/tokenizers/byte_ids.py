"""Tokens to character ids: the bytes of UTF-8 between two word markers."""

import numpy as np

# Ids before the shift by one that keeps 0 for padding; 0 to 255 are the bytes.
BEGIN_SENTENCE = 256
END_SENTENCE = 257
BEGIN_WORD = 258
END_WORD = 259
PAD = 260

# These tokens stand for the boundary rows.
BOUNDARY_TOKENS = {b"<S>": BEGIN_SENTENCE, b"</S>": END_SENTENCE}

REMEDY = (
    "Pass a batch of sentences, each a list of tokens, as in "
    '[["ELMo", "reads", "characters"], ["Two", "tokens"]]'
)


def boundary_row(marker: int, max_characters: int) -> np.ndarray:
    """Return the character ids of ``<S>`` or ``</S>``.

    Args:
        marker: ``BEGIN_SENTENCE`` or ``END_SENTENCE``.
        max_characters: Length of the row, 3 or more.

    Returns:
        int32, shape ``(max_characters,)``.
    """
    row = np.full(max_characters, PAD, "int32")
    row[:3] = BEGIN_WORD, marker, END_WORD
    return row + 1


def character_ids(tokens, max_characters: int) -> np.ndarray:
    """Return the character ids of tokens given as UTF-8 bytes.

    Args:
        tokens: Sequence of ``bytes``.
        max_characters: Length of a row; bytes beyond ``max_characters - 2`` are cut.

    Returns:
        int32, shape ``(len(tokens), max_characters)``, without a 0.
    """
    room = max_characters - 2
    lengths = np.array([min(len(token), room) for token in tokens], "int32")
    text = b"".join(token[:room].ljust(room, b"\0") for token in tokens)
    ids = np.full((len(tokens), max_characters), PAD, "int32")
    ids[:, 0] = BEGIN_WORD
    inside = np.arange(room) < lengths[:, None]
    np.copyto(ids[:, 1:-1], np.frombuffer(text, "uint8").reshape(len(tokens), room), where=inside)
    ids[np.arange(len(tokens)), lengths + 1] = END_WORD
    ids += 1
    for row, token in enumerate(tokens):
        if token in BOUNDARY_TOKENS:
            ids[row] = boundary_row(BOUNDARY_TOKENS[token], max_characters)
    return ids


def unpadded(array) -> list[list]:
    """Return the rows of an array of tokens as lists, without the trailing ``""``."""
    sentences = array.tolist()
    for sentence in sentences:
        while sentence and sentence[-1] in ("", b""):
            sentence.pop()
    return sentences


def utf8(token) -> bytes:
    """Return a token as UTF-8, without what UTF-8 does not have."""
    if isinstance(token, str):
        return token.encode("utf-8", "ignore")
    if isinstance(token, bytes):
        return token
    raise ValueError(
        "CharacterTokenizer expects every token to be a str or UTF-8 bytes. "
        f"Received: {token!r} of type {type(token).__name__}. {REMEDY}"
    )
