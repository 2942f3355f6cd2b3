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


def read_rows(path):
    """Read a column file; return its sentences as lists of (line number, columns).

    Comments begin with #. But # is also a token: a line such as "# O" belongs to a sentence if it
    has as many columns as the other lines and its last column is a tag.
    """
    lines = pathlib.Path(path).read_text("utf-8-sig").split("\n")
    # A no-break space may be part of a token, so only tabs and spaces separate columns.
    rows = [re.split("\t" if "\t" in line else " +", line.strip(" \t\r")) for line in lines]
    widths = collections.Counter(len(row) for row in rows if row[0] and not row[0].startswith("#"))
    width = max(widths, key=widths.get, default=0)
    sentences = [[]]
    for number, (line, row) in enumerate(zip(lines, rows), start=1):
        is_comment = re.match(r"#\s*\w+\s*=", line) or len(row) != width or not is_tag(row[-1])
        if row == [""] or line.startswith("-DOCSTART-"):
            sentences.append([])
        elif not (line.startswith("#") and is_comment):
            sentences[-1].append((number, row))
    return [sentence for sentence in sentences if sentence]


def is_tag(text):
    """Return whether a text is O, or a letter, a hyphen and a type."""
    return re.fullmatch("O|[BIES]-.+", text) is not None


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
    rows = read_rows(path)
    # Numbers such as 1-2 and 1.1 are of words that the next lines split, and of words left out.
    first = [row[0] for sentence in rows for _, row in sentence if len(row) > 2]
    counted = bool(first) and all(re.fullmatch(r"\d+([-.]\d+)?", number) for number in first)
    columns = (token_column or (2 if counted else 1)) - 1, (tag_column or 0) - 1
    sentences = []
    for sentence in rows:
        pairs = []
        for number, row in sentence:
            if counted and not row[0].isdigit():
                continue
            fits = len(row) > max(1, *columns)
            token, tag = (row[column] for column in columns) if fits else ("", "")
            if not (token and " " not in token and is_tag(tag)):
                column = f"column {tag_column}" if tag_column else "the last column"
                raise ValueError(
                    f"Expected a token without spaces and, in {column}, O, or B-, I-, E-, S- and "
                    f"a type. Received: line {number} of {path}: {' '.join(row)[:60]!r}. See "
                    "--tag-column"
                )
            pairs.append((token, tag))
        if pairs:
            sentences.append(tuple(zip(*pairs)))
    if not sentences:
        raise ValueError(f"Expected a sentence or more. Received: path={str(path)!r}")
    return [list(tokens) for tokens, _ in sentences], [recode(x, scheme) for _, x in sentences]


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
