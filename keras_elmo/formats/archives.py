"""A directory, .zip or .tar.gz as a set of named files, none of which is unpacked to disk."""

import contextlib
import gzip
import io
import lzma
import pathlib
import struct
import tarfile
import zipfile
import zlib

from keras_elmo.formats.hdf5 import LARGEST_RATIO, SLACK
from keras_elmo.utils.files import read_bytes

_MOST_MEMBERS = 10_000
_VARIABLES = "variables"
_BLOCK = 1 << 20
# What libraries raise on files that are damaged.
DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    TypeError,
    MemoryError,
    struct.error,
)


def open_archive(path):
    """Return the ``Folder``, ``Zip`` or ``Tar`` at a path, whatever its name ends in.

    Raises:
        OSError: If it is none of the three, or damaged.
        ValueError: If a member points outside it, or it would unpack to far more than it is.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        return Folder(path)
    with open(path, "rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    return Tar(path) if is_gzip else Zip(path)


class Folder:
    """The files directly in a directory, and in the ``variables`` of a SavedModel.

    Attributes:
        names: Their names.
    """

    def __init__(self, path):
        self._path = path
        members = [*path.iterdir(), *(path / _VARIABLES).glob("*")]
        self.names = sorted(p.relative_to(path).as_posix() for p in members if not p.is_dir())

    def origin(self, name) -> str:
        """Return what errors call a member."""
        return str(self._path / name)

    def file(self, name, most=None):
        """Return a member to read: a path, or bytes in memory, at most so many."""
        return self._path / name

    def blocks(self, name):
        """Yield the bytes of a member in blocks."""
        with open(self._path / name, "rb") as file:
            while block := file.read(_BLOCK):
                yield block

    def size(self, name) -> int:
        """Return the bytes of a member."""
        return (self._path / name).stat().st_size

    def read_ranges(self, name, ranges):
        """Yield the bytes of parts of a member, given as (offset, size) by rising offset."""
        with open(self._path / name, "rb") as file:
            for offset, size in ranges:
                file.seek(offset)
                yield file.read(size)


class _Packed:
    """What .zip and .tar.gz have in common; subclasses give ``_sizes`` and ``_stream``."""

    def __init__(self, path):
        self._path = path
        self._packed_size = path.stat().st_size
        with self._naming():
            self._size_of = self._sizes()
        self.names = sorted(self._size_of)

    def origin(self, name) -> str:
        return f"{self._path}!{name}"

    def file(self, name, most=None):
        size = self._size_of[name]
        if most is not None and size > most:
            raise ValueError(
                f"Preset {self._path} must hold '{name}' with at most {most} bytes, as its options "
                f"need. Received: {size} bytes. Do the options and weight files belong together?"
            )
        return io.BytesIO(b"".join(self.blocks(name)))

    def blocks(self, name):
        with self._naming(), self._stream(name) as stream:
            left = self._size_of[name]
            while block := stream.read(min(_BLOCK, left)):
                left -= len(block)
                yield block
        if left:
            raise OSError(f"Preset {self._path} is damaged: '{name}' lacks {left} bytes")

    def size(self, name) -> int:
        return self._size_of[name]

    def read_ranges(self, name, ranges):
        blocks, block, start = self.blocks(name), b"", 0  # where the block starts
        for offset, size in ranges:
            parts: list[bytes] = []
            while size:
                while offset >= start + len(block):
                    start += len(block)
                    block = next(blocks)
                part = block[offset - start : offset - start + size]
                parts.append(part)
                offset, size = offset + len(part), size - len(part)
            yield b"".join(parts)

    def _check_name(self, name, sizes):
        member = pathlib.PurePosixPath(name.replace("\\", "/"))
        if member.is_absolute() or ".." in member.parts or ":" in name:
            raise _Refused(
                f"Preset {self._path} has a member that points outside it. Received: {name[:100]!r}"
            )
        if name in sizes:
            raise _Refused(f"Preset {self._path} has a member twice. Received: {name[:100]!r}")
        if len(sizes) >= _MOST_MEMBERS:
            raise _Refused(
                f"Preset {self._path} has too many members. Expected: at most {_MOST_MEMBERS}"
            )

    def _check_size(self, name, size, packed_size):
        if size > LARGEST_RATIO * packed_size + SLACK:
            raise _Refused(
                f"Preset {self._path} would unpack to far more than a biLM that is packed. "
                f"Received: {size} bytes or more out of {packed_size}, in {name[:100]!r}"
            )

    @contextlib.contextmanager
    def _naming(self):
        """Give every error of damage the name of the file."""
        try:
            yield
        except _Refused as error:
            raise ValueError(str(error)) from None
        except (RuntimeError, NotImplementedError) as error:  # a password, a foreign compression
            raise ValueError(f"Preset {self._path} cannot be unpacked: {error}") from error
        except DAMAGE as error:
            reason = " ".join(str(error).split())[:300]
            raise OSError(
                f"Preset {self._path} is damaged or not a .zip or .tar.gz file ({reason}). Fetch "
                "it again"
            ) from error


class Zip(_Packed):
    """The members of a .zip."""

    def _sizes(self):
        sizes = {}
        with zipfile.ZipFile(self._path) as archive:
            for member in archive.infolist():
                if not member.is_dir():
                    self._check_name(member.filename, sizes)
                    self._check_size(member.filename, member.file_size, member.compress_size)
                    sizes[member.filename] = member.file_size
        return sizes

    @contextlib.contextmanager
    def _stream(self, name):
        with zipfile.ZipFile(self._path) as archive, archive.open(name) as stream:
            yield stream


class Tar(_Packed):
    """The members of a .tar.gz, which can be read from the start only."""

    def _sizes(self):
        sizes = {}
        with self._archive() as archive:
            for member in archive:
                if member.isdir():
                    continue
                self._check_name(member.name, sizes)
                if not member.isreg() or member.issparse():
                    raise _Refused(
                        f"Preset {self._path} must hold plain files. Received: a link or device, "
                        f"{member.name[:100]!r}"
                    )
                sizes[member.name] = member.size
        return sizes

    @contextlib.contextmanager
    def _stream(self, name):
        with self._archive() as archive:
            for member in archive:
                if member.name == name and member.isreg():
                    yield archive.extractfile(member)
                    return
            raise EOFError(f"'{name}' is gone")

    @contextlib.contextmanager
    def _archive(self):
        with gzip.open(self._path) as stream:
            bounded = _Bounded(stream, lambda n: self._check_size("", n, self._packed_size))
            with tarfile.open(fileobj=bounded, mode="r|", bufsize=tarfile.RECORDSIZE) as archive:
                yield archive


class _Bounded:
    """A stream that tells after each block how much it has given."""

    def __init__(self, stream, check):
        self._stream = stream
        self._check = check
        self._given = 0

    def read(self, size):
        block = self._stream.read(size)
        self._given += len(block)
        self._check(self._given)
        return block


class _Refused(Exception):
    """Carries a message past the net for errors of damage."""


def read_member(archive, name, most) -> bytes:
    """Read a small member whole, at most so many bytes."""
    return read_bytes(archive.file(name, most), archive.origin(name), "File", most)
