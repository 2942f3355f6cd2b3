"""Split paragraphs into tokenised sentences."""

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator

from keras_elmo.pretraining.text_files import open_text, standard_input
from keras_elmo.tokenizers.text import read_lines, without_end
from keras_elmo.tokenizers.words import SENTENCES, WordTokenizer, plain_quotes
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.files import PathLike, atomic_write, local_path, same_file

# A sentence up to a mark that ends it. The full stop of an initial or a number does not.
_STOPS = re.compile(r"""\S.*?(?:(?:(?<!\b[A-Za-z])(?<!\d)\.|[!?。])["')\]]*(?=\s)|$)""")

# Punkt learns abbreviations from this many characters of each file.
_PUNKT_CHARACTERS = 3_000_000


class SentenceRules:
    """Split paragraphs into tokenised sentences.

    Args:
        sentences: str. ``"punkt"``, ``"stops"`` or ``"lines"``; see ``prepare``.
        tokenizer: str. A name of ``WordTokenizer``.
        files: iterable of str or path. Texts that Punkt learns from.

    Examples:
        >>> SentenceRules("lines", "whitespace", [])(["Dogs bark ."])
        ['Dogs bark .']
    """

    def __init__(self, sentences: str, tokenizer: str, files: Iterable[PathLike]) -> None:
        if sentences not in SENTENCES:
            raise ValueError(
                f"Expected sentences to be one of {', '.join(SENTENCES)}. "
                f"Received: sentences={sentences!r}"
            )
        self._split = _make_splitter(sentences, files)
        # The text is cut into sentences already.
        self._tokenize = WordTokenizer(tokenizer, split_sentences=False)
        self._clean = without_end if tokenizer == "whitespace" else _clean

    def __call__(self, lines: Iterable[str]) -> list[str]:
        """Return the sentences of the lines, each one str with spaces between the tokens."""
        return [" ".join(tokens) for line in lines for tokens in self.of_line(line) if tokens]

    def of_line(self, line: str) -> list[list[str]]:
        """Return the tokens of each sentence of a line; a blank line may have no sentence."""
        try:
            return [self._tokenize(sentence) for sentence in self._split(self._clean(line))]
        except TimeoutError:  # of NLTK's regular expressions
            raise ValueError(
                "Expected lines that NLTK can split in its time limit. Received: a line of "
                f"{len(line)} characters, {line[:60]!r}. Shorten it, or choose other sentences"
            ) from None


def tokenize_file(
    input_file: PathLike,
    output_file: PathLike,
    *,
    sentences: str = "lines",
    tokenizer: str = "penn",
    progress: bool = True,
) -> dict[str, int]:
    r"""Write the tokenised sentences of a text, with the rules of ``prepare``.

    Args:
        input_file: str or path. UTF-8 text, plain, .gz, .bz2 or .xz; "-" for stdin.
        output_file: str or path. Text to write, one sentence per line, with spaces between
            tokens; "-" for stdout.
        sentences: str. ``"lines"`` keeps the lines of the input, blank lines too. ``"punkt"``
            and ``"stops"`` split lines into sentences; see ``prepare``.
        tokenizer: str. A name of ``WordTokenizer``; ``"kiwi"`` is for Korean.
        progress: bool. Whether to show a progress bar.

    Returns:
        dict. Counts of the ``lines`` read, and of the ``sentences`` and ``tokens`` written.

    Raises:
        OSError: If the input cannot be read.
        ValueError: If a name is unknown, if the input is not UTF-8, or if Punkt, which reads
            the input twice, gets stdin or a pipe.
        ImportError: If NLTK or Kiwi is needed and missing.

    Examples:
        >>> import pathlib
        >>> _ = pathlib.Path("raw.txt").write_text("It isn't far.\n\nIs it?\n")
        >>> tokenize_file("raw.txt", "tokens.txt", progress=False)
        {'lines': 3, 'sentences': 3, 'tokens': 8}
        >>> pathlib.Path("tokens.txt").read_text()
        "It is n't far .\n\nIs it ?\n"
    """
    is_stdin, by_lines = input_file == "-", sentences == "lines"
    source, target = local_path(input_file), local_path(output_file)
    if sentences == "punkt" and (is_stdin or source.is_fifo()):
        raise ValueError(
            f"Expected a file, because Punkt reads it twice. Received: sentences={sentences!r} "
            f"with {'stdin' if is_stdin else source}. Use stops or lines, or write the text to a "
            "file"
        )
    if not is_stdin and same_file(source, target):
        raise ValueError(
            f"Expected an output file other than the input file. Received: {output_file} as both"
        )
    rules = SentenceRules(sentences, tokenizer, [] if is_stdin else [input_file])
    counts = {"lines": 0, "sentences": 0, "tokens": 0}
    # Open the output first, so that its errors do not read as errors of the input.
    with _open_output(output_file) as write, _open_lines(input_file, progress) as lines:
        for line in lines:
            counts["lines"] += 1
            for tokens in rules.of_line(line):
                if tokens or by_lines:
                    write(" ".join(tokens) + "\n")
                    counts["sentences"] += 1
                    counts["tokens"] += len(tokens)
    return counts


def _open_lines(file: PathLike, progress: bool) -> contextlib.AbstractContextManager[Iterable[str]]:
    if file == "-":
        return contextlib.nullcontext(read_lines(standard_input()))
    return open_text(file, progress)


@contextlib.contextmanager
def _open_output(file: PathLike) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes text; a file appears only when the block succeeds."""
    if file == "-":
        if sys.stdout is None:
            raise OSError("Expected an open stdout. Received: stdout is closed")
        if isinstance(sys.stdout, io.TextIOWrapper):  # whose encoding may be another one
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout.write
        return
    with atomic_write(file) as temporary:
        with open(temporary, "w", encoding="utf-8", newline="\n") as opened:
            yield opened.write


def _make_splitter(sentences: str, files: Iterable[PathLike]) -> Callable[[str], list[str]]:
    if sentences != "punkt":
        return _whole_line if sentences == "lines" else _STOPS.findall
    punkt = import_extra("nltk.tokenize.punkt", "sentences='punkt'", "NLTK", "pretrain")
    trainer = punkt.PunktTrainer()
    for file in files:
        with open_text(file) as text:
            start = text.read(_PUNKT_CHARACTERS)
        trainer.train(plain_quotes(start), finalize=False)
    trainer.finalize_training()
    return punkt.PunktSentenceTokenizer(trainer.get_params()).tokenize


def _whole_line(line: str) -> list[str]:
    return [line]


def _clean(line: str) -> str:
    return plain_quotes(line.strip())
