"""Lines of tokenised text."""

import bz2
import contextlib
import gzip
import lzma
import pathlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from keras_elmo.utils.checks import shorten

# The function that opens a compressed text, by the ending of the file.
OPENERS: dict[str, Callable] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}

# Characters, or bytes before decoding. A line is in memory as a whole; a long novel has 3 million.
LONGEST_LINE = 1 << 22

_TOKEN = re.compile(r"[^ \t]+")


@contextlib.contextmanager
def decompression_errors(file: pathlib.Path) -> Iterator[None]:
    """Replace errors of decompression, of several types, by an ``OSError`` that names the file."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the operating system's error names the file
        raise OSError(f"{file} is damaged: {error}") from error


@contextlib.contextmanager
def open_decompressed(path: pathlib.Path, mode: str, **kwargs: Any) -> Iterator[Any]:
    """Open a file, and decompress it if its name ends with .gz, .bz2 or .xz."""
    opener = OPENERS.get(path.suffix.lower(), open)
    with decompression_errors(path), opener(path, mode, **kwargs) as file:
        yield file


def without_end(line: str) -> str:
    r"""Return a line without its end: ``\n``, ``\r\n``, or several ``\r``."""
    return line.rstrip("\r\n")


def split_tokens(line: str) -> list[str]:
    r"""Return the tokens of a line: the text between spaces and tabs.

    No other character separates tokens. A no-break space, U+3000 or U+2028 is part of a token,
    because the program that joined the tokens with spaces treated it so.

    Examples:
        >>> split_tokens("10\u00a0km  on foot\n")
        ['10\xa0km', 'on', 'foot']
    """
    return _TOKEN.findall(without_end(line))


def join_tokens(tokens: Iterable[str], place: str) -> str:
    """Return a line of tokens, which ``split_tokens`` splits again.

    Raises:
        ValueError: If ``tokens`` is a text, or a token is not a str, is empty or contains white
            space. ``place`` is for the error.
    """
    if isinstance(tokens, str | bytes):
        raise ValueError(
            f"Expected a list of tokens. Received: {shorten(tokens)} in {place}. Split it first, "
            "for example with a WordTokenizer"
        )
    tokens = list(tokens)
    for token in tokens:
        if not isinstance(token, str) or not token or re.search(r"[ \t\r\n]", token):
            raise ValueError(
                "Expected tokens that are str, not empty, and contain no white space. "
                f"Received: {shorten(token)} in {place}"
            )
    return " ".join(tokens)


def rows_of(column: Any) -> Any:
    """Return the rows of a list, tuple, array, generator, or pandas or Arrow column.

    Returns anything else, such as a number or a dict, unchanged.
    """
    names = "columns", "column_names"  # of tables in pandas, Arrow and Hugging Face Datasets
    is_table = isinstance(column, dict) or any(hasattr(type(column), name) for name in names)
    if hasattr(column, "to_pylist") and not is_table:  # Arrow
        return column.to_pylist()
    has_rows = isinstance(column, Iterable) and getattr(column, "ndim", 1) > 0
    return list(column) if has_rows and not is_table else column


def read_line(file: IO, number: int, name: str) -> Any:
    """Return the next line of a file, "" or b"" at its end.

    If the line is too long, a ``ValueError`` shows its ``number`` and the ``name`` of the file.
    """
    line = file.readline(LONGEST_LINE + 1)
    if len(line) > LONGEST_LINE:
        raise ValueError(
            f"Expected lines of at most {LONGEST_LINE} characters. Received: line {number} of "
            f"{name}, which is longer. Is it text? Put each sentence on its own line"
        )
    return line


def read_lines(file: IO) -> Iterator[str]:
    """Yield the lines of a binary or text file, decoded, without their ends.

    Raises:
        ValueError: If the bytes are not UTF-8, or a line is too long; the error names the line.
    """
    name, number = str(getattr(file, "name", "the input")), 1
    while line := read_line(file, number, name):
        try:
            text = line.decode("utf-8") if isinstance(line, bytes) else line
        except UnicodeDecodeError as error:
            advice = "Convert the file first, for example with iconv"
            if pathlib.Path(name).suffix.lower() in OPENERS:
                advice = "Decompress the file first, for example with zcat, bzcat or xzcat"
            raise ValueError(
                f"Expected UTF-8 text. Received: line {number} of {name}, which is not UTF-8 "
                f"({error.reason}). {advice}"
            ) from None
        yield without_end(text.removeprefix("\ufeff") if number == 1 else text)
        number += 1
