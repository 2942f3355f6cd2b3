"""Read and write the vocabulary of a softmax: a file with one token per line."""

import collections
import re

import numpy as np

from keras_elmo.alphabets import ByteAlphabet
from keras_elmo.utils.files import (
    PathLike,
    local_path,
    read_vocabulary_lines,
    to_vocabulary_lines,
)

UNKNOWN = "<UNK>"
# Our vocabularies start with these tokens, in this order.
SPECIAL_TOKENS = (*(token.decode() for token in ByteAlphabet.boundary_tokens), UNKNOWN)
# bilm-tf skips this line in a vocabulary, so the softmax has no row for it.
SKIPPED = "!!!MAXTERMID"
_COUNT = re.compile(r"\d[\d.,]*([eE][-+]?\d+)?")
_COLUMN = re.compile(r"[^ \t]+")


def write_vocabulary(path: PathLike, tokens: list[str]) -> None:
    """Write a vocabulary, one token per line.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If a token is ``!!!MAXTERMID``, a line that readers of vocabularies skip, or
            the tokens would not be read back; see ``to_vocabulary_lines``.
    """
    if SKIPPED in tokens:
        raise ValueError(
            f"A vocabulary must not contain {SKIPPED}, because readers skip this line. Received: "
            f"{SKIPPED} as token {tokens.index(SKIPPED)} for {path}. Remove it. In text it counts "
            f"as {UNKNOWN}"
        )
    local_path(path).write_bytes(to_vocabulary_lines(tokens))


def read_vocabulary(path: PathLike) -> list[str]:
    """Read a vocabulary. The tokens ``<S> </S> <UNK>`` come first, wherever the file has them.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not UTF-8 or not a vocabulary; see ``arrange_vocabulary``.
    """
    return arrange_vocabulary(read_vocabulary_lines(path), path)[0]


def arrange_vocabulary(lines: list[str], name: object) -> tuple[list[str], np.ndarray]:
    """Move the special tokens of a vocabulary to its start, and remove a column of counts.

    Returns the tokens, and for each of them the number of its row in the softmax. ``name`` is the
    name of the file for errors.

    Raises:
        ValueError: If a special token is missing, a token occurs twice, or a line consists of
            several columns other than a token and its count.
    """
    tokens = [token for token in _without_counts(lines, name) if token != SKIPPED]
    if missing := [token for token in SPECIAL_TOKENS if token not in tokens]:
        raise ValueError(
            f"Vocabulary {name} must contain the lines <S>, </S> and <UNK>. Received: "
            f"{len(lines)} lines without {', '.join(missing)}, which start with {lines[:3]}. Add "
            "these lines. In a softmax each of them needs a row"
        )
    if len(set(tokens)) != len(tokens):
        [(token, _)] = collections.Counter(tokens).most_common(1)
        raise ValueError(
            f"Vocabulary {name} must contain every token once. Received twice: {token!r}"
        )
    first = [tokens.index(token) for token in SPECIAL_TOKENS]
    rows = np.array([*first, *(row for row in range(len(tokens)) if row not in first)])
    return [tokens[row] for row in rows], rows


def _without_counts(lines: list[str], name: object) -> list[str]:
    """Return the tokens of lines such as ``word 12``, ``word<TAB>12`` or ``12 word``."""
    columns = [_COLUMN.findall(line) for line in lines]
    # Lines of special tokens often have no count.
    others = {*SPECIAL_TOKENS, SKIPPED}
    lines = [
        row[0] if len(row) == 1 and row[0] in others else line for line, row in zip(lines, columns)
    ]
    table = {i: row for i, row in enumerate(columns) if row and not others.intersection(row)}
    with_blanks = sum(lines[i] != row[0] for i, row in table.items())
    counted = [
        all(len(row) == 2 and _COUNT.fullmatch(row[1 - place]) for row in table.values())
        for place in (0, 1)
    ]
    # No token contains a blank. Single lines with blanks are rows of a softmax that no text needs.
    if 2 * with_blanks <= len(table) or (with_blanks == 1 and True not in counted):
        return lines
    if True not in counted and any(len(row) > 1 for row in table.values()):
        wrong = next(i for i, row in table.items() if len(row) != 2 or not _COUNT.fullmatch(row[1]))
        raise ValueError(
            f"Vocabulary {name} must have one token per line, or a token and its count. "
            f"Received: {lines[wrong][:60]!r} in line {wrong + 1}. Remove the other columns"
        )
    place = counted.index(True) if True in counted else 0
    return [
        next((c for c in row if c in others), row[place] if len(row) > place else "")
        for row in columns
    ]
