"""Read text files, plain or compressed."""

import contextlib
import io
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, TextIO

from tqdm import tqdm

from keras_elmo.tokenizers.text import OPENERS, decompression_errors, read_line, split_tokens
from keras_elmo.utils.files import local_path


class _Lines(io.TextIOWrapper):
    """A text whose lines are of bounded length."""

    number = 0
    shown = ""

    def __next__(self) -> str:  # type: ignore[override]
        self.number += 1
        if line := read_line(self, self.number, self.shown):
            return line
        raise StopIteration


@contextlib.contextmanager
def open_text(file: str | pathlib.Path) -> Iterator[tuple[BinaryIO, TextIO]]:
    """Open a UTF-8 text, plain, .gz, .bz2 or .xz, with or without a byte-order mark.

    Yields the compressed file, whose position shows the progress, and the text.

    Raises:
        OSError: If the file cannot be read or is damaged.
        ValueError: If the text is not UTF-8, or a line is too long.
    """
    file = local_path(file)
    opener: Any = OPENERS.get(file.suffix.lower())
    try:
        with (
            decompression_errors(file),
            open(file, "rb") as raw,
            _Lines(opener(raw) if opener else raw, encoding="utf-8-sig", newline="\n") as text,
        ):
            text.shown = str(file)
            yield raw, text
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


@contextlib.contextmanager
def open_lines(file: str | pathlib.Path, progress: bool) -> Iterator[Iterator[str]]:
    """Open a text as ``open_text`` does; a progress bar follows the bytes that are read."""
    with (
        open_text(file) as (raw, text),
        tqdm(
            total=os.path.getsize(local_path(file)),
            unit="B",
            unit_scale=True,
            desc=pathlib.Path(file).name,
            disable=not progress,
        ) as bar,
    ):

        def lines() -> Iterator[str]:
            for line in text:
                bar.update(raw.tell() - bar.n)
                yield line

        yield lines()


def read_sentences(file: str | pathlib.Path) -> list[list[str]]:
    """Read one sentence per line, tokens between spaces or tabs; keep blank lines."""
    with open_text(file) as (_, text):
        return [split_tokens(line) for line in text]
