"""The vocabulary of a softmax: a file with one token per line."""

import collections
import pathlib

from keras_elmo.tokenizers.byte_ids import BOUNDARY_TOKENS
from keras_elmo.utils.files import read_lines

UNKNOWN = "<UNK>"
# The first tokens of every vocabulary, in this order.
SPECIAL_TOKENS = (*(token.decode() for token in BOUNDARY_TOKENS), UNKNOWN)


def write_vocabulary(path: str | pathlib.Path, tokens: list[str]) -> None:
    """Write a vocabulary, one token per line."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(token + "\n" for token in tokens)


def read_vocabulary(path: str | pathlib.Path) -> list[str]:
    """Read a vocabulary.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not UTF-8, does not start with ``<S> </S> <UNK>``, or
            contains a token twice.
    """
    tokens = read_lines(path)
    check_vocabulary(tokens, path)
    return tokens


def check_vocabulary(tokens: list[str], path: str | pathlib.Path) -> None:
    """Raise a ``ValueError`` if the tokens of a file are no vocabulary."""
    if tuple(tokens[:3]) != SPECIAL_TOKENS:
        raise ValueError(
            f"Vocabulary {path} must start with the lines <S>, </S> and <UNK>. "
            f"Received: {tokens[:3]}"
        )
    if len(set(tokens)) != len(tokens):
        [(token, _)] = collections.Counter(tokens).most_common(1)
        raise ValueError(
            f"Vocabulary {path} must contain every token once. Received twice: {token!r}"
        )
