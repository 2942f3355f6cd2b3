"""Paragraphs to tokenised sentences, by NLTK."""

from keras_elmo.pretraining.data.text import open_text
from keras_elmo.text import split_tokens

TOKENIZERS = ("penn", "toktok", "whitespace")
SENTENCES = ("punkt", "lines")

# Typographic quotes, written as keyboards, SST and CoNLL have them.
_QUOTES = str.maketrans("‘’‚‛“”„‟", "''''\"\"\"\"")
# Punkt learns abbreviations from this much of each file.
_PUNKT_CHARACTERS = 3_000_000


class SentenceRules:
    """Turn paragraphs into tokenised sentences.

    Args:
        sentences: ``"punkt"``, NLTK's Punkt, trained without supervision on the start of
            every file; or ``"lines"``, every line is a sentence.
        tokenizer: ``"penn"``, ``"toktok"`` or ``"whitespace"``; see ``prepare``.
        files: Paths of the texts that Punkt learns from.

    Raises:
        ImportError: If NLTK is needed and missing.

    Example:

    >>> SentenceRules("lines", "whitespace", [])(["Dogs bark ."])
    ['Dogs bark .']

    Reference:
        Kiss and Strunk, 2006, https://aclanthology.org/J06-4003 (Punkt).
    """

    def __init__(self, sentences, tokenizer, files):
        self._split = _splitter(sentences, files)
        self._tokenize = _tokenizer(tokenizer)

    def __call__(self, lines) -> list[str]:
        """Return the sentences of some lines, each one string, its tokens between spaces."""
        sentences = []
        for line in lines:
            for sentence in self._split(line.strip().translate(_QUOTES)):
                if tokens := self._tokenize(sentence):
                    sentences.append(" ".join(tokens))
        return sentences


def _splitter(sentences, files):
    if sentences == "lines":
        return _whole
    nltk = _nltk()
    trainer = nltk.tokenize.punkt.PunktTrainer()
    for file in files:
        with open_text(file) as (_, text):
            start = text.read(_PUNKT_CHARACTERS)
        trainer.train(start.translate(_QUOTES), finalize=False)
    trainer.finalize_training()
    return nltk.tokenize.punkt.PunktSentenceTokenizer(trainer.get_params()).tokenize


def _tokenizer(tokenizer):
    if tokenizer == "whitespace":
        return split_tokens
    nltk = _nltk()
    if tokenizer == "toktok":
        return _Toktok(nltk.tokenize.toktok.ToktokTokenizer())
    return _Penn(nltk.tokenize.NLTKWordTokenizer())


class _Penn:
    """Penn Treebank tokens, but for double quotes, which stay as they are written."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, sentence):
        tokens = self.tokenizer.tokenize(sentence)
        return ['"' if token in ("``", "''") else token for token in tokens]


class _Toktok:
    """Toktok's tokens, but as the text has them, where it writes two of them as entities."""

    written = {"&amp;": "&", "&#124;": "|"}

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, sentence):
        return [self.written.get(token, token) for token in self.tokenizer.tokenize(sentence)]


def _whole(line):
    return [line]


def _nltk():
    try:
        import nltk.tokenize.punkt
        import nltk.tokenize.toktok
    except ImportError as error:
        raise ImportError(
            "Preparing raw text needs NLTK: pip install 'keras-elmo[pretrain]'. Text that is "
            "tokenised already needs sentences='lines', tokenizer='whitespace' instead"
        ) from error
    return nltk
