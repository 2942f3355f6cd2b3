"""Read column files such as CoNLL-2003: one token and its tag per line.

Tabs or spaces separate columns, and empty lines separate sentences. Lines that begin with
-DOCSTART-, comments, and token numbers (as in CoNLL-U) are skipped. Tags are IOB1, IOB2
or BIOES.
"""

import collections
import pathlib
import re

from seqeval.metrics.sequence_labeling import get_entities

BIOES, IOB2 = "BIES", "BIIB"  # Letters of the first, inner, last and only token of an entity.


def read_columns(path, token_column=None, tag_column=None, scheme=BIOES):
    """Read a column file; return its sentences as lists of tokens, and their tags.

    Args:
        path: path. Column file.
        token_column: int or None. Number of the column of the tokens, from 1. None takes the
            first, or the second if the first one counts the tokens, as in CoNLL-U.
        tag_column: int or None. Number of the column of the tags; None takes the last.
        scheme: str. ``BIOES`` or ``IOB2``, the scheme of the returned tags.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If a line has no token and tag, or the file has no sentence.
    """
    lines = pathlib.Path(path).read_text("utf-8-sig").split("\n")
    rows = [line.strip().split("\t" if "\t" in line else None) for line in lines]
    widths = collections.Counter(len(row) for row in rows if len(row) > 1)
    width = max(widths, key=widths.get, default=0)
    numbers = [row[0] for row in rows if len(row) == width > 1 and not row[0].startswith("#")]
    # Numbers such as 1-2 and 1.1 are of words that the next lines split, and of words left out.
    counted = width > 2 and all(re.fullmatch(r"\d+([-.]\d+)?", number) for number in numbers)
    token_column = token_column or (2 if counted else 1)
    sentences = [[]]
    for number, (line, row) in enumerate(zip(lines, rows), start=1):
        fits = len(row) >= max(2, token_column, tag_column or 0)
        token, tag = (row[token_column - 1], row[(tag_column or 0) - 1]) if fits else ("", "")
        is_tag = re.fullmatch("O|[BIES]-.+", tag)
        if not line.strip() or line.startswith("-DOCSTART-"):
            sentences.append([])
        elif line.startswith("#") and not (is_tag and len(row) == width):
            continue  # a comment
        elif counted and re.fullmatch(r"\d+[-.]\d+", row[0]):
            continue
        elif not is_tag or len(token.split()) != 1:
            column = f"column {tag_column}" if tag_column else "the last column"
            raise ValueError(
                f"Expected a token without spaces and, in {column}, O, or B-, I-, E-, S- and a "
                f"type. Received: line {number} of {path}: {line[:60]!r}. See --tag-column"
            )
        else:
            sentences[-1].append((token, tag))
    columns = [list(zip(*sentence)) for sentence in sentences if sentence]
    if not columns:
        raise ValueError(f"Expected a sentence or more. Received: path={str(path)!r}")
    return [list(tokens) for tokens, _ in columns], [recode(tags, scheme) for _, tags in columns]


def recode(tags, scheme):
    """Return the tags of a sentence in another scheme, with the entities that conlleval finds."""
    tags_then = ["O"] * len(tags)
    for kind, first, last in get_entities(list(tags)):
        letters = scheme[0] + scheme[1] * (last - first - 1) + scheme[2]
        for place, letter in zip(range(first, last + 1), letters if last > first else scheme[3]):
            tags_then[place] = f"{letter}-{kind}"
    return tags_then


def tag_set(tags, scheme=BIOES):
    """Return the tags of a scheme for all types in some sentences; O comes first."""
    types = sorted({tag[2:] for sentence in tags for tag in sentence if tag != "O"})
    letters = dict.fromkeys(scheme)
    return ["O", *(f"{letter}-{kind}" for kind in types for letter in letters)]
