"""Read the input of ``embed_file``: a text, or one column of a table."""

import contextlib
import csv
import json
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from keras_elmo.embed.parquet import import_pyarrow, parquet_errors
from keras_elmo.tokenizers.text import OPENERS, join_tokens, open_decompressed, read_lines
from keras_elmo.tokenizers.words import check_row

Source = Any  # str, path or open file

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
# A cell that is quoted as in CSV.
_QUOTED = re.compile('"((?:[^"]|"")*)"')
# The ends of the names of tables.
TABLES = (*_DELIMITERS, ".jsonl", ".ndjson", ".parquet")


def input_lines(
    source: Source, column: str | None, tokenize: Callable[[str], list[str]] | None
) -> Iterator[str]:
    r"""Yield the sentences of an input as lines, with spaces between tokens.

    Args:
        source: path or open file. A UTF-8 text; with ``column`` the path of a table.
        column: str or None. Column of a CSV, TSV, JSON lines or Parquet file.
        tokenize: Callable or None. Maps raw text to tokens. None is for tokenised sentences.

    Raises:
        ImportError: If the file is Parquet and pyarrow is not installed.
        OSError: If the file cannot be read.
        ValueError: If the input is not valid, or a cell has no text; the error names the row.

    Examples:
        >>> _ = pathlib.Path("reviews.csv").write_text("text,label\nGood film.,1\n")
        >>> list(input_lines("reviews.csv", "text", keras_elmo.WordTokenizer("penn")))
        ['Good film .']
    """
    if column is not None:
        for number, cell in enumerate(_cells(source, column)):
            yield _as_line(cell, number, tokenize)
        return
    opened: Any = contextlib.nullcontext(source)
    if isinstance(source, str | pathlib.Path):
        opened = open_decompressed(pathlib.Path(source), "rb")
    with opened as text:
        for line in read_lines(text):
            if tokenize:  # a blank line is an empty sentence
                line = " ".join(tokenize(line)) if line.strip() else ""
            yield line


def _as_line(cell: Any, number: int, tokenize: Callable[[str], list[str]] | None) -> str:
    if isinstance(cell, list) and all(isinstance(token, str) for token in cell):
        return join_tokens(cell, f"row {number}")
    text = check_row(cell, number)
    return " ".join(tokenize(text)) if tokenize else re.sub(r"[\r\n]+", " ", text)


def ending_of(path: pathlib.Path) -> str:
    """Return the ending of a file in lower case; of a compressed file, the one before .gz etc."""
    is_compressed = path.suffix.lower() in OPENERS
    return pathlib.Path(path.stem if is_compressed else path).suffix.lower()


def _cells(source: Source, column: str) -> Iterator[Any]:
    """Yield the cells of a column, in the order of the rows."""
    if not isinstance(source, str | pathlib.Path):
        raise ValueError("column expects the path of a table. Received: an open file")
    path = pathlib.Path(source)
    ending = ending_of(path)
    if ending not in TABLES:
        raise ValueError(
            f"column expects a file that ends with {', '.join(TABLES)}. Received: {path}"
        )
    if ending == ".parquet":
        yield from _cells_of_parquet(path, column)
        return
    try:
        with open_decompressed(path, "rt", encoding="utf-8-sig", newline="") as text:
            rows = (
                _rows_of_csv(text, path, column, _DELIMITERS[ending])
                if ending in _DELIMITERS
                else map(json.loads, filter(str.strip, text))
            )
            for number, row in enumerate(rows):
                if not isinstance(row, dict) or column not in row:
                    names = list(row) if isinstance(row, dict) else []
                    raise _no_column(path, column, names, f" in row {number}")
                yield row[column]
    except (csv.Error, json.JSONDecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(
            f"Expected a valid {ending} file in UTF-8. Received: {path}, which is not valid "
            f"({error}). Repair it, or write it as .jsonl with the json module of Python"
        ) from None


def _rows_of_csv(text: TextIO, path: pathlib.Path, column: str, delimiter: str) -> Iterator[dict]:
    """Yield the rows; raise if a row has more fields than the header, or two columns one name."""
    is_line = False
    if delimiter == "\t":
        # If all lines have the same number of tabs, each is a row: a quote that is not closed may
        # belong to the text.
        tabs = {line.count("\t") for line in text if line.strip("\r\n")}
        is_line = len(tabs) == 1 and tabs != {0}
        text.seek(0)
    reader = csv.DictReader(
        text,
        delimiter=delimiter,
        strict=True,
        quoting=csv.QUOTE_NONE if is_line else csv.QUOTE_MINIMAL,
    )
    names = list(reader.fieldnames or [])
    if is_line:
        reader.fieldnames = names = [*map(_unquoted, names)]
    if column not in names:
        raise _no_column(path, column, names)
    if names.count(column) > 1:
        raise ValueError(
            f"Expected one column {column!r} in {path}. Received: {names.count(column)}. Rename one"
        )
    for number, row in enumerate(reader):
        if None in row:
            raise ValueError(
                f"Expected {len(names)} fields in each row of {path}. Received: "
                f"{len(names) + len(row[None])} in row {number}. Put text that contains "
                f"{delimiter!r} between quotes"
            )
        if is_line:
            row[column] = _unquoted(row[column])
        yield row


def _unquoted(cell: str) -> str:
    quoted = _QUOTED.fullmatch(cell)
    return quoted[1].replace('""', '"') if quoted else cell


def _cells_of_parquet(path: pathlib.Path, column: str) -> Iterator[Any]:
    _, parquet = import_pyarrow()
    with parquet_errors(path), parquet.ParquetFile(path) as file:
        if column not in file.schema_arrow.names:
            raise _no_column(path, column, file.schema_arrow.names)
        for batch in file.iter_batches(columns=[column]):
            yield from batch.column(0).to_pylist()


def _no_column(path: pathlib.Path, column: str, names: list, row: str = "") -> ValueError:
    shown = ", ".join(map(str, names)) or "none"
    return ValueError(
        f"Expected a column {column!r} in {path}. Received: columns {shown}{row}. Choose one"
    )
