"""Paragraphs to tokenised sentences."""

import contextlib
import os
import re
import sys

from keras_elmo.pretraining.text_files import open_text, progress_bar
from keras_elmo.tokenizers.text import read_lines, without_end
from keras_elmo.tokenizers.words import SENTENCES, WordTokenizer, nltk_tokenizers, plain_quotes
from keras_elmo.utils.files import atomic_write

# Up to a mark that ends sentences and is no part of an initial or a number.
_STOPS = re.compile(r"""\S.*?(?:(?:(?<!\b[A-Za-z])(?<!\d)\.|[!?。])["')\]]*(?=\s)|$)""")

# Punkt learns abbreviations from this much of each file.
_PUNKT_CHARACTERS = 3_000_000


class SentenceRules:
    """Turn paragraphs into tokenised sentences.

    Args:
        sentences: ``"punkt"``, NLTK's Punkt, trained without supervision on the start of
            every file; ``"stops"``, behind every full stop, question or exclamation mark
            that a space follows, but for initials and numbers; ``"lines"``, every line
            is a sentence.
        tokenizer: A name of ``WordTokenizer``.
        files: Paths of the texts that Punkt learns from.

    Raises:
        ImportError: If NLTK or Kiwi is needed and missing.

    Example:

    >>> SentenceRules("lines", "whitespace", [])(["Dogs bark ."])
    ['Dogs bark .']

    Reference:
        Kiss and Strunk, 2006, https://aclanthology.org/J06-4003 (Punkt).
    """

    def __init__(self, sentences, tokenizer, files):
        self._split = _splitter(sentences, files)
        # The text is cut into sentences already.
        self._tokenize = WordTokenizer(tokenizer, split_sentences=False)
        self._clean = without_end if tokenizer == "whitespace" else _plain

    def __call__(self, lines) -> list[str]:
        """Return the sentences of some lines, each one string, its tokens between spaces."""
        return [" ".join(tokens) for line in lines for tokens in self.of_line(line) if tokens]

    def of_line(self, line) -> list[list[str]]:
        """Return the tokens of the sentences of a line; a blank one may have none."""
        return [self._tokenize(sentence) for sentence in self._split(self._clean(line))]


def tokenize_file(
    input_file, output_file, *, sentences="lines", tokenizer="penn", progress=True
) -> dict:
    r"""Write the tokenised sentences of a text, as ``prepare`` has them for training.

    Args:
        input_file: Path of a UTF-8 text, plain, .gz, .bz2 or .xz; or "-" for stdin.
        output_file: Path of the text to write, a sentence a line and its tokens between
            spaces; or "-" for stdout.
        sentences: ``"lines"``, every line is a sentence, so that the output has the lines
            of the input, blank ones too; ``"punkt"`` or ``"stops"``, as for ``prepare``.
        tokenizer: A name of ``WordTokenizer``.
        progress: Whether to show a progress bar.

    Returns:
        Dict of ``lines`` read, and ``sentences`` and ``tokens`` written.

    Raises:
        OSError: If the input cannot be read.
        ValueError: If a name is unknown, if the input is not UTF-8, or if it is stdin with
            ``"punkt"``, which reads it twice.
        ImportError: If NLTK or Kiwi is needed and missing.

    Example:

    >>> import pathlib
    >>> _ = pathlib.Path("raw.txt").write_text("It isn't far.\n\nIs it?\n")
    >>> tokenize_file("raw.txt", "tokens.txt", progress=False)
    {'lines': 3, 'sentences': 3, 'tokens': 8}
    >>> pathlib.Path("tokens.txt").read_text()
    "It is n't far .\n\nIs it ?\n"
    """
    if sentences not in SENTENCES:
        raise ValueError(
            "tokenize_file expects sentences to be one of punkt, stops, lines. "
            f"Received: sentences={sentences!r}"
        )
    is_stdin, by_lines = input_file == "-", sentences == "lines"
    if is_stdin and sentences == "punkt":
        raise ValueError(
            f"Expected a file, for Punkt reads it twice. Received: sentences={sentences!r} with "
            "stdin. Use stops or lines, or write the text to a file"
        )
    if not is_stdin and os.path.exists(output_file) and os.path.samefile(input_file, output_file):
        raise ValueError(f"Expected an output of its own. Received: {output_file}, the input")
    rules = SentenceRules(sentences, tokenizer, [] if is_stdin else [input_file])
    counts = {"lines": 0, "sentences": 0, "tokens": 0}
    # The output first: what is wrong with it is not put down to the input.
    with _written(output_file) as write, _lines(input_file, progress) as lines:
        for line in lines:
            counts["lines"] += 1
            for tokens in rules.of_line(line):
                if tokens or by_lines:
                    write(" ".join(tokens) + "\n")
                    counts["sentences"] += 1
                    counts["tokens"] += len(tokens)
    return counts


@contextlib.contextmanager
def _lines(file, progress):
    if file == "-":
        yield read_lines(sys.stdin.buffer)
        return
    with open_text(file) as (raw, text), progress_bar(file, progress) as bar:
        yield _told(raw, text, bar)


def _told(raw, text, bar):
    """Yield lines, and tell the bar how much of the file is read."""
    for line in text:
        bar.update(raw.tell() - bar.n)
        yield line


@contextlib.contextmanager
def _written(file):
    """Yield a function that writes text to stdout, or to a file that appears when all is well."""
    if file == "-":
        yield sys.stdout.write
        return
    with atomic_write(file) as (temporary,):
        with open(temporary, "w", encoding="utf-8", newline="\n") as opened:
            yield opened.write


def _splitter(sentences, files):
    if sentences != "punkt":
        return _whole if sentences == "lines" else _STOPS.findall
    punkt = nltk_tokenizers().punkt
    trainer = punkt.PunktTrainer()
    for file in files:
        with open_text(file) as (_, text):
            start = text.read(_PUNKT_CHARACTERS)
        trainer.train(plain_quotes(start), finalize=False)
    trainer.finalize_training()
    return punkt.PunktSentenceTokenizer(trainer.get_params()).tokenize


def _whole(line):
    return [line]


def _plain(line):
    return plain_quotes(line.strip())
