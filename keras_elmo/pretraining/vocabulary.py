"""Read and write a vocabulary: a file with one token per line."""

from keras_elmo.formats.vocabulary import SKIPPED, SPECIAL_TOKENS, UNKNOWN, arrange_vocabulary
from keras_elmo.utils.files import (
    PathLike,
    local_path,
    read_vocabulary_lines,
    to_vocabulary_lines,
)

__all__ = ["SKIPPED", "SPECIAL_TOKENS", "UNKNOWN", "read_vocabulary", "write_vocabulary"]


def write_vocabulary(path: PathLike, tokens: list[str]) -> None:
    """Write a vocabulary, one token per line.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If a token is ``!!!MAXTERMID``, a line that readers of vocabularies skip, or
            the tokens would not be read back; see ``to_vocabulary_lines``.
    """
    if SKIPPED in tokens:
        raise ValueError(
            f"A vocabulary must not contain {SKIPPED}, because readers skip this line. Received: "
            f"{SKIPPED} as token {tokens.index(SKIPPED)} for {path}. Remove it. In text it counts "
            f"as {UNKNOWN}"
        )
    local_path(path).write_bytes(to_vocabulary_lines(tokens))


def read_vocabulary(path: PathLike) -> list[str]:
    """Read a vocabulary. The tokens ``<S> </S> <UNK>`` come first, wherever the file has them.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not UTF-8 or not a vocabulary; see ``arrange_vocabulary``.
    """
    return arrange_vocabulary(read_vocabulary_lines(path), path)[0]
