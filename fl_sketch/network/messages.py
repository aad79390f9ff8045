"""Messages between a coordinator and its sites, and the one reader of what peers send.

A message is a head of plain values (msgpack) and a payload, byte for byte as the ledger
of a run counts it: 4 bytes with the length of the head, the head, the payload. Whatever
comes from elsewhere is read here: lengths are compared before anything is unpacked, and
every value has its type and its range. All else is a ValueError in one line, which
repeats nothing of what came. Transport (mutual TLS) says who sent a message and that it
is whole.

>>> sent = Message(Kind.MESSAGE, "0" * 32, round=7, site=2, payload=b"numbers")
>>> read(pack(sent), most=7) == sent
True
"""

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import serialization

from fl_sketch.core import wire
from fl_sketch.core.protocols import Field
from fl_sketch.core.wire import FLOAT_BITS

HEAD = 2**18  # bytes of a head at most
ROUNDS, EXCHANGES, SITES = 2**31, 2**8, 2**20  # above all of their numbers
RUN = re.compile("[0-9a-f]{32}|")  # the name of a run
TEXT = 400  # characters of a text for people


class Kind(enum.IntEnum):
    """What a message is; a site answers each of the coordinator's with one of its own.

    In a sum under masks a MODEL or MEAN is answered by KEYS, a ROSTER by the MESSAGE.
    """

    TERMS = 1  # down: the config of a run, by which a site joins it
    HELLO = 2  # up: what the coordinator may know of the site
    MODEL = 3  # down: begins a round, with what clients read of the server
    MEAN = 4  # down: what clients need of an exchange's mean
    MESSAGE = 5  # up: the client's message of an exchange
    KEYS = 6  # up: a signed key for the masks of an exchange
    ROSTER = 7  # down: the signed keys of all sites of a sum
    REVEAL = 8  # down: all of the roster sent their masked messages
    SEED = 9  # up: the seed of the site's own mask
    END = 10  # down: the last mean of a round in which the site counted
    DONE = 11  # up: the client's new state is on the site's disk
    REFUSED = 12  # up: the site does not take part, and why


class Message(NamedTuple):
    """A message that was read, or is to be sent."""

    kind: Kind
    run: str = ""
    round: int = 0
    exchange: int = 0
    site: int = 0
    notes: Mapping[str, Any] = {}
    payload: bytes = b""


def pack(message: Message) -> bytes:
    """Returns a message as bytes."""
    *head, payload = message
    head[0], head[5] = int(message.kind), dict(message.notes)
    packed = serialization.msgpack_serialize(head)
    if len(packed) > HEAD:
        msg = f"Expected a head of at most {HEAD} bytes, got {len(packed)}."
        raise ValueError(msg)
    return len(packed).to_bytes(4, "little") + packed + payload


def read(data: bytes, most: int) -> Message:
    """Returns the message in foreign bytes, of a payload of `most` bytes at most."""
    size = int.from_bytes(data[:4], "little") if len(data) >= 4 else HEAD + 1
    if size > HEAD or not size <= len(data) - 4 <= size + most:
        msg = f"Expected a message of at most {most} bytes, got {len(data)} others."
        raise ValueError(msg)
    try:
        head = serialization.msgpack_restore(data[4 : 4 + size])
        kind, run, number, exchange, site, notes = head
        kinds = [type(one) for one in head]
    except Exception:  # msgpack raises a dozen kinds
        kinds, kind, run, number, exchange, site, notes = [], 0, "", 0, 0, 0, {}
    if kinds != [int, str, int, int, int, dict]:
        msg = "Expected a message with a head, got something else."
        raise ValueError(msg)
    ranges = (number, ROUNDS), (exchange, EXCHANGES), (site, SITES)
    inside = all(0 <= value < top for value, top in ranges)
    if kind not in [*Kind] or not RUN.fullmatch(run) or not inside:
        msg = "Expected a message of a known kind, run, round and site, got another."
        raise ValueError(msg)
    payload = bytes(data[4 + size :])
    return Message(Kind(kind), run, number, exchange, site, notes, payload)


def whole(notes: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """Returns an integer of the notes in a range."""
    value = notes.get(name)
    if type(value) is not int or not least <= value <= most:
        msg = f"Expected {name} to be from {least} to {most}, got another value."
        raise ValueError(msg)
    return value


def floats(notes: Mapping[str, Any], name: str, count: int) -> list[float]:
    """Returns finite numbers of the notes, as float32 has them."""
    values = notes.get(name)
    listed = values if isinstance(values, list) else []
    finite = [one for one in listed if type(one) is float and abs(one) < 3e38]
    if len(listed) == len(finite) == count:
        return finite
    msg = f"Expected {name} to be {count} finite numbers, got something else."
    raise ValueError(msg)


def line(value: Any) -> str:
    """Returns a text of a peer as one line for a terminal: no control characters."""
    shown = "".join(one if one.isprintable() else " " for one in str(value)[:TEXT])
    return " ".join(shown.split())


class Layout(NamedTuple):
    """How arrays of some shapes and types become the bytes of a payload, and back."""

    leaves: tuple[Any, ...]
    fields: tuple[Field, ...]

    @property
    def size(self) -> int:
        """The number of bytes."""
        return -(-wire.size_in_bits(self.fields) // 8)

    def pack(self, arrays: Sequence[Any]) -> bytes:
        """Returns the bytes of arrays."""
        flat = [np.asarray(array).reshape(-1) for array in arrays]
        words = [
            one if field.kind == "float" else one.astype(np.int64).astype(np.uint32)
            for one, field in zip(flat, self.fields, strict=True)
        ]
        return wire.encode(self.fields, words)

    def unpack(self, payload: bytes) -> list[np.ndarray]:
        """Returns the arrays in foreign bytes; raises for another length, or NaN."""
        arrays = []
        numbers = wire.decode(self.fields, payload)
        for leaf, one in zip(self.leaves, numbers, strict=True):
            array = one.view(np.int32) if leaf.dtype == np.int32 else one
            if one.dtype == np.float32 and not np.isfinite(one).all():
                msg = "Expected finite numbers in a payload, got others."
                raise ValueError(msg)
            arrays.append(array.astype(leaf.dtype).reshape(leaf.shape))
        return arrays


def of_leaves(leaves: Sequence[Any]) -> Layout:
    """Returns the layout of arrays of 32 bits a number."""
    floats = (jax.numpy.issubdtype(leaf.dtype, np.floating) for leaf in leaves)
    kinds = ("float" if one else "uint" for one in floats)
    sizes = (leaf.size for leaf in leaves)
    fields = (Field(n, FLOAT_BITS, kind) for n, kind in zip(sizes, kinds, strict=True))
    return Layout(tuple(leaves), tuple(fields))


def of_fields(fields: Sequence[Field]) -> Layout:
    """Returns the layout of one array for each of the fields."""
    types = {"float": np.float32, "uint": np.uint32}
    leaves = (jax.ShapeDtypeStruct((one.count,), types[one.kind]) for one in fields)
    return Layout(tuple(leaves), tuple(fields))
