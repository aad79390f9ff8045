"""Masks: a key becomes as many random numbers as a message has, by ChaCha20.

The nonce is the number of the round, so that a key that masks two rounds, which no
client here lets it do, gives two masks. Numbers are of the smallest unsigned type that
has B bits, and sums wrap, so that the lowest B bits are sums modulo 2^B.

>>> import numpy as np
>>> numbers = np.arange(3, dtype=np.uint16)
>>> add(numbers, bytes(32), round=0)
>>> numbers
array([47222, 44513, 61858], dtype=uint16)
>>> add(numbers, bytes(32), round=0, sign=-1)
>>> numbers
array([0, 1, 2], dtype=uint16)
"""

import struct

import numpy as np

from fl_sketch.network import keys

CHUNK = 2**16  # bytes expanded at a time: they stay in a core's cache
ZEROS = memoryview(bytes(CHUNK))


def add(numbers: np.ndarray, key: bytes, round: int, sign: int = 1) -> None:
    """Adds the mask of a key and a round to `numbers`, in place.

    Args:
      numbers: uint8, uint16 or uint32 [d].
      sign: 1, or -1 to subtract the mask.
    """
    with keys.extra():
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    nonce = struct.pack("<IQI", 0, round, 0)  # the block counter is first
    stream = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()
    buffer = bytearray(CHUNK)
    words = np.frombuffer(buffer, numbers.dtype)
    combine = np.add if sign > 0 else np.subtract
    for start in range(0, len(numbers), len(words)):
        part = numbers[start : start + len(words)]
        stream.update_into(ZEROS[: part.nbytes], buffer)
        combine(part, words[: len(part)], out=part)


def add_pair(numbers: np.ndarray, key: bytes, round: int, own: int, other: int) -> None:
    """Adds the mask of client `own` against client `other`, in place.

    The client with the lower number adds the mask, and the other one subtracts it.
    """
    add(numbers, key, round, sign=1 if own < other else -1)
