"""``WordTokenizer``: from sentences to tokens."""

import unicodedata
from collections.abc import Callable
from typing import Any

from keras_elmo.tokenizers.text import split_tokens

SENTENCES = ("punkt", "stops", "lines")
TOKENIZERS = ("penn", "toktok", "kiwi", "whitespace")

# Typographic quotes and the plain quotes of keyboards, SST and CoNLL.
_QUOTES = str.maketrans("‘’‚‛“”„‟", "''''\"\"\"\"")


def plain_quotes(text: str) -> str:
    """Return a text with plain quotes in place of typographic ones."""
    return text.translate(_QUOTES)


class WordTokenizer:
    r"""Cut a sentence into tokens, as ``keras-elmo prepare`` does.

    A biLM knows the tokens that it was trained on, so use the tokenizer that its model card
    names. ``keras-elmo tokenize`` tokenizes files. The tokenizer can be pickled, and used by
    several threads at once.

    Args:
        name: str. One of:

            - ``"penn"``: NLTK's Penn Treebank tokens with plain quotes and brackets, for
              English.
            - ``"toktok"``: NLTK's tokenizer for many languages, which separates punctuation.
            - ``"kiwi"``: for Korean, the morphemes that Kiwi finds, in dictionary form and
              composed (NFC). Endings without a vowel are letters (``ㄴ``).
            - ``"whitespace"``: the unchanged text between spaces or tabs.

    Call arguments:
        sentence: str. Typographic quotes become plain ones, except with ``"whitespace"``.

    Returns:
        list of str. No token is empty or contains a space.

    Raises:
        ValueError: If ``name`` is unknown.
        ImportError: If the tokenizer needs NLTK or Kiwi, and it is missing.

    Example:

    >>> WordTokenizer("penn")("It isn't “far” (I walked).")
    ['It', 'is', "n't", '"', 'far', '"', '(', 'I', 'walked', ')', '.']

    Reference:
        Kiwi: https://github.com/bab2min/Kiwi
    """

    def __init__(self, name: str) -> None:
        if name not in TOKENIZERS:
            raise ValueError(
                f"WordTokenizer expects name to be one of {', '.join(TOKENIZERS)}. "
                f"Received: name={name!r}"
            )
        self.name = name
        self._tokenize = _MAKERS[name]()

    def __call__(self, sentence: str) -> list[str]:
        is_tokenised = self.name == "whitespace"
        return self._tokenize(sentence if is_tokenised else plain_quotes(sentence))

    def __reduce__(self) -> tuple:
        return WordTokenizer, (self.name,)


def nltk_tokenizers() -> Any:
    """Return the module of NLTK's tokenizers.

    Raises:
        ImportError: If NLTK is missing.
    """
    try:
        import nltk.tokenize.punkt
        import nltk.tokenize.toktok
    except ImportError as error:
        raise ImportError(
            "Preparing raw text needs NLTK: pip install 'keras-elmo[pretrain]'. For text that is "
            "already tokenised use sentences='lines', tokenizer='whitespace'"
        ) from error
    return nltk.tokenize


def _penn() -> Callable:
    """Make NLTK's Penn Treebank tokenizer, but keep double quotes as they are written."""
    tokenize = nltk_tokenizers().NLTKWordTokenizer().tokenize
    return lambda sentence: ['"' if t in ("``", "''") else t for t in tokenize(sentence)]


def _toktok() -> Callable:
    """Make NLTK's Toktok tokenizer, but keep ``&`` and ``|``, which Toktok escapes."""
    tokenize = nltk_tokenizers().toktok.ToktokTokenizer().tokenize

    def unescape(token: str) -> str:
        return token.replace("&amp;", "&").replace("&#124;", "|")

    return lambda sentence: [unescape(token) for token in tokenize(" ".join(sentence.split()))]


def _kiwi() -> Callable:
    """Make Kiwi's tokenizer. It cannot read lone surrogates and syllables in pieces."""
    try:
        from kiwipiepy import Kiwi
    except ImportError as error:
        raise ImportError("Korean morphemes need Kiwi: pip install 'keras-elmo[korean]'") from error
    kiwi = Kiwi(num_workers=1)

    def tokenize(sentence: str) -> list[str]:
        text = unicodedata.normalize("NFC", sentence.encode("utf-8", "ignore").decode("utf-8"))
        forms = (morpheme.form for morpheme in kiwi.tokenize(text, compatible_jamo=True))
        return [token for form in forms for token in form.split()]

    return tokenize


_MAKERS: dict[str, Callable] = {
    "penn": _penn,
    "toktok": _toktok,
    "kiwi": _kiwi,
    "whitespace": lambda: split_tokens,
}
