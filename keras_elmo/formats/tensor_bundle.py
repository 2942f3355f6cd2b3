"""Read the tensors of a TensorFlow checkpoint without TensorFlow.

TensorFlow's reader ends the process when an index is damaged but its checksums are right. This
reader raises an error.

``PREFIX.index`` is a sorted table of LevelDB. Its keys are the names of the variables. Its values
are protocol buffers: shape, dtype, and the place of the bytes in ``PREFIX.data-00000-of-00001``.
"""

import dataclasses
import io
import math
import os
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from keras_elmo.formats.checks import Declared
from keras_elmo.formats.crc32c import masked_crc32c
from keras_elmo.formats.folder import Folder, PresetFile
from keras_elmo.utils.files import read_bytes

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER = 48
_LARGEST_INDEX = 1 << 26
_MOST_NAMES = 100_000
_LONGEST_NAME = 1_000  # bytes
_MOST_AXES = 8
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}


@dataclasses.dataclass(frozen=True)
class _Entry(Declared):
    """The declaration of a tensor and the place of its bytes."""

    shard: int
    offset: int
    crc: int


class TensorBundle:
    """A checkpoint that TensorFlow wrote.

    ``index`` is its ``*.index`` file in the ``folder``. ``declared`` are shapes and dtypes of the
    tensors of numbers, by name. ``others`` are the names of the other variables: text, and tensors
    stored in slices.
    """

    def __init__(self, folder: Folder, index: PresetFile) -> None:
        self._folder = folder
        self.index = index
        self.declared: dict[str, _Entry] = {}
        self.others: list[str] = []
        content = read_bytes(index, "Checkpoint", _LARGEST_INDEX)
        try:
            self._parse(content)
        except FileNotFoundError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise OSError(
                f"Checkpoint {self.index} is damaged, or not a TensorFlow checkpoint "
                f"({reason}). Fetch it again"
            ) from error

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Read tensors by name, and check their checksums."""
        arrays = {}
        for name in names:
            entry = self.declared[name]
            shard = self._shard(entry.shard)
            with open(shard, "rb") as file:
                file.seek(entry.offset)
                content = file.read(entry.nbytes)
            if masked_crc32c(content) != entry.crc:
                raise OSError(
                    f"Checkpoint {shard} is damaged: the checksum of '{name}' "
                    f"differs from the one in {self.index}. Fetch it again"
                )
            arrays[name] = np.frombuffer(content, entry.dtype).reshape(entry.shape)
        return arrays

    def _shard(self, number: int) -> PresetFile:
        prefix = self.index.name.removesuffix(".index")
        shard = self._folder.file(f"{prefix}.data-{number:05}-of-{self._n_shards:05}")
        if shard.name not in self._folder.names:
            raise FileNotFoundError(
                f"Checkpoint {self.index} has no file for some of its tensors. "
                f"Expected: {shard}. Fetch all its files"
            )
        return shard

    def _parse(self, content: bytes) -> None:
        if len(content) < _FOOTER or content[-8:] != _MAGIC:
            raise ValueError("the end of an index is missing")
        *_, offset, size = _varints(content[-_FOOTER:], 4)
        pairs: list[tuple[bytes, bytes]] = []
        for _, place in _pairs(_block(content, offset, size)):
            for key, value in _pairs(_block(content, *_varints(place, 2))):
                if (pairs and key <= pairs[-1][0]) or len(pairs) > _MOST_NAMES:
                    raise ValueError(f"it names {key[:60]!r} in the wrong place")
                pairs.append((key, value))
        if not pairs or pairs[0][0] != b"":
            raise ValueError("the header is missing")
        header = dict(_fields(pairs[0][1]))
        self._n_shards = header.get(1, 0)
        if header.get(2, 0) != 0:
            raise ValueError("its numbers are big-endian")
        for key, value in pairs[1:]:
            if key.startswith(b"\0"):  # a slice; the variable has another entry
                continue
            name, entry = key.decode("utf-8"), _entry(value)
            if entry is None:
                self.others.append(name)
                continue
            self.declared[name] = entry
            shard = self._shard(entry.shard)
            if entry.offset + entry.nbytes > os.path.getsize(shard):
                raise ValueError(f"'{name}' ends beyond the end of {shard.name}")


def _entry(value: bytes) -> _Entry | None:
    """Return the entry of a tensor, or None for a variable that this reader does not know."""
    fields = dict(_fields(value))
    dtype = _DTYPES.get(fields.get(1, 0))
    if dtype is None or 7 in fields:
        return None
    axes = [axis for number, axis in _fields(fields.get(2, b"")) if number == 2]
    shape = tuple(dict(_fields(axis)).get(1, 0) for axis in axes)
    shard, offset, size, crc = (fields.get(number, 0) for number in (3, 4, 5, 6))
    entry = _Entry(shape, np.dtype(dtype), shard, offset, crc)
    if len(shape) > _MOST_AXES or math.prod(shape) > 1 << 40 or entry.nbytes != size:
        raise ValueError(f"a tensor has shape {shape} in {size} bytes")
    return entry


def _varint(stream: io.BytesIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = _take(stream, 1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    raise ValueError("a number is too long")


def _varints(content: bytes, count: int) -> list[int]:
    stream = io.BytesIO(content)
    return [_varint(stream) for _ in range(count)]


def _take(stream: io.BytesIO, size: int) -> bytes:
    part = stream.read(size)
    if len(part) < size:
        raise ValueError("it ends too early")
    return part


def _block(content: bytes, offset: int, size: int) -> bytes:
    """Return a block of the table. After it come its kind of compression and its checksum."""
    stream = io.BytesIO(content[offset : offset + size + 5])
    block, checksum = _take(stream, size + 1), _take(stream, 4)
    if struct.unpack("<I", checksum)[0] != masked_crc32c(block):
        raise ValueError("the checksum of a block is wrong")
    if block[-1] != 0:
        raise ValueError("its blocks are compressed")
    return block[:-1]


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block. A key can start like the key before it."""
    n_restarts = struct.unpack("<I", block[-4:])[0]
    stream = io.BytesIO(content := block[: -4 * (n_restarts + 1)])
    key = b""
    while stream.tell() < len(content):
        shared, rest, size = (_varint(stream) for _ in range(3))
        key = key[:shared] + _take(stream, rest)
        if len(key) > _LONGEST_NAME:
            raise ValueError("a name is too long")
        yield key, _take(stream, size)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and values of the fields of a protocol buffer."""
    stream = io.BytesIO(message)
    while stream.tell() < len(message):
        number, wire_type = divmod(_varint(stream), 8)
        if wire_type == 0:
            yield number, _varint(stream)
        elif wire_type == 2:
            yield number, _take(stream, _varint(stream))
        elif wire_type in (1, 5):
            yield number, int.from_bytes(_take(stream, 8 if wire_type == 1 else 4), "little")
        else:
            raise ValueError(f"a field has the type {wire_type}")
