"""Lines of tokenised text, as every command that reads them takes them."""

import bz2
import gzip
import lzma
import pathlib
import re

# What opens a compressed text, by the end of its name.
OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}

_TOKEN = re.compile(r"[^ \t]+")


def without_end(line: str) -> str:
    r"""Return a line without its end: ``\n``, ``\r\n``, and any ``\r`` more."""
    return line.rstrip("\r\n")


def split_tokens(line: str) -> list[str]:
    r"""Return the tokens of a line, which stand between spaces (or tabs).

    Nothing else separates: a no-break space, U+3000, U+2028 and their like are part of
    a token, as they are for whoever joined the tokens by spaces.

    Args:
        line: With or without its end, ``\n`` or ``\r\n``.

    Returns:
        List of tokens, none of them empty.

    Example:

    >>> split_tokens("10\u00a0km  on foot\n")
    ['10\xa0km', 'on', 'foot']
    """
    return _TOKEN.findall(without_end(line))


def read_lines(file):
    """Yield the lines of a file that is open for bytes or text, decoded, without their ends.

    Raises:
        ValueError: If the bytes are not UTF-8; the error names the line.
    """
    for number, line in enumerate(file, start=1):
        try:
            text = line.decode("utf-8") if isinstance(line, bytes) else line
        except UnicodeDecodeError as error:
            name = str(getattr(file, "name", "the input"))
            remedy = "Convert the file first, for example with iconv"
            if pathlib.Path(name).suffix.lower() in OPENERS:
                remedy = "Decompress the file first, for example with zcat, bzcat or xzcat"
            raise ValueError(
                f"Expected UTF-8 text. Received: line {number} of {name}, with bytes that are not "
                f"({error.reason}). {remedy}"
            ) from None
        yield without_end(text.removeprefix("\ufeff") if number == 1 else text)
