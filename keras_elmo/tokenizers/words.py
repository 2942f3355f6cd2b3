"""``WordTokenizer``: sentences to tokens, the same for the text of a biLM and for its users."""

import unicodedata

from keras_elmo.tokenizers.text import split_tokens

SENTENCES = ("punkt", "stops", "lines")
TOKENIZERS = ("penn", "toktok", "kiwi", "whitespace")

# Typographic quotes, written as keyboards, SST and CoNLL have them.
_QUOTES = str.maketrans("‘’‚‛“”„‟", "''''\"\"\"\"")


def plain_quotes(text: str) -> str:
    """Return a text with plain quotes in place of typographic ones."""
    return text.translate(_QUOTES)


class WordTokenizer:
    r"""Cut a sentence into tokens, as ``keras-elmo prepare`` does.

    A biLM knows the tokens that it was trained on, so give it tokens of the same tokenizer;
    its model card names it. ``keras-elmo tokenize`` does the same for a file. It
    pickles, and serves many threads.

    Args:
        name: ``"penn"``, NLTK's Penn Treebank tokens with plain quotes and brackets, for
            English; ``"toktok"``, NLTK's tokenizer for many languages, which splits
            punctuation off; ``"kiwi"``, the morphemes that Kiwi finds, for Korean, in
            dictionary form and composed (NFC), endings without a vowel as letters (``ㄴ``);
            ``"whitespace"``, what stands between spaces or tabs, as it is.

    Call arguments:
        sentence: String. Typographic quotes count as plain ones, but for ``"whitespace"``.

    Returns:
        List of tokens, none of them empty or with a space in it.

    Raises:
        ValueError: If there is no tokenizer of the name.
        ImportError: If it needs NLTK or Kiwi, and that is missing.

    Example:

    >>> WordTokenizer("penn")("It isn't “far” (I walked).")
    ['It', 'is', "n't", '"', 'far', '"', '(', 'I', 'walked', ')', '.']

    Reference:
        Kiwi: https://github.com/bab2min/Kiwi
    """

    def __init__(self, name):
        if name not in TOKENIZERS:
            raise ValueError(
                f"WordTokenizer expects a name of {', '.join(TOKENIZERS)}. Received: name={name!r}"
            )
        self.name = name
        self._tokenize = _MAKERS[name]()

    def __call__(self, sentence: str) -> list[str]:
        is_tokenised = self.name == "whitespace"
        return self._tokenize(sentence if is_tokenised else plain_quotes(sentence))

    def __reduce__(self):
        return WordTokenizer, (self.name,)


def nltk_tokenizers():
    """Return the package of NLTK's tokenizers.

    Raises:
        ImportError: If it is missing.
    """
    try:
        import nltk.tokenize.punkt
        import nltk.tokenize.toktok
    except ImportError as error:
        raise ImportError(
            "Preparing raw text needs NLTK: pip install 'keras-elmo[pretrain]'. Text that is "
            "tokenised already needs sentences='lines', tokenizer='whitespace' instead"
        ) from error
    return nltk.tokenize


def _penn():
    """Penn Treebank tokens, but for double quotes, which stay as they are written."""
    tokenize = nltk_tokenizers().NLTKWordTokenizer().tokenize
    return lambda sentence: ['"' if t in ("``", "''") else t for t in tokenize(sentence)]


def _toktok():
    """Toktok's tokens, but as the text has them, where it writes two of them as entities."""
    tokenize = nltk_tokenizers().toktok.ToktokTokenizer().tokenize

    def as_written(token):
        return token.replace("&amp;", "&").replace("&#124;", "|")

    return lambda sentence: [as_written(token) for token in tokenize(" ".join(sentence.split()))]


def _kiwi():
    """Kiwi's morphemes, without what it cannot read: lone surrogates, syllables in pieces."""
    try:
        from kiwipiepy import Kiwi
    except ImportError as error:
        raise ImportError("Korean morphemes need Kiwi: pip install 'keras-elmo[korean]'") from error
    kiwi = Kiwi(num_workers=1)

    def tokenize(sentence):
        text = unicodedata.normalize("NFC", sentence.encode("utf-8", "ignore").decode("utf-8"))
        forms = (morpheme.form for morpheme in kiwi.tokenize(text, compatible_jamo=True))
        return [token for form in forms for token in form.split()]

    return tokenize


_MAKERS = {"penn": _penn, "toktok": _toktok, "kiwi": _kiwi, "whitespace": lambda: split_tokens}
