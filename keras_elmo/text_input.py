"""Read text: lines of files, columns of tables, and raw text as tokenised sentences."""

import bz2
import contextlib
import csv
import functools
import gzip
import itertools
import json
import lzma
import os
import pathlib
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TextIO, TypeAlias

from keras_elmo.tokenizers.text_tokens import make_tokenizer, plain_quotes
from keras_elmo.tokenizers.token_lists import check_text, split_tokens
from keras_elmo.utils.batches import cut
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.files import PathLike, atomic_write, check_output, local_path
from keras_elmo.utils.progress import progress_bar

Source: TypeAlias = PathLike | BinaryIO | TextIO

# The function that opens a compressed text, by the ending of the file.
OPENERS: dict[str, Callable] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_FASTA = (".fasta", ".faa", ".fas", ".fa")  # the format of proteins

# Patterns that find the sentences of a line.
_SENTENCES = {
    # Up to a mark that ends it. The full stop of an initial or a number does not. Chinese,
    # Japanese, Arabic and Hindi marks need no blank after them.
    "stops": re.compile(
        r"""\S.*?(?:(?:(?<!\b[A-Za-z])(?<!\d)\.|[!?])["')\]]*(?=\s)"""
        r"""|[。！？؟।]+["')\]”’」』）】》]*|$)"""
    ),
    "lines": re.compile(r"\A.*", re.DOTALL),
}
# Punkt learns abbreviations from the first lines of each file, up to this many characters.
_PUNKT_CHARACTERS = 3_000_000


def read_lines(source: Source, progress: bool = False) -> Iterator[str]:
    """Yield the lines of a UTF-8 text, without their ends.

    A path that ends with .gz, .bz2 or .xz is decompressed. A path of FASTA (.fasta, .faa, .fas or
    .fa) gives the sequence of each record as one line.

    Raises:
        OSError: If the file cannot be read or is damaged.
        ValueError: If the bytes are not UTF-8; the error names the line.
    """
    lines = (line.rstrip("\r\n") for line in _lines(source, progress))
    return _sequences(lines) if _ending_of(source) in _FASTA else lines


def read_sentences(file: PathLike) -> list[list[str]]:
    """Read one sentence per line, tokens between spaces or tabs; skip blank lines."""
    return [tokens for line in read_lines(file) if (tokens := split_tokens(line))]


def read_token_lists(
    source: Source,
    column: str | None = None,
    tokenize: Callable[[str], list[str]] | None = None,
) -> Iterator[list[str]]:
    r"""Yield the tokens of each line of a text, or of each cell in a column of a table.

    A cell is a text or a list of tokens. A .csv is quoted as usual. A .tsv has no quoting: a line
    is a row, a tab ends a cell, and a quote is text.

    Args:
        source: path or open file. A UTF-8 text with one sentence a line; or the path of a CSV,
            TSV, JSON lines or Parquet file.
        column: str or None. Column of the table.
        tokenize: Callable or None. Maps raw text to tokens. None is for tokenised sentences.

    Raises:
        ImportError, OSError: If pyarrow is missing for Parquet; if the file cannot be read.
        ValueError: If the input is not valid, a cell has no text, or a table has no column of
            this name; the error names the line or row. Rows are counted from 0.

    Examples:
        >>> _ = pathlib.Path("reviews.csv").write_text("text,label\nGood film.,1\n")
        >>> list(read_token_lists("reviews.csv", "text", keras_elmo.WordTokenizer("penn")))
        [['Good', 'film', '.']]
    """
    ending = _ending_of(source)
    if column is None and ending not in _TABLES:
        if ending in _FASTA and tokenize is None:
            raise invalid("A FASTA file is raw text", f"{source} as tokens", "Pass raw (--raw)")
        yield from map(tokenize or split_tokens, read_lines(source))
        return
    if not isinstance(source, PathLike) or ending not in _TABLES:
        raise invalid(f"column expects a file that ends with {', '.join(_TABLES)}", source)
    for number, cell in enumerate(_TABLES[ending](local_path(source), column)):
        if isinstance(cell, list) and all(isinstance(token, str) for token in cell):
            yield cell
            continue
        text = check_text(cell, f"row {number} of {source}")
        yield tokenize(text) if tokenize else split_tokens(re.sub(r"[\r\n]+", " ", text))


def _ending_of(source: Source) -> str:
    """Return the ending of a path in lower case; of a compressed file, the one before .gz etc."""
    suffixes = pathlib.Path(source).suffixes if isinstance(source, PathLike) else []
    endings = [suffix.lower() for suffix in suffixes]
    return next((ending for ending in reversed(endings) if ending not in OPENERS), "")


def _lines(source: Source, progress: bool = False) -> Iterator[str]:
    """Yield the lines of a text with their ends."""
    if not isinstance(source, PathLike):
        yield from _decoded_lines(source, str(getattr(source, "name", "the input")))
        return
    path = local_path(source)
    bar = {"total": os.path.getsize(path), "unit": "B", "unit_scale": True, "desc": path.name}
    try:
        with open(path, "rb") as raw, progress_bar(progress, **bar) as shown:
            opener = OPENERS.get(path.suffix.lower())
            for line in _decoded_lines(opener(raw) if opener else raw, str(path)):
                if progress and raw.seekable():
                    shown.update(raw.tell() - shown.n)
                yield line
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the operating system's error names the file
        raise OSError(f"{path} is damaged: {error}") from error


def _decoded_lines(file: Iterable[str | bytes], name: str) -> Iterator[str]:
    """Yield the lines of a binary or text file; remove a byte-order mark at the start of bytes."""
    for number, line in enumerate(file, 1):
        if isinstance(line, bytes):
            try:
                line = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise invalid(
                    "Expected UTF-8 text, plain, .gz, .bz2 or .xz",
                    f"line {number} of {name}, which is not UTF-8 ({error.reason})",
                    "Convert the file first, for example with iconv",
                ) from None
        yield line


def _sequences(lines: Iterable[str]) -> Iterator[str]:
    """Yield the sequence of each record of FASTA: a header after ``>``, then wrapped lines."""
    parts: list[str] = []
    is_record = False
    for line in itertools.chain(lines, [">"]):
        if line.startswith(">"):
            if parts or is_record:
                yield "".join(parts)
            parts, is_record = [], True
        elif line.strip():
            parts.append(line.strip())


def _cells_of_csv(path: pathlib.Path, column: str | None, **form: Any) -> Iterator[str]:
    csv.field_size_limit(2**31 - 1)
    rows: Any = csv.DictReader(_lines(path), strict=True, **form)
    try:
        _check_column(column, rows.fieldnames or [], str(path))
        for row in rows:
            if None in row or None in row.values():  # of a row with more fields, or with fewer
                raise csv.Error("another number of fields")
            yield row[column]
    except csv.Error as error:
        raise invalid(
            f"Expected a table with as many fields in each row as in the first, {path}",
            f"{error} in line {rows.reader.line_num}",
            "Quote texts that contain commas, tabs or quotes in a .csv, or write a .jsonl",
        ) from None


def _cells_of_json(path: pathlib.Path, column: str | None) -> Iterator[Any]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        place = f"line {number} of {path}"
        try:
            pairs = json.loads(line, object_pairs_hook=tuple)  # a dict hides repeated names
        except (ValueError, RecursionError) as error:
            raise invalid("Expected a JSON object in each line", f"{error} in {place}") from None
        row = pairs if isinstance(pairs, tuple) else ()
        _check_column(column, [name for name, _ in row], place)
        yield dict(row)[column]


def _cells_of_parquet(path: pathlib.Path, column: str | None) -> Iterator[Any]:
    parquet = import_extra("pyarrow.parquet", "Parquet", "PyArrow", "tables")
    arrow = import_extra("pyarrow", "Parquet", "PyArrow", "tables")
    try:
        with parquet.ParquetFile(path) as file:
            _check_column(column, file.schema_arrow.names, str(path))
            for batch in file.iter_batches(batch_size=64, columns=[column]):
                yield from batch.column(0).to_pylist()
    except arrow.ArrowException as error:
        raise OSError(f"{path} is damaged or not a Parquet file ({error})") from None


def _check_column(column: Any, names: Iterable[str], place: str) -> None:
    names = list(names)
    if names.count(column) != 1:
        raise invalid(
            f"Expected column (--column) to be the name of one column of {place}",
            f"column={column!r}, and the columns {', '.join(names) or 'none'}",
            "Choose one, or rename the file if it is plain text",
        )


_TABLES: dict[str, Callable[[pathlib.Path, str | None], Iterator[Any]]] = {
    ".csv": _cells_of_csv,
    ".tsv": functools.partial(_cells_of_csv, delimiter="\t", quoting=csv.QUOTE_NONE),
    ".jsonl": _cells_of_json,
    ".ndjson": _cells_of_json,
    ".parquet": _cells_of_parquet,
}


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
        make_tokenizer(tokenizer)  # raises errors before Punkt reads the files
        if sentences == "punkt":
            self._split: Any = _train_punkt(files)
        elif sentences in _SENTENCES:
            self._split = _SENTENCES[sentences].findall
        else:
            expected = f"Expected sentences to be one of punkt, {', '.join(_SENTENCES)}"
            raise invalid(expected, f"sentences={sentences!r}")
        self._tokenizer = tokenizer

    def __call__(self, lines: Iterable[str]) -> list[str]:
        """Return the sentences of the lines, each one str with spaces between the tokens."""
        return [" ".join(tokens) for line in lines for tokens in self.of_line(line) if tokens]

    def of_line(self, line: str) -> list[list[str]]:
        """Return the tokens of each sentence of a line; a blank line may have no sentence."""
        is_tokenized = self._tokenizer == "whitespace"
        text = line.rstrip("\r\n") if is_tokenized else plain_quotes(line.strip())
        return list(map(make_tokenizer(self._tokenizer), self._split(text)))


def _train_punkt(files: Iterable[PathLike]) -> Callable[[str], list[str]]:
    """Return a function that cuts a text into sentences, with abbreviations from the files."""
    punkt = import_extra("nltk.tokenize.punkt", "sentences='punkt'", "NLTK", "pretrain")
    trainer = punkt.PunktTrainer()
    for file in files:
        start = next(cut(_lines(file), sys.maxsize, _PUNKT_CHARACTERS), [])
        trainer.train(plain_quotes("".join(start)), finalize=False)
    trainer.finalize_training()
    return punkt.PunktSentenceTokenizer(trainer.get_params()).tokenize


def tokenize_file(
    input_file: PathLike,
    output_file: PathLike,
    *,
    sentences: str = "lines",
    tokenizer: str = "penn",
    overwrite: bool = False,
    progress: bool = True,
) -> dict[str, int]:
    r"""Write the tokenised sentences of a text, with the rules of ``prepare``.

    Args:
        input_file: str or path. UTF-8 text, plain, .gz, .bz2 or .xz, or - for stdin.
        output_file: str or path. Text to write, with spaces between tokens, or - for stdout.
        sentences: str. ``"lines"`` keeps the lines of the input, blank lines too; ``"punkt"`` and
            ``"stops"`` split them, as in ``prepare``.
        tokenizer: str. A name of ``WordTokenizer``.
        overwrite: bool. Whether to replace an output that exists.
        progress: bool. Whether to show a progress bar.

    Returns:
        dict. Counts of the ``lines`` read, and of the ``sentences`` and ``tokens`` written.

    Raises:
        ImportError, OSError: If NLTK or Kiwi is missing; if the input cannot be read.
        ValueError: If an argument is invalid, the input is not UTF-8, or the output exists. Punkt
            reads the input twice, so it refuses stdin and pipes.

    Examples:
        >>> _ = pathlib.Path("raw.txt").write_text("It isn't far.\n\nIs it?\n")
        >>> tokenize_file("raw.txt", "tokens.txt", progress=False)
        {'lines': 3, 'sentences': 3, 'tokens': 8}
        >>> pathlib.Path("tokens.txt").read_text()
        "It is n't far .\n\nIs it ?\n"
    """
    files = [] if input_file == "-" else [local_path(input_file)]
    if sentences == "punkt" and (not files or files[0].is_fifo()):
        raise invalid(
            "Expected a file, because Punkt reads it twice",
            f"sentences='punkt' with {input_file}",
            "Use stops or lines, or write the text to a file",
        )
    rules = SentenceRules(sentences, tokenizer, files)
    counts = {"lines": 0, "sentences": 0, "tokens": 0}
    with contextlib.ExitStack() as stack:
        output: TextIO = sys.stdout
        if output_file != "-":
            path = stack.enter_context(atomic_write(check_output(output_file, overwrite, files)))
            output = stack.enter_context(open(path, "w", encoding="utf-8", newline="\n"))
        for line in read_lines(files[0] if files else sys.stdin.buffer, progress):
            counts["lines"] += 1
            for tokens in rules.of_line(line):
                if tokens or sentences == "lines":
                    output.write(" ".join(tokens) + "\n")
                    counts["sentences"] += 1
                    counts["tokens"] += len(tokens)
    return counts
