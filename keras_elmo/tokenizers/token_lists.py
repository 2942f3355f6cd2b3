"""Columns of text, lists of tokens, and lines of tokens with spaces between them."""

import contextlib
import re
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_elmo.utils.checks import invalid, shorten

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
    if is_table or not isinstance(column, Iterable) or getattr(column, "ndim", 1) == 0:
        return column
    return column.to_pylist() if hasattr(column, "to_pylist") else list(column)  # to_pylist: Arrow


def sentence_rows(sentences: Any) -> Any:
    """Return the sentences of a batch: what ``rows_of`` returns, but a text stays a text.

    In a 2-D array the trailing ``""`` of a row are padding.
    """
    if isinstance(sentences, np.ndarray) and sentences.ndim == 2:
        rows = sentences.tolist()
        for row in rows:
            while row and row[-1] in ("", b""):
                row.pop()
        return rows
    return sentences if isinstance(sentences, str | bytes) else rows_of(sentences)


def utf8_tokens(sentences: Any) -> list[bytes]:
    """Return the tokens of all sentences as UTF-8 in one list, without lone surrogates.

    It warns if most sentences look like raw text.

    Raises:
        ValueError: If the sentences are not lists of tokens.
    """
    if not isinstance(sentences, list | tuple):
        raise _not_tokens(sentences)
    encoded = []
    for sentence in sentences:
        if not isinstance(sentence, list | tuple | np.ndarray):
            raise _not_tokens(sentence)
        for token in sentence:
            if not isinstance(token, str | bytes):
                raise _not_tokens(token)
        encoded.append(
            [t if isinstance(t, bytes) else t.encode("utf-8", "ignore") for t in sentence]
        )
    filled = [sentence for sentence in encoded if sentence]
    # A single sentence may end with an abbreviation.
    if 2 * sum(map(_looks_raw, filled)) > len(filled) and (len(filled) > 1 or len(filled[0]) == 1):
        # The text does not quote the sentences, because Python shows equal warnings once only.
        warnings.warn(
            "CharacterTokenizer expects the tokens that the biLM was trained on. Received: "
            "sentences that look like raw text: one token with spaces, or a last token with the "
            "full stop. Tokenise the text first: call WordTokenizer.from_preset(preset). For "
            "files, keras-elmo embed has --raw, and keras-elmo tokenize writes the tokens",
            stacklevel=4,
        )
    return [token for sentence in encoded for token in sentence]


def _not_tokens(value: object) -> ValueError:
    return invalid(
        "CharacterTokenizer expects a batch of sentences, tokens to be str or UTF-8 bytes, and "
        "every sentence to be a list of tokens",
        f"{shorten(value)} of type {type(value).__name__}",
        'Pass lists of lists, as in [["ELMo", "reads", "characters"], ["Two", "tokens"]]. One '
        "sentence is [tokens]. For raw text call WordTokenizer or Embedder.tokenize first",
    )


def _looks_raw(sentence: list[bytes]) -> bool:
    """Return whether a sentence is one token with spaces, or its last token has the full stop."""
    pattern = rb"\S\s+\S" if len(sentence) == 1 else rb"\w[.!?]$"
    return re.search(pattern, sentence[-1]) is not None


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
