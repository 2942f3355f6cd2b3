"""Unpack .zip and .tar archives. A .tar archive can be compressed."""

import bz2
import gzip
import lzma
import os
import pathlib
import stat
import tarfile
import zipfile
from collections.abc import Callable
from typing import IO, Any, cast

from keras_elmo.formats.checks import largest_size

_MOST_FILES = 10_000
# The function that opens a compressed .tar, by the first bytes of the file.
_OPENERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}


class _RefusedError(Exception):
    """A refusal of ours, not an error of the libraries."""


def unpack(path: pathlib.Path, directory: pathlib.Path) -> None:
    """Unpack an archive of plain files into a directory. The name of the archive can be any."""
    try:
        with open(path, "rb") as file:
            start = file.read(6)
        if start.startswith(b"PK"):
            _unpack_zip(path, directory)
        else:
            opener = next((x for magic, x in _OPENERS.items() if start.startswith(magic)), open)
            _unpack_tar(path, directory, opener)
    except _RefusedError as error:
        raise ValueError(f"Archive {path} {error}") from None
    except (RuntimeError, NotImplementedError) as error:  # a password, an unknown compression
        raise ValueError(f"Archive {path} cannot be unpacked: {error}") from error
    except Exception as error:  # damaged files make the libraries raise errors of many types
        reason = " ".join(str(error).split())[:300]
        # Names in the archive cause these three errors, not the disk.
        of_names = NotADirectoryError, IsADirectoryError, FileExistsError
        is_of_disk = isinstance(error, OSError) and error.errno is not None
        if is_of_disk and not isinstance(error, of_names):
            raise OSError(
                f"Archive {path} cannot be unpacked to {directory} ({reason}). Set TMPDIR to "
                "unpack it elsewhere"
            ) from error
        raise OSError(
            f"Archive {path} is damaged or not a .zip, .tar, .tar.gz, .tar.bz2 or .tar.xz file "
            f"({reason}). Fetch it again, or unpack it and pass the directory"
        ) from error


def _unpack_zip(path: pathlib.Path, directory: pathlib.Path) -> None:
    limits = _Limits(path)
    with zipfile.ZipFile(path) as archive:
        files = [member for member in archive.infolist() if not member.is_dir()]
        for member in files:
            limits.check_file(member.filename, not stat.S_ISLNK(member.external_attr >> 16))
            limits.add(member.file_size)
        for member in files:  # zipfile unpacks no more than the declared size
            archive.extract(member, directory)


def _unpack_tar(path: pathlib.Path, directory: pathlib.Path, opener: Callable[..., Any]) -> None:
    with opener(path, "rb") as file:
        limits = _Limits(path, file)
        stream = cast(Any, limits)
        with tarfile.open(fileobj=stream, mode="r|", bufsize=tarfile.RECORDSIZE) as archive:
            # Python before 3.11.4 has no filters. The checks below refuse all that they refuse.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            for member in archive:
                if not member.isdir():
                    limits.check_file(member.name, member.isreg() and not member.issparse())
                    archive.extract(member, directory, set_attrs=False)


class _Limits:
    """The checks of one archive. For a .tar it is the stream that is read, headers included."""

    def __init__(self, path: pathlib.Path, stream: IO[bytes] | None = None) -> None:
        self._stored = path.stat().st_size
        self._stream = stream
        self._files: set[pathlib.PurePosixPath] = set()
        self._size = 0

    def check_file(self, name: str, is_plain: bool) -> None:
        file = pathlib.PurePosixPath(name.replace("\\", "/"))
        if file.is_absolute() or ".." in file.parts or ":" in name:
            problem = "a name that points outside"
        elif max(map(len, os.fsencode(name).split(b"/"))) > 255 or len(name) > 1000:
            problem = "a name of more than 255 bytes, or a path of more than 1000 characters"
        elif not is_plain:
            problem = "a link or a device"
        elif file in self._files:
            problem = "a name twice"
        elif len(self._files) >= _MOST_FILES:
            problem = f"more than {_MOST_FILES} files"
        else:
            self._files.add(file)
            return
        raise _RefusedError(f"must contain plain files only. Received: {problem}, {name[:100]!r}")

    def add(self, size: int) -> None:
        self._size += size
        if self._size > (most := largest_size(self._stored)):
            raise _RefusedError(
                f"must unpack to at most {most} bytes, for its {self._stored} bytes. "
                f"Received: {self._size} bytes or more"
            )

    def read(self, size: int) -> bytes:
        block = cast(IO[bytes], self._stream).read(size)
        self.add(len(block))
        return block
