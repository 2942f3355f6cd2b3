"""CRC-32C, the checksum of TensorFlow checkpoints, fast enough for the weights of a biLM.

The checksum is linear over bits. NumPy computes the checksums of many pieces at once, and they
are joined in pairs.
"""

import functools

import numpy as np

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, with reversed bits
_MASK_DELTA = 0xA282EAD8
_PIECE_BITS = 10
_BLOCK = 1 << 24


def masked_crc32c(data: bytes) -> int:
    """Return the checksum of bytes as checkpoints store it: rotated, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes.

    Example:

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    array, crc = np.frombuffer(data, "uint8"), 0xFFFFFFFF
    for start in range(0, len(array), _BLOCK):
        block = array[start : start + _BLOCK].copy()
        first = block[:4]  # The checksum so far is added to the next four bytes.
        first ^= np.frombuffer(crc.to_bytes(4, "little"), "uint8")[: len(first)]
        crc = int(_from_zero(block)[0]) ^ crc >> 8 * len(first)
    return crc ^ 0xFFFFFFFF


def _from_zero(data: np.ndarray) -> np.ndarray:
    """Return the checksum of bytes for the start value 0, which ignores zeros at the start."""
    size = 1 << _PIECE_BITS
    pieces = np.pad(data, (-len(data) % size, 0)).reshape(-1, size)
    crcs = np.zeros(len(pieces), "uint32")
    for column in pieces.T:
        crcs = _byte_table()[(crcs ^ column) & 0xFF] ^ crcs >> 8
    power = _PIECE_BITS
    while len(crcs) > 1:
        crcs = np.pad(crcs, (len(crcs) % 2, 0))
        crcs = _append_zeros(crcs[0::2], power) ^ crcs[1::2]
        power += 1
    return crcs


def _append_zeros(crcs: np.ndarray, power: int) -> np.ndarray:
    """Return the checksums after 2**power more zero bytes."""
    bits = enumerate(_zeros_matrix(power))
    return functools.reduce(np.bitwise_xor, [(crcs >> i & 1) * column for i, column in bits])


@functools.cache
def _zeros_matrix(power: int) -> np.ndarray:
    """Return the checksum of every single bit after 2**power zero bytes."""
    if power:
        half = power - 1
        return _append_zeros(_zeros_matrix(half), half)
    bits = np.uint32(1) << np.arange(32, dtype="uint32")
    return _byte_table()[bits & 0xFF] ^ bits >> 8


@functools.cache
def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype="uint32")
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ _POLYNOMIAL, table >> 1).astype("uint32")
    return table
