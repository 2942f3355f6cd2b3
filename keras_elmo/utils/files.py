"""Files of text and options, checked while they are read; and writing that is all or nothing."""

import contextlib
import hashlib
import json
import os
import pathlib
import stat
import uuid

LARGEST_OPTIONS = 1 << 24  # the dictionaries of a biLM over code points are in them
_LONGEST_NUMBER = 18


def read_bytes(file, origin, kind="File", most=None) -> bytes:
    """Read a file whole.

    Args:
        file: Path or binary file object.
        origin: Name of the file, for errors.
        kind: What errors call such a file.
        most: Bytes that it may have; None for any.

    Raises:
        OSError: If the file is missing or cannot be read.
        ValueError: If it is larger.
    """
    try:
        if hasattr(file, "read"):
            content = file.read() if most is None else file.read(most + 1)
        elif not stat.S_ISREG(os.stat(file).st_mode) and not os.path.isdir(file):
            raise OSError(f"{kind} {origin} is a device or a pipe, not a file")
        else:
            with open(file, "rb") as opened:
                content = opened.read() if most is None else opened.read(most + 1)
    except FileNotFoundError:
        raise FileNotFoundError(f"{kind} {origin} does not exist") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{kind} {origin} is a directory") from None
    if most is not None and len(content) > most:
        raise ValueError(
            f"{kind} {origin} is too large. Expected: at most {most} bytes. Received: more"
        )
    return content


def read_options(file, origin=None, kind="Options file"):
    """Read an options file, or any small JSON.

    Args:
        file: Path or binary file object.
        origin: Name of the file, for errors; the path if not given.
        kind: What errors call such a file.

    Returns:
        The decoded JSON: for an options file an object.

    Raises:
        OSError: If there is no such file.
        ValueError: If it is not strict JSON in UTF-8, or has more than 16 mebibytes.
    """
    if isinstance(file, dict):
        raise ValueError(
            "Expected the path of an options file. Received: a dict. For a layer with random "
            "weights use ElmoLayer(BiLMConfig.from_options(options))"
        )
    origin = str(file) if origin is None else origin
    content = read_bytes(file, origin, kind, LARGEST_OPTIONS)
    try:
        return json.loads(
            content.decode("utf-8-sig"),
            object_pairs_hook=_distinct,
            parse_constant=_refuse_constant,
            parse_int=_short_int,
        )
    except RecursionError:
        raise ValueError(f"{kind} {origin} is not JSON that can be read: nested too deep") from None
    except ValueError as error:
        raise ValueError(f"{kind} {origin} is not JSON: {error}") from error


def _distinct(pairs):
    decoded = {}
    for key, value in pairs:
        if key in decoded:
            raise ValueError(f"the key {key[:60]!r} stands twice in an object")
        decoded[key] = value
    return decoded


def _refuse_constant(name):
    raise ValueError(f"{name} is not a number of JSON")


def _short_int(digits):
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def read_lines(file, origin=None, kind="Vocabulary") -> list[str]:
    r"""Read the lines of a text in UTF-8, as of a vocabulary; the last may end or not.

    They end in ``\n``, or all of them in ``\r\n``.

    Args:
        file: Path or binary file object.
        origin: Name of the file, for errors; the path if not given.
        kind: What errors call such a file.

    Raises:
        OSError: If there is no such file.
        ValueError: If it is not UTF-8; the error names the line.
    """
    origin = str(file) if origin is None else origin
    content = read_bytes(file, origin, kind)
    end = "\r\n" if content.count(b"\r\n") == content.count(b"\n") else "\n"
    try:
        return content.decode("utf-8").removesuffix(end).split(end)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{kind} {origin} must be text in UTF-8. Received: line {line}, with bytes that are "
            f"not ({error.reason}). Convert the file first, for example with iconv"
        ) from None


@contextlib.contextmanager
def atomic_write(*paths):
    """Yield temporary paths in the same folders, which replace ``paths`` if all goes well.

    Raises:
        OSError: If something is at one of the paths that is no file.

    Example:

    >>> with atomic_write("options.json") as (temporary,):
    ...     temporary.write_text("{}")
    2
    """
    paths = [pathlib.Path(path) for path in paths]
    for path in paths:
        if path.exists() and not path.is_file():
            raise OSError(f"Expected a file to write. Received: {path}, which is something else")
    temporary = []
    try:
        for path in paths:
            source = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}.tmp")
            source.touch(exist_ok=False)  # readable for those whom the umask lets
            temporary.append(source)
        yield temporary
        for source, path in zip(temporary, paths, strict=True):
            os.replace(source, path)
    finally:
        for source in temporary:
            source.unlink(missing_ok=True)


def holds_files(folder) -> bool:
    """Return whether a folder holds more than what a killed ``atomic_write`` has not renamed."""
    return any(path.suffix != ".tmp" for path in pathlib.Path(folder).iterdir())


def digest_of(path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
