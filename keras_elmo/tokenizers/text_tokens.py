"""Functions from a text to its tokens, by the name of the tokenizer. They need no Keras."""

import functools
import re
import unicodedata
from collections.abc import Callable
from typing import Any

from keras_elmo.tokenizers.penn import BLANK, cut_sentences, penn_tokens
from keras_elmo.tokenizers.token_lists import check_text, rows_of, split_tokens
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.extras import import_extra

TOKENIZERS = ("penn", "toktok", "kiwi", "letters", "whitespace")

# Keyboards, SST and CoNLL write plain quotes, and so does the training text.
QUOTES = {"'": "‘’‚‛", '"': "“”„‟"}
_PLAIN_QUOTES = {ord(quote): plain for plain, quotes in QUOTES.items() for quote in quotes}

Tokenize = Callable[[str], list[str]]


def plain_quotes(text: str) -> str:
    """Return a text with plain quotes in place of typographic quotes."""
    return text.translate(_PLAIN_QUOTES)


@functools.cache  # loading Kiwi takes a second
def make_tokenizer(name: str, split_sentences: bool = False) -> Tokenize:
    """Return the function from a str to its tokens. It takes the arguments of ``WordTokenizer``.

    Raises:
        ValueError: If the name is unknown.
        ImportError: If the tokenizer needs NLTK or Kiwi, and that package is missing.
    """
    if name not in TOKENIZERS:
        expected = f"WordTokenizer expects a name of {', '.join(TOKENIZERS)}"
        raise invalid(expected, f"name={name!r}")
    if name == "whitespace":
        return lambda text: split_tokens(re.sub(r"\r?\n", " ", text))
    if name == "letters":
        return _letters
    if name == "penn":
        return lambda text: penn_tokens(plain_quotes(text), split_sentences)
    tokenize = _toktok() if name == "toktok" else _kiwi()
    if not split_sentences or name == "kiwi":  # Kiwi finds the sentences itself
        return lambda text: tokenize(plain_quotes(text))
    return lambda text: [
        token for sentence in cut_sentences(plain_quotes(text)) for token in tokenize(sentence)
    ]


def tokenize_texts(tokenize: Tokenize, texts: Any) -> Any:
    """Return the tokens of a str, or a list with the tokens of each row of a list or column."""
    if isinstance(texts, str):
        return tokenize(texts)
    rows = rows_of(texts)
    if not isinstance(rows, list):
        expected = "WordTokenizer expects a str, or a list or column of str"
        raise invalid(expected, type(texts).__name__, "Pass one column of a table")
    checked = [check_text(text, f"row {number}") for number, text in enumerate(rows)]
    return [tokenize(text) for text in checked]


def _letters(text: str) -> list[str]:
    if text.lstrip().startswith(">"):
        raise invalid(
            "WordTokenizer('letters') expects a sequence without its header",
            f"{text[:60]!r}, as in FASTA",
            "Name the file .fasta, or drop the headers and join the lines of each sequence",
        )
    return list(re.sub(BLANK, "", text))


def _toktok() -> Tokenize:
    """Return Toktok's function, without the entities it writes for & and |."""
    owner = "WordTokenizer('toktok')"
    toktok = import_extra("nltk.tokenize.toktok", owner, "NLTK", "pretrain")
    tokenize = toktok.ToktokTokenizer().tokenize
    return lambda sentence: [
        token.replace("&amp;", "&").replace("&#124;", "|")
        for token in tokenize(" ".join(sentence.split()))
    ]


def _kiwi() -> Tokenize:
    """Return Kiwi's function; it skips lone surrogates and composes syllables first."""
    kiwipiepy = import_extra("kiwipiepy", "WordTokenizer('kiwi')", "Kiwi", "korean")
    kiwi = kiwipiepy.Kiwi(num_workers=1)

    def tokenize(sentence: str) -> list[str]:
        text = unicodedata.normalize("NFC", sentence.encode("utf-8", "ignore").decode("utf-8"))
        forms = (morpheme.form for morpheme in kiwi.tokenize(text, compatible_jamo=True))
        return [token for form in forms for token in form.split()]

    return tokenize
