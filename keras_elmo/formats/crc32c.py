"""CRC-32C, the checksum of TensorFlow checkpoints, fast enough for the weights of a biLM."""

import functools

import numpy as np

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, with reversed bits
_MASK_DELTA = 0xA282EAD8
_PIECE = 1 << 10
_BLOCK = 1 << 23  # fits the cache of a CPU


def masked_crc32c(data: bytes) -> int:
    """Return the checksum of bytes as checkpoints store it: rotated, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes.

    NumPy computes the checksums of many pieces at once, from the start value 0. The checksum is
    linear: a piece adds its checksum to the checksum of the bytes before it and of zeros.

    Examples:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    table, (t0, t1, t2, t3) = _tables()
    array = np.frombuffer(data, "uint8")
    crc = 0xFFFFFFFF
    first = len(data) % _PIECE
    for byte in data[:first]:
        crc = int(table[(crc ^ byte) & 0xFF]) ^ crc >> 8
    for start in range(first, len(data), _BLOCK):
        block = array[start : start + _BLOCK].reshape(-1, _PIECE)
        crcs = np.zeros(len(block), "uint32")
        for column in block.T:
            crcs = table[(crcs ^ column) & 0xFF] ^ crcs >> 8
        for piece in crcs.tolist():
            crc = (
                t0[crc & 0xFF] ^ t1[crc >> 8 & 0xFF] ^ t2[crc >> 16 & 0xFF] ^ t3[crc >> 24] ^ piece
            )
    return crc ^ 0xFFFFFFFF


@functools.cache
def _tables() -> tuple[np.ndarray, list[list[int]]]:
    """Return the checksum of every byte, and of each byte of a checksum after a piece of zeros."""
    table = np.arange(256, dtype="uint32")
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ _POLYNOMIAL, table >> 1).astype("uint32")
    after = np.arange(256, dtype="uint32") << np.array([[0], [8], [16], [24]], "uint32")
    for _ in range(_PIECE):
        after = table[after & 0xFF] ^ after >> 8
    return table, after.tolist()
