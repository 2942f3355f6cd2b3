"""Read text files, plain or compressed."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from tqdm import tqdm

from keras_elmo.tokenizers.text import OPENERS, decompression_errors, read_lines, split_tokens
from keras_elmo.utils.files import PathLike, local_path


@contextlib.contextmanager
def open_text(file: PathLike, progress: bool = False) -> Iterator[Iterator[str]]:
    """Open a UTF-8 text, plain, .gz, .bz2 or .xz, and yield its lines without their ends.

    With ``progress``, a bar shows how much of the file its lines have read.

    Raises:
        OSError: If the file cannot be read or is damaged.
        ValueError: If the text is not UTF-8, or a line is too long.
    """
    file = local_path(file)
    opener: Any = OPENERS.get(file.suffix.lower(), contextlib.nullcontext)
    with (
        decompression_errors(file),
        open(file, "rb") as raw,
        opener(raw) as text,
        tqdm(
            total=os.path.getsize(file),
            unit="B",
            unit_scale=True,
            desc=file.name,
            disable=not progress,
        ) as bar,
    ):
        yield _followed(read_lines(text, str(file)), raw, bar)


def _followed(lines: Iterator[str], raw: BinaryIO, bar: tqdm) -> Iterator[str]:
    """Yield lines; the bar follows the bytes that were read."""
    for line in lines:
        if not bar.disable:
            bar.update(raw.tell() - bar.n)
        yield line


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
