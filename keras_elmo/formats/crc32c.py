"""CRC-32C, the checksum of TensorFlow's checkpoints, over all of an array at once.

A byte at a time Python takes minutes for a biLM. The checksum is linear over the bits: those of
many pieces are computed side by side in NumPy, and joined pair by pair.
"""

import functools

import numpy as np

_POLYNOMIAL = 0x82F63B78  # of Castagnoli, bits reversed
_MASK_DELTA = 0xA282EAD8
_WORDS = 256  # of 4 bytes in a piece
_BLOCK = 1 << 24


def masked_crc32c(data) -> int:
    """Return the checksum of bytes as checkpoints store it: rotated, and shifted by a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def crc32c(data) -> int:
    """Return the CRC-32C of bytes.

    Example:

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    data = np.frombuffer(data, "uint8")
    crc = 0xFFFFFFFF
    for start in range(0, len(data), _BLOCK):
        crc = _extend(crc, data[start : start + _BLOCK])
    return crc ^ 0xFFFFFFFF


def _extend(crc, data):
    """Return the checksum behind more bytes."""
    if len(data) < 4:
        for byte in data.tolist():
            crc = int(_byte_table()[(crc ^ byte) & 0xFF]) ^ crc >> 8
        return crc
    # Zeros in front do not change a checksum that starts at 0: fill up to whole pieces.
    pieces = 1 << max(0, (len(data) - 1).bit_length() - (4 * _WORDS).bit_length() + 1)
    padded = np.zeros(max(pieces * 4 * _WORDS, 4 * _WORDS), "uint8")
    padded[-len(data) :] = data
    start = len(padded) - len(data)
    padded[start : start + 4] ^= np.frombuffer(crc.to_bytes(4, "little"), "uint8")
    words = padded.view("<u4").reshape(-1, _WORDS)
    crcs = np.zeros(len(words), "uint32")
    for column in range(_WORDS):
        crcs = _apply(_zeros(0), crcs ^ words[:, column])
    power = _WORDS.bit_length() - 1
    while len(crcs) > 1:
        crcs = _apply(_zeros(power), crcs[0::2]) ^ crcs[1::2]
        power += 1
    return int(crcs[0])


def _apply(tables, crcs):
    low, high = tables
    return low[crcs & 0xFFFF] ^ high[crcs >> 16]


@functools.cache
def _zeros(power):
    """Return what 4 * 2**power zero bytes make of a checksum: two tables, for each half of it."""
    if power:
        previous = _zeros(power - 1)
        return tuple(_apply(previous, table) for table in previous)
    tables = []
    for shift in (0, 16):
        crcs = np.arange(1 << 16, dtype="uint32") << np.uint32(shift)
        for _ in range(4):
            crcs = _byte_table()[crcs & 0xFF] ^ crcs >> 8
        tables.append(crcs)
    return tuple(tables)


@functools.cache
def _byte_table():
    table = np.arange(256, dtype="uint32")
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ _POLYNOMIAL, table >> 1).astype("uint32")
    return table
