"""Read small files with clear errors, and write files atomically."""

import contextlib
import gzip
import hashlib
import json
import os
import pathlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import filelock

from keras_elmo.utils.checks import invalid

PathLike: TypeAlias = str | os.PathLike


def local_path(path: PathLike) -> pathlib.Path:
    """Return a path with ``~`` replaced by the home folder."""
    return pathlib.Path(os.path.expanduser(path))


@contextlib.contextmanager
def library_errors(problem: str, advice: str) -> Iterator[None]:
    """Replace errors of a library, which can have any type, by an ``OSError`` with their reason."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise OSError(f"{problem} ({reason}). {advice}") from error


def check_file(file: PathLike, name: str) -> None:
    """Raise a ``FileNotFoundError`` with the name of a file if it is missing or a directory."""
    if not local_path(file).is_file():
        raise FileNotFoundError(f"{name} does not exist, or is not a file")


def read_bytes(file: PathLike, kind: str = "File") -> bytes:
    """Read a whole file. The ``OSError`` for a missing file contains its ``kind`` and name."""
    check_file(file, f"{kind} {file}")
    return local_path(file).read_bytes()


def read_options(file: PathLike, kind: str = "Options file", content_type: type = dict) -> Any:
    """Read an options file, or any other small JSON file, whose ``kind`` errors contain.

    Raises:
        OSError: If the file is missing or cannot be read.
        ValueError: If the file is not JSON in UTF-8, or its content has another type.
    """
    content = read_bytes(file, kind)
    try:
        options = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{kind} {file} is not JSON: {error}") from error
    if not isinstance(options, content_type):
        expected = f"{kind} {file} must contain a {content_type.__name__} in JSON"
        raise invalid(expected, type(options).__name__)
    return options


def read_vocabulary_lines(file: PathLike, kind: str = "Vocabulary") -> list[str]:
    r"""Read the lines of a vocabulary in UTF-8, which gzip may have compressed.

    Lines end in ``\n``, or most of them in ``\r\n``. The last line may lack its end. A byte-order
    mark at the start is removed. Nothing else is stripped, because the lines are tokens.

    Raises:
        OSError: If the file is missing, damaged, or cannot be read.
        ValueError: If the file is not UTF-8. The error names the line.
    """
    content = read_bytes(file, kind)
    if content.startswith(b"\x1f\x8b"):
        with library_errors(f"{kind} {file} is damaged", "Fetch it again"):
            content = gzip.decompress(content)
    end = "\r" if 2 * content.count(b"\r\n") > content.count(b"\n") else ""
    try:
        lines = content.decode("utf-8-sig").removesuffix("\n").split("\n")
        return [line.removesuffix(end) for line in lines]
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise invalid(
            f"{kind} {file} must be text in UTF-8",
            f"other bytes in line {line} ({error.reason})",
            "Convert the file first, for example with iconv",
        ) from None


@contextlib.contextmanager
def atomic_write(path: PathLike) -> Iterator[pathlib.Path]:
    """Yield a temporary path, which replaces ``path`` at the end unless an exception is raised.

    The temporary file is in the folder of ``path``. If ``path`` is a link, its target is replaced.

    Examples:
        >>> with atomic_write("options.json") as temporary:
        ...     temporary.write_text("{}")
        2
    """
    target = local_path(path).resolve()
    temporary = target.with_name(f"{target.name}.{uuid.uuid4().hex[:16]}.tmp")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: pathlib.Path, purpose: str) -> Iterator[None]:
    """Lock a file. Two processes, or two threads, cannot lock it at the same time.

    ``purpose`` says in the error what the owner of the lock does, as in ``"writes out.hdf5"``.

    Raises:
        OSError: If another process or thread has locked the file.
    """
    try:
        with filelock.FileLock(path, timeout=0):
            yield
    except filelock.Timeout:
        raise OSError(
            f"Another process {purpose} already. Received: its lock {path}. Wait for it, or stop it"
        ) from None


def write_files(
    directory: PathLike, writers: Mapping[str, Callable[[pathlib.Path], object]]
) -> None:
    """Write files into a directory, old or new. Replace no file before all of them are written.

    Each of the ``writers``, by the name of the file, takes a temporary path and writes there.
    """
    directory = local_path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for name, write in writers.items():
            write(stack.enter_context(atomic_write(directory / name)))


def write_json(path: pathlib.Path, value: Any) -> None:
    """Write a value as indented JSON in UTF-8."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, "utf-8", "backslashreplace")  # a file name may not be UTF-8


def check_output(
    path: PathLike, overwrite: bool = False, inputs: Iterable[PathLike] = ()
) -> pathlib.Path:
    """Return the path of a file to write, or refuse to write it.

    Args:
        path: str or path. The file to write.
        overwrite: bool. Whether an existing file may be replaced.
        inputs: paths. The files that are read, for example ``Format.files``. They are never
            replaced.

    Raises:
        ValueError: If the file exists and ``overwrite`` is False, is one of the ``inputs``, is
            not a plain file, or its folder does not exist.
    """
    output, problem = local_path(path), ""
    read = [file for file in map(local_path, inputs) if file.exists()]
    if not output.parent.is_dir():
        problem = f"in the folder {output.parent}, which does not exist. Make the folder first"
    elif output.exists() and not output.is_file():
        problem = "which is not a file. Choose another path"
    elif output.exists() and any(map(output.samefile, read)):
        problem = "which is also an input. Choose another path"
    elif output.exists() and not overwrite:
        problem = "which exists. Pass overwrite=True (--force) to replace it"
    if problem:
        raise invalid("Expected the path of a new file", f"{output}, {problem}")
    return output


def check_new_directory(directory: pathlib.Path, receiver: str, remedy: str) -> None:
    """Raise a ``ValueError`` if a path is a file, or a directory with files."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        found = "contains files" if directory.is_dir() else "is a file"
        expected = f"{receiver} expects a directory that is new or empty"
        raise invalid(expected, f"{directory}, which {found}", remedy)


def digest_of(path: PathLike, algorithm: str = "sha256") -> str:
    """Return the digest of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
