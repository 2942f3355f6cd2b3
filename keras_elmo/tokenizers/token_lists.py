"""Columns of text, lists of tokens, and lines of tokens with spaces between them."""

import contextlib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_elmo.utils.checks import invalid

# A text that pandas or Python wrote for a list of tokens, such as "['A', 'film']".
_PRINTED_LIST = re.compile(r"""\s*\[\s*(["']).*\1\s*\]\s*""", re.DOTALL)


def split_tokens(line: str) -> list[str]:
    r"""Return the tokens of a line: the text between spaces and tabs.

    No other character separates tokens. A no-break space, U+3000 or U+2028 is part of a token,
    because the program that joined the tokens with spaces treated it so.

    Examples:
        >>> split_tokens("10\u00a0km  on foot\n")
        ['10\xa0km', 'on', 'foot']
    """
    return re.findall(r"[^ \t]+", line.rstrip("\r\n"))


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


def unpadded(array: np.ndarray) -> list[list]:
    """Return the rows of a token array as lists, without the trailing ``""``."""
    sentences = array.tolist()
    for sentence in sentences:
        while sentence and sentence[-1] in ("", b""):
            sentence.pop()
    return sentences


def sentence_rows(sentences: Any) -> Any:
    """Return the rows of a 2-D token array, or what ``rows_of`` returns; a text stays a text."""
    if isinstance(sentences, np.ndarray) and sentences.ndim == 2:
        return unpadded(sentences)
    return sentences if isinstance(sentences, str | bytes) else rows_of(sentences)


def check_text(text: Any, place: str) -> str:
    """Return the text of a cell; raise a ``ValueError`` that names the place of another value."""
    if isinstance(text, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            text = text.decode("utf-8")
    is_text = isinstance(text, str) and text.strip()
    if not is_text or _PRINTED_LIST.fullmatch(text):
        kind = "a printed list of tokens" if is_text else type(text).__name__
        raise invalid(
            "WordTokenizer expects text in every row",
            f"{place}: {str(text)[:60]!r}, {kind}",
            "Drop other rows or fill them. Store lists of tokens in JSON lines or Parquet",
        )
    return text
