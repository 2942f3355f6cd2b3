"""The vocabulary of a softmax: a file with a token a line."""

import collections

from keras_elmo.tokenizers.characters import BOUNDARY_TOKENS
from keras_elmo.utils.files import read_lines

UNKNOWN = "<UNK>"
# What a vocabulary starts with, in this order.
SPECIAL_TOKENS = (*(token.decode() for token in BOUNDARY_TOKENS), UNKNOWN)


def write_vocabulary(path, tokens) -> None:
    """Write a vocabulary, a token a line."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(token + "\n" for token in tokens)


def read_vocabulary(path) -> list[str]:
    """Read a vocabulary.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is not UTF-8, does not start with ``<S> </S> <UNK>``, or holds a
            token twice.
    """
    tokens = read_lines(path)
    check_vocabulary(tokens, path)
    return tokens


def check_vocabulary(tokens, path) -> None:
    """Raise the ``ValueError`` of ``read_vocabulary`` if the tokens of a file are none."""
    if tuple(tokens[:3]) != SPECIAL_TOKENS:
        raise ValueError(
            f"Vocabulary {path} must start with the lines <S>, </S> and <UNK>. "
            f"Received: {tokens[:3]}"
        )
    if len(set(tokens)) != len(tokens):
        [(token, _)] = collections.Counter(tokens).most_common(1)
        raise ValueError(f"Vocabulary {path} must hold every token once. Received twice: {token!r}")
