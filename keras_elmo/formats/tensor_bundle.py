"""Tensors of a TensorFlow checkpoint, read without TensorFlow.

``PREFIX.index`` is a sorted table of blocks (LevelDB's): keys are the names of the variables,
values protocol buffers that say where in the shards ``PREFIX.data-00000-of-00001`` their bytes
lie. Blocks and tensors have checksums, and all that are read are checked.
"""

import contextlib
import dataclasses
import math
import struct

import numpy as np

from keras_elmo.formats.crc32c import masked_crc32c
from keras_elmo.formats.hdf5 import Declared

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5  # kind of compression and checksum behind a block
_LARGEST_INDEX = 1 << 26
_MOST_NAMES = 100_000
_MOST_AXES = 8
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DAMAGE = (IndexError, KeyError, ValueError, TypeError, OverflowError, struct.error)


@dataclasses.dataclass(frozen=True)
class _Entry:
    """Where a tensor lies."""

    declared: Declared
    shard: int
    offset: int
    size: int
    crc: int


class TensorBundle:
    """A checkpoint that TensorFlow's savers wrote.

    Args:
        files: The ``Files`` that hold it.
        index: Name of the ``*.index`` file.

    Attributes:
        declared: ``Declared`` of every tensor of numbers that this reader knows, by name.
        others: Names of the rest: text, and what is stored in slices.
        origin: What errors call it.

    Raises:
        OSError: If the index is damaged, or a shard missing or too short.
    """

    def __init__(self, files, index):
        self._files = files
        self._prefix = index.removesuffix(".index")
        self.origin = files.origin(index)
        with self._naming():
            self._entries, self.others = self._parse(files.read(index, _LARGEST_INDEX))
        self.declared = {name: entry.declared for name, entry in self._entries.items()}

    def read(self, names) -> dict:
        """Read tensors, NumPy arrays by name; their checksums are checked.

        Raises:
            OSError: If a shard is missing or damaged.
        """
        arrays = {}
        shards: dict[int, list[str]] = {}
        for name in names:
            shards.setdefault(self._entries[name].shard, []).append(name)
        for shard, members in sorted(shards.items()):
            members.sort(key=lambda name: self._entries[name].offset)
            entries = [self._entries[name] for name in members]
            file = self._shard(shard)
            ranges = self._files.read_ranges(file, [(e.offset, e.size) for e in entries])
            for name, entry, content in zip(members, entries, ranges, strict=True):
                if masked_crc32c(content) != entry.crc:
                    raise OSError(
                        f"Checkpoint {self._files.origin(file)} is damaged: '{name}' has another "
                        f"checksum than {self.origin} states. Fetch it again"
                    )
                arrays[name] = np.frombuffer(content, entry.declared.dtype).reshape(
                    entry.declared.shape
                )
        return arrays

    def _shard(self, number):
        file = f"{self._prefix}.data-{number:05}-of-{self._shards:05}"
        if file not in self._files.names:
            raise FileNotFoundError(
                f"Checkpoint {self.origin} lacks a part of its tensors. Expected: "
                f"{self._files.origin(file)}. Fetch all its files"
            )
        return file

    def _parse(self, content):
        entries, others = {}, []
        if len(content) < _FOOTER or content[-8:] != struct.pack("<Q", _MAGIC):
            raise ValueError("it does not end as an index does")
        footer = _Reader(content[-_FOOTER:-8])
        footer.varint(), footer.varint()  # of a block without content
        blocks = _block(content, footer.varint(), footer.varint())
        pairs = [
            pair
            for _, handle in _pairs(blocks)
            for pair in _pairs(_block(content, *_varints(handle, 2)))
        ]
        if len(pairs) > _MOST_NAMES or not pairs or pairs[0][0] != b"":
            raise ValueError("it does not start with a header")
        header = dict((number, value) for number, _, value in _fields(pairs[0][1]))
        self._shards = header.get(1, 0)
        if header.get(2, 0) != 0:
            raise ValueError("its numbers are big-endian")
        for key, value in pairs[1:]:
            name, entry = key.decode("utf-8"), self._entry(value)
            if name in entries or name in others:
                raise ValueError(f"it names {name[:60]!r} twice")
            if entry is None:
                others.append(name)
            else:
                entries[name] = entry
        ends: dict[int, int] = {}
        for name in sorted(entries, key=lambda name: entries[name].offset):
            entry = entries[name]
            if entry.offset < ends.get(entry.shard, 0):
                raise ValueError(f"'{name}' lies where another tensor does")
            ends[entry.shard] = entry.offset + entry.size
            if ends[entry.shard] > self._files.size(self._shard(entry.shard)):
                raise ValueError(f"'{name}' lies beyond the end of {self._shard(entry.shard)}")
        return entries, others

    def _entry(self, value):
        found = {number: v for number, _, v in _fields(value)}
        dtype, shape = _DTYPES.get(found.get(1, 0)), _shape(found.get(2, b""))
        if dtype is None or 7 in found:
            return None
        declared = Declared(shape, np.dtype(dtype))
        offset, size = found.get(4, 0), found.get(5, 0)
        if declared.nbytes != size:
            raise ValueError(f"shape {shape} in {size} bytes")
        return _Entry(declared, found.get(3, 0), offset, size, found.get(6, 0))

    @contextlib.contextmanager
    def _naming(self):
        try:
            yield
        except _DAMAGE as error:
            reason = " ".join(str(error).split())[:300]
            raise OSError(
                f"Checkpoint {self.origin} is damaged or not one of TensorFlow's ({reason}). "
                "Fetch it again"
            ) from error


class _Reader:
    """Bytes that are read from the front."""

    def __init__(self, content):
        self.content = content
        self.place = 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.content[self.place]
            self.place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise ValueError("a number without end")

    def take(self, size) -> bytes:
        part = self.content[self.place : self.place + size]
        if len(part) < size:
            raise ValueError("it ends too early")
        self.place += size
        return part


def _varints(content, count):
    reader = _Reader(content)
    return [reader.varint() for _ in range(count)]


def _block(content, offset, size):
    """Return a block of the table, its checksum checked."""
    block = content[offset : offset + size + _TRAILER]
    if len(block) < size + _TRAILER:
        raise ValueError("it ends too early")
    if struct.unpack("<I", block[-4:])[0] != masked_crc32c(block[:-4]):
        raise ValueError("a block has another checksum than stated")
    if block[size] != 0:
        raise ValueError("its blocks are compressed")
    return block[:size]


def _pairs(block):
    """Return the keys and values of a block, in which keys share their beginnings."""
    restarts = struct.unpack("<I", block[-4:])[0]
    reader = _Reader(block[: -4 * (restarts + 1)])
    pairs, key = [], b""
    while reader.place < len(reader.content):
        shared, rest, size = reader.varint(), reader.varint(), reader.varint()
        key = key[:shared] + reader.take(rest)
        pairs.append((key, reader.take(size)))
    return pairs


def _fields(message):
    """Yield number, wire type and value of the fields of a protocol buffer."""
    reader = _Reader(message)
    while reader.place < len(message):
        tag = reader.varint()
        wire = tag & 7
        if wire == _VARINT:
            value = reader.varint()
        elif wire == _BYTES:
            value = reader.take(reader.varint())
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
            value = int.from_bytes(reader.take(size), "little")
        else:
            raise ValueError(f"a field of type {wire}")
        yield tag >> 3, wire, value


def _shape(message):
    axes = [value for number, _, value in _fields(message) if number == 2]
    shape = tuple(dict((n, v) for n, _, v in _fields(axis)).get(1, 0) for axis in axes)
    if len(shape) > _MOST_AXES or math.prod(shape) > 1 << 40:
        raise ValueError(f"a tensor of shape {shape}")
    return shape
