"""Messages as packed bytes, which prove that the lengths in the ledger are right.

It runs on the host, on numpy arrays, and is not part of any jitted program.

>>> fields = Field(3, bits=5, kind="uint"), Field(1, bits=32, kind="float")
>>> data = encode(fields, (np.array([1, 31, 4]), np.array([0.5])))
>>> len(data), size_in_bits(fields)
(6, 47)
>>> decode(fields, data)
(array([ 1, 31,  4], dtype=uint32), array([0.5], dtype=float32))
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core.protocols import Field

FLOAT_BITS = 32  # of the only float type that is sent


def size_in_bits(fields: Sequence[Field]) -> int:
    """Returns the length of a message with these `fields`, in bits."""
    return sum(field.count * field.bits for field in fields)


def encode(fields: Sequence[Field], arrays: Sequence) -> bytes:
    """Returns the arrays of a message as bytes: bits in order, least first.

    Raises a ValueError for an array that is not as its field says.
    """
    words = [_words(*pair) for pair in zip(fields, arrays, strict=True)]
    if _whole_words(fields):  # the same bytes, without an array of bits
        return b"".join(each.tobytes() for each in words)
    streams = []
    for field, each in zip(fields, words, strict=True):
        octets = each.view(np.uint8).reshape(field.count, 4)
        bits = np.unpackbits(octets, axis=1, bitorder="little")
        streams.append(bits[:, : field.bits].ravel())
    return np.packbits(np.concatenate(streams), bitorder="little").tobytes()


def decode(fields: Sequence[Field], data: bytes) -> tuple[np.ndarray, ...]:
    """Returns the arrays that were encoded with these `fields`: uint32 or float32.

    Raises a ValueError for more or fewer bytes than the fields take.
    """
    bits = size_in_bits(fields)
    if len(data) != math.ceil(bits / 8):
        msg = f"Expected a message of {math.ceil(bits / 8)} bytes, got {len(data)}."
        raise ValueError(msg)
    arrays, start, whole = [], 0, _whole_words(fields)
    octets = np.frombuffer(data, np.uint8)
    stream = octets if whole else np.unpackbits(octets, bitorder="little")
    for field in fields:
        stop = start + field.count * (FLOAT_BITS // 8 if whole else field.bits)
        part, start = stream[start:stop], stop
        if not whole:
            wide = np.zeros((field.count, FLOAT_BITS), np.uint8)
            wide[:, : field.bits] = part.reshape(field.count, field.bits)
            part = np.packbits(wide, axis=1, bitorder="little").ravel()
        words = part.view("<u4").astype(np.uint32)
        arrays.append(words.view(np.float32) if field.kind == "float" else words)
    return tuple(arrays)


class Chosen(NamedTuple):
    """A length that depends on the round: `lengths[which]`, where `which` is traced.

    Sums with integers and with each other are exact, since `lengths` are Python
    integers: a model of 2^31 - 1 numbers has 2^36 bits, and devices count to 2^32.

    >>> (Chosen(jnp.array(True), (100, 2**36)) + 5).lengths
    (105, 68719476741)
    """

    which: jax.Array
    lengths: tuple[int, ...]

    def __add__(self, other: Any) -> "Chosen":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns the sum with an int, or with `other` lengths."""
        if not isinstance(other, Chosen):
            return self._replace(lengths=tuple(each + other for each in self.lengths))
        which = self.which.astype(int) * len(other.lengths) + other.which
        return Chosen(which, tuple(a + b for a in self.lengths for b in other.lengths))

    __radd__ = __add__


def traced_bytes(
    bits: int | Chosen, total: Callable[[int], Any] = lambda size: size
) -> jax.Array:
    """Returns the whole bytes of a message as two words of 32 bits, uint32 [..., 2].

    Devices have no integers of 64 bits. All arithmetic is on the host's integers; only
    the choice between them is traced. `byte_count` reads the result.

    Args:
      total: `(bytes) -> int or int64 [...]`, a function of that length.
    """
    if isinstance(bits, Chosen):
        return jnp.stack([traced_bytes(each, total) for each in bits.lengths])[
            bits.which.astype(int)
        ]
    words = np.divmod(np.asarray(total(-(-bits // 8)), np.int64), 2**32)
    return jnp.asarray(np.stack(words, -1).astype(np.uint32))


def byte_count(words: Any) -> np.ndarray:
    """Returns lengths from `traced_bytes` as int64 [...], exactly; an int as it is.

    >>> int(byte_count(traced_bytes(8 * (2**33 + 1))))
    8589934593
    """
    words = np.asarray(words).astype(np.int64)
    return words @ np.array([2**32, 1]) if words.ndim else words


def _whole_words(fields: Sequence[Field]) -> bool:
    return all(field.bits == FLOAT_BITS for field in fields)


def _words(field: Field, array) -> np.ndarray:
    """Returns numbers as little-endian words of 32 bits."""
    array = np.asarray(array)
    if array.shape != (field.count,):
        msg = f"Expected {field.count} numbers for {field}, got shape {array.shape}."
        raise ValueError(msg)
    if field.kind == "float":
        words = array.astype(np.float32).view(np.uint32)
    else:
        words = array.astype(np.uint32)
        if field.count and int(words.max()) >> field.bits:
            msg = f"Expected numbers below 2**{field.bits}, got {words.max()}."
            raise ValueError(msg)
    return words.astype("<u4")
