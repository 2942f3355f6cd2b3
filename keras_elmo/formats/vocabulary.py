"""Read and write the vocabulary of a softmax: a file with one token per line."""

import numpy as np

from keras_elmo.alphabets import ByteAlphabet
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.files import PathLike, local_path, read_vocabulary_lines

UNKNOWN = "<UNK>"
# Our vocabularies start with these tokens, in this order.
SPECIAL_TOKENS = (*(token.decode() for token in ByteAlphabet.boundary_tokens), UNKNOWN)
# bilm-tf skips this line in a vocabulary, so the softmax has no row for it.
SKIPPED = "!!!MAXTERMID"


def write_vocabulary(path: PathLike, tokens: list[str]) -> None:
    """Write a vocabulary, one token per line."""
    local_path(path).write_bytes("".join(f"{token}\n" for token in tokens).encode())


def read_vocabulary(path: PathLike) -> list[str]:
    """Read a vocabulary. The tokens ``<S> </S> <UNK>`` come first, wherever the file has them."""
    return arrange_vocabulary(read_vocabulary_lines(path), path)[0]


def arrange_vocabulary(lines: list[str], name: object) -> tuple[list[str], np.ndarray]:
    """Move the special tokens of a vocabulary to its start.

    If a token occurs twice, only its last line predicts it; the other lines become
    ``<unused_ROW>``. Returns the tokens, and for each of them the number of its row in the
    softmax. ``name`` is the name of the file for errors.

    Raises:
        ValueError: If a special token is missing.
    """
    tokens = [line for line in lines if line != SKIPPED]
    if missing := [token for token in SPECIAL_TOKENS if token not in tokens]:
        raise invalid(
            f"Vocabulary {name} must have one token per line, and the lines <S>, </S> and <UNK>",
            f"{len(lines)} lines without {', '.join(missing)}, which start with {lines[:3]}",
            "Add these lines, and remove other columns. In a softmax each line needs a row",
        )
    # bilm-tf gives each line a row of the softmax, and predicts the last of several equal lines.
    last = {token: row for row, token in enumerate(tokens)}
    tokens = [t if last[t] == row else f"<unused_{row}>" for row, t in enumerate(tokens)]
    first = [tokens.index(token) for token in SPECIAL_TOKENS]
    rows = np.array([*first, *(row for row in range(len(tokens)) if row not in first)])
    return [tokens[row] for row in rows], rows
