"""Read text files, plain or compressed."""

import contextlib
import io
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, TextIO

from keras_elmo.tokenizers.text import OPENERS, decompression_errors, read_line, split_tokens
from keras_elmo.utils.files import PathLike, local_path
from keras_elmo.utils.progress import progress_bar


class _Lines(io.TextIOWrapper):
    """A text whose lines are of bounded length; a progress bar follows the bytes that are read."""

    def __init__(self, raw: BinaryIO, path: pathlib.Path, bar: Any) -> None:
        opener: Any = OPENERS.get(path.suffix.lower())
        super().__init__(opener(raw) if opener else raw, encoding="utf-8-sig", newline="\n")
        self._raw, self._name, self._bar = raw, str(path), bar
        self._number = 0

    def __next__(self) -> str:  # type: ignore[override]
        self._number += 1
        line = read_line(self, self._number, self._name)
        if not line:
            raise StopIteration
        if not self._bar.disable and self._raw.seekable():
            self._bar.update(self._raw.tell() - self._bar.n)
        return line


@contextlib.contextmanager
def open_text(file: PathLike, progress: bool = False) -> Iterator[TextIO]:
    """Open a UTF-8 text, plain, .gz, .bz2 or .xz, with or without a byte-order mark.

    With ``progress``, a bar shows how much of the file its lines have read.

    Raises:
        OSError: If the file cannot be read or is damaged.
        ValueError: If the text is not UTF-8, or a line is too long.
    """
    file = local_path(file)
    try:
        with (
            decompression_errors(file),
            open(file, "rb") as raw,
            progress_bar(
                progress,
                total=os.path.getsize(file),
                unit="B",
                unit_scale=True,
                desc=file.name,
            ) as bar,
            _Lines(raw, file, bar) as text,
        ):
            yield text
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected UTF-8 text, plain, .gz, .bz2 or .xz. Received: {file}, with other bytes "
            f"({error.reason}). Convert the file first, for example with iconv"
        ) from error


def standard_input() -> BinaryIO:
    """Return stdin in binary.

    Raises:
        OSError: If stdin is closed.
    """
    if sys.stdin is None:
        raise OSError("Expected text on stdin. Received: stdin is closed. Pass a file, or a pipe")
    return sys.stdin.buffer


def read_sentences(file: PathLike) -> list[list[str]]:
    """Read one sentence per line, tokens between spaces or tabs; skip blank lines."""
    with open_text(file) as text:
        return [tokens for line in text if (tokens := split_tokens(line))]
