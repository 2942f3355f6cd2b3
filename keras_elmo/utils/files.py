"""Read text and options files with checks, and write files atomically."""

import contextlib
import errno
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from keras_elmo.utils.checks import nearest_names

PathLike: TypeAlias = str | os.PathLike
# pathlib removes one of the two slashes.
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/+", re.IGNORECASE)
# The options of a biLM over code points contain its dictionaries.
_LARGEST_JSON = 1 << 27
_LARGEST_TEXT = 1 << 28
_MOST_DIGITS = 18
_SIGNALS = signal.valid_signals()  # which takes longer than everything that uses it
_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def without_scheme(url: str) -> str:
    """Return a URL without ``https://`` and a slash at the end."""
    return _URL.sub("", url).rstrip("/")


def local_path(path: PathLike) -> pathlib.Path:
    """Return a path with ``~`` replaced by the home folder.

    Raises:
        ValueError: If the path is a URL.
    """
    expanded = pathlib.Path(os.path.expanduser(path))
    if _URL.match(str(expanded)) and not expanded.exists():
        raise ValueError(
            f"Expected a path on this machine. Received: a URL, {path}. Download the file and pass "
            "its path. keras-elmo presets lists the models that keras-elmo download fetches by name"
        )
    return expanded


def similar_paths(path: pathlib.Path) -> list[str]:
    """Return existing paths like a missing one: its first missing part has a similar name."""
    while path.name and not path.parent.exists():
        path = path.parent
    try:
        return [str(path.with_name(n)) for n in nearest_names(path.name, os.listdir(path.parent))]
    except (OSError, ValueError):
        return []


def same_file(path: PathLike, other: PathLike) -> bool:
    """Return whether two paths exist and mean the same file."""
    path, other = local_path(path), local_path(other)
    return path.exists() and other.exists() and path.samefile(other)


def output_path(path: PathLike) -> pathlib.Path:
    """Return the path to write: of a link its target, because a rename would replace the link."""
    path = local_path(path)
    return path.resolve() if path.is_symlink() else path


def read_bytes(file: PathLike, kind: str = "File", most: int | None = None) -> bytes:
    """Read a whole file of at most ``most`` bytes. Errors contain its ``kind`` and name.

    Raises:
        OSError: If the file is missing or cannot be read.
        ValueError: If the file is larger than ``most``.
    """
    name = f"{kind} {file}"
    file = local_path(file)
    check_file(file, name)
    with open(file, "rb") as opened:
        content = opened.read() if most is None else opened.read(most + 1)
    if most is not None and len(content) > most:
        raise ValueError(f"{name} is too large. Expected: at most {most} bytes. Received: more")
    return content


def check_file(file: PathLike, name: str) -> None:
    """Raise an ``OSError`` with the name of a file if it is missing or is not a plain file."""
    try:
        mode = os.stat(file).st_mode
    except FileNotFoundError:
        similar = similar_paths(pathlib.Path(file))
        hint = f". Similar names: {', '.join(similar)}" if similar else ""
        raise FileNotFoundError(f"{name} does not exist{hint}") from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{name} is a directory")
    if not stat.S_ISREG(mode):  # reading it may never end
        raise OSError(f"{name} is a device or a pipe, not a file")


def read_object(file: PathLike, kind: str = "Options file") -> dict[str, Any]:
    """Read a small JSON file that must contain an object. For errors see ``read_options``."""
    content = read_options(file, kind)
    if not isinstance(content, dict):
        raise ValueError(
            f"{kind} {file} must contain a JSON object. Received: {type(content).__name__}"
        )
    return content


def read_options(file: PathLike, kind: str = "Options file") -> Any:
    """Read an options file, or any other small JSON file, whose ``kind`` errors contain.

    Raises:
        OSError: If the file is missing or cannot be read.
        ValueError: If the file is not strict JSON in UTF-8, or is larger than 128 MiB.
    """
    if isinstance(file, dict):
        raise ValueError(
            "Expected the path of an options file. Received: a dict. For a layer with random "
            "weights use ElmoLayer(BiLMConfig.from_options(options))"
        )
    name = f"{kind} {file}"
    content = read_bytes(file, kind, _LARGEST_JSON)
    try:
        return json.loads(
            content.decode("utf-8-sig"),
            object_pairs_hook=_object_of_unique_keys,
            parse_constant=_refuse_constant,
            parse_int=_parse_short_int,
        )
    except RecursionError:
        raise ValueError(f"{name} cannot be read as JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{name} is not JSON: {error}") from error


def _object_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    decoded: dict[str, Any] = {}
    for key, value in pairs:
        if key in decoded:
            raise ValueError(f"an object has the key {key[:60]!r} twice")
        decoded[key] = value
    return decoded


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _parse_short_int(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number has {len(digits)} digits")
    return int(digits)


def read_vocabulary_lines(file: PathLike, kind: str = "Vocabulary") -> list[str]:
    r"""Read the lines of a vocabulary in UTF-8, which gzip may have compressed.

    Lines end in ``\n``, or most of them in ``\r\n``. The last line may lack its end. A byte-order
    mark at the start is removed. Nothing else is stripped, because the lines are tokens.

    Raises:
        OSError: If the file is missing or cannot be read.
        ValueError: If the file is not UTF-8. The error names the line.
    """
    name = f"{kind} {file}"
    content = _decompressed(read_bytes(file, kind), name)
    end = "\r" if 2 * content.count(b"\r\n") > content.count(b"\n") else ""
    try:
        lines = content.decode("utf-8-sig").removesuffix("\n").split("\n")
        return [line.removesuffix(end) for line in lines]
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{name} must be text in UTF-8. Received: other bytes in line {line} ({error.reason}). "
            "Convert the file first, for example with iconv"
        ) from None


def to_vocabulary_lines(tokens: Iterable[str]) -> bytes:
    r"""Return the content of a vocabulary that ``read_vocabulary_lines`` reads back.

    Raises:
        ValueError: If the first token begins with a byte-order mark, or more than half of the
            tokens end with ``\r``, because reading removes these.
    """
    content = "".join(f"{token}\n" for token in tokens)
    if content.startswith("\ufeff") or 2 * content.count("\r\n") > content.count("\n"):
        raise ValueError(
            "A vocabulary must not begin with a byte-order mark, and half of its tokens or more "
            "must end with another character than a carriage return, because readers remove both. "
            f"Received: {content[:60]!r}. Remove them"
        )
    return content.encode()


def _decompressed(content: bytes, name: str) -> bytes:
    """Return the content of a file, without the compression of gzip."""
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            content = file.read(_LARGEST_TEXT + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise OSError(f"{name} is damaged ({error}). Fetch it again") from error
    if len(content) > _LARGEST_TEXT:
        raise ValueError(
            f"{name} is too large. Expected: at most {_LARGEST_TEXT} bytes. Received: more"
        )
    return content


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Run the handlers of signals at the end: what is inside is not interrupted."""
    if threading.current_thread() is not threading.main_thread():  # the others run no handlers
        yield
        return
    received: list[tuple] = []
    known = {number: signal.getsignal(number) for number in _SIGNALS}
    handlers: dict[int, Any] = {n: handler for n, handler in known.items() if callable(handler)}
    try:
        with contextlib.ExitStack() as stack:  # restores all handlers, though one may raise
            for number, handler in handlers.items():
                stack.callback(signal.signal, number, handler)
                signal.signal(number, lambda *arguments: received.append(arguments))
            yield
    finally:
        for number, frame in received:
            handlers[number](number, frame)


class FullDiskError(OSError):
    """The error of a full disk, with the names of the files; Python's error has none."""


@contextlib.contextmanager
def disk_errors(*paths: PathLike) -> Iterator[None]:
    """Replace the error of a full disk by a ``FullDiskError``."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_IS_FULL or isinstance(error, FullDiskError):
            raise
        path = pathlib.Path(paths[0])
        free = shutil.disk_usage(path.parent).free
        raise FullDiskError(
            error.errno,
            f"Expected room to write {', '.join(map(str, paths))}. Received: {error.strerror}, "
            f"with {free} bytes free in {path.parent}. Free some, or choose another disk",
        ) from None


@contextlib.contextmanager
def atomic_write(*paths: PathLike) -> Iterator[list[pathlib.Path]]:
    """Yield temporary paths that replace ``paths`` at the end, unless an exception is raised.

    The temporary files are in the folders of ``paths``. If one of the paths cannot be replaced, an
    ``OSError`` is raised, and the others are restored.

    Examples:
        >>> with atomic_write("options.json") as (temporary,):
        ...     temporary.write_text("{}")
        2
    """
    targets = [output_path(path) for path in paths]
    for target in targets:
        if not target.parent.is_dir():
            raise FileNotFoundError(f"There is no folder {target.parent} for {target.name}")
        if target.exists() and not target.is_file():
            raise OSError(f"Expected a file to write. Received: {target}, which is something else")
    temporary: list[pathlib.Path] = []
    try:
        with disk_errors(*targets):
            for target in targets:
                path = _temporary_name(target)
                path.touch(exist_ok=False)  # the umask decides who may read the file
                temporary.append(path)
            yield temporary
        with deferred_signals():
            _replace(temporary, targets)
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)


def _temporary_name(target: pathlib.Path) -> pathlib.Path:
    return target.with_name(f"{target.name}.{uuid.uuid4().hex[:16]}.tmp")


def _replace(paths: list[pathlib.Path], targets: list[pathlib.Path]) -> None:
    """Rename paths to targets, all or none."""
    if not paths:
        return
    target, backup = targets[0], _temporary_name(targets[0])
    existed = len(targets) > 1 and target.exists()
    if existed:
        try:
            os.link(target, backup)
        except OSError:  # a file system without links
            shutil.copy2(target, backup)
    try:
        os.replace(paths[0], target)
        try:
            _replace(paths[1:], targets[1:])
        except OSError:
            os.replace(backup, target) if existed else target.unlink()
            raise
    finally:
        backup.unlink(missing_ok=True)


@contextlib.contextmanager
def made_folder(folder: pathlib.Path) -> Iterator[None]:
    """Make a folder; after an exception, remove it if it is new and empty."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def write_files(
    directory: PathLike, writers: Mapping[str, Callable[[pathlib.Path], object] | None]
) -> None:
    """Write several files into a directory, old or new: all of them or none.

    Each of the ``writers``, by the name of the file, takes a temporary path and writes there. If a
    writer is None, its file is removed after the others are written.
    """
    paths = {local_path(directory) / name: write for name, write in writers.items()}
    written = {path: write for path, write in paths.items() if write is not None}
    with made_folder(local_path(directory)), atomic_write(*written) as temporary:
        for write, path in zip(written.values(), temporary, strict=True):
            write(path)
    for path, writer in paths.items():
        if writer is None:
            path.unlink(missing_ok=True)


def write_json(path: pathlib.Path, value: Any) -> None:
    """Write a value as indented JSON in UTF-8."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, "utf-8", "backslashreplace")  # a file name may not be UTF-8


def check_new_directory(directory: pathlib.Path, receiver: str, remedy: str) -> None:
    """Raise a ``ValueError`` if a path is a file, or a directory with files."""
    if directory.exists() and (not directory.is_dir() or holds_files(directory)):
        found = "contains files" if directory.is_dir() else "is a file"
        raise ValueError(
            f"{receiver} expects a directory that is new or empty. "
            f"Received: {directory}, which {found}. {remedy}"
        )


def holds_files(folder: PathLike) -> bool:
    """Return whether a folder has entries, except temporary files of ``atomic_write``."""
    return any(path.suffix != ".tmp" for path in pathlib.Path(folder).iterdir())


def digest_of(path: PathLike, algorithm: str = "sha256") -> str:
    """Return the digest of a file in hexadecimal."""
    check_file(path, f"File {path}")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
