"""Read and write column files like those of CoNLL-2003: one token and its tag a line.

Tabs or spaces separate columns, empty lines separate sentences. -DOCSTART- lines are skipped. Lines
that begin with "# " are skipped if the token is not in the first column. Tags are IOB1, IOB2 or
BIOES.
"""

import re

from seqeval.metrics.sequence_labeling import get_entities

BIOES, IOB2 = "BIES", "BIIB"  # Letters of the first, inner, last and only token of an entity.


def read_columns(path, column=-1, limit=None, token_column=0):
    """Return the sentences of a column file as lists of tokens, and their tags in BIOES.

    Columns count from 0; negative numbers count from the end.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If a line has no token and tag, or the file has no sentence.
    """
    sentences = [[]]
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            line = line.rstrip("\r\n")
            if not line.strip() or line.startswith("-DOCSTART-"):
                if sentences[-1]:
                    sentences.append([])
                continue
            if token_column and line.startswith("# "):
                continue
            fields = line.split("\t" if "\t" in line else None)
            token, tag = (
                fields[place] if -len(fields) <= place < len(fields) > 1 else ""
                for place in (token_column, column)
            )
            if len(token.split()) != 1 or not re.fullmatch("O|[BIES]-.+", tag):
                raise ValueError(
                    "read_columns expects a token without spaces, and in another column its tag: "
                    "O, or B-, I-, E-, S- and a type. "
                    f"Received: line {number} of {path}, column={column}, "
                    f"token_column={token_column}: {line[:60]!r}"
                )
            sentences[-1].append((token, tag))
    sentences = [list(zip(*sentence)) for sentence in sentences if sentence][:limit]
    if not sentences:
        raise ValueError(f"read_columns expects a sentence or more. Received: path={str(path)!r}")
    return [list(tokens) for tokens, _ in sentences], [recode(x, BIOES) for _, x in sentences]


def recode(tags, scheme):
    """Return the tags of a sentence in another scheme, with the entities that conlleval finds."""
    tags_then = ["O"] * len(tags)
    for kind, first, last in get_entities(list(tags)):
        letters = scheme[0] + scheme[1] * (last - first - 1) + scheme[2]
        for place, letter in zip(range(first, last + 1), letters if last > first else scheme[3]):
            tags_then[place] = f"{letter}-{kind}"
    return tags_then


def columns(sentences, *tags):
    """Return the text of a column file: the tokens, and a column for each list of tags."""
    rows = (zip(*sentence) for sentence in zip(sentences, *tags))
    return "".join("".join(" ".join(row) + "\n" for row in rows_of) + "\n" for rows_of in rows)
