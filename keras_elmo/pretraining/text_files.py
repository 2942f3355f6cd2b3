"""Text files, plain or compressed."""

import contextlib
import io
import lzma
import os
import pathlib
import zlib

from tqdm import tqdm

from keras_elmo.tokenizers.text import OPENERS, split_tokens


@contextlib.contextmanager
def open_text(file):
    """Open a UTF-8 text, plain, .gz, .bz2 or .xz, with or without a byte order mark.

    Yields:
        The file as bytes, which tell how far it is read, and as text, decompressed.

    Raises:
        OSError: If it cannot be read, or is damaged.
        ValueError: If it is not UTF-8.
    """
    opener = OPENERS.get(pathlib.Path(file).suffix.lower())
    try:
        with (
            open(file, "rb") as raw,
            io.TextIOWrapper(
                opener(raw) if opener else raw, encoding="utf-8-sig", newline="\n"
            ) as text,
        ):
            yield raw, text
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the system, with the name of the file
        raise OSError(f"{file} is damaged: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected UTF-8 text, plain, .gz, .bz2 or .xz. Received: {file}, with bytes that are "
            f"not ({error.reason}). Convert it first, for example with iconv"
        ) from error


def progress_bar(file, is_shown):
    """Return a bar of the bytes of a file."""
    return tqdm(
        total=os.path.getsize(file),
        unit="B",
        unit_scale=True,
        desc=pathlib.Path(file).name,
        disable=not is_shown,
    )


def read_sentences(file) -> list[list[str]]:
    """Return the sentences of a text, one a line, tokens between spaces or tabs; blank ones too."""
    with open_text(file) as (_, text):
        return [split_tokens(line) for line in text]
