"""The messages of a sum as bytes: a header, then a table or numbers of B bits.

All numbers are little-endian. A message is a header of 26 bytes and its content::

    4 bytes   "SSUM"
    1         the version of the format, 2
    1         the kind of the message, 1 to 7
    8         the round
    4         the client that sends the message, or that it is for
    8         the fingerprint of the terms

    kind           content
    1  keys        a client's two public keys: for seals, for masks (32 + 32), and its
                   signature on them (64), zeros where clients have no identities
    2  roster      for each of the group: client (4), its keys, signature (32 + 32 + 64)
    3  shares      for each of the group: client (4), digests of its two shares of this
                   client's secrets (16 + 16), both shares sealed (33 + 33 + 16)
    4  relay       for each of the group that shared: client (4), what it sealed (82)
    5  numbers     the masked message, packed: B bits each, lowest first
    6  survivors   for each of the group whose numbers arrived: client (4)
    7  answer      for each that shared: client (4), a share of its seed if its numbers
                   arrived, or else of its key for masks (33)

Clients are in rising order. The length of a message gives their number, and terms bound
it. Clients send 1, 3, 5 and 7, and the server 2, 4 and 6.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fl_sketch.network import packing
from fl_sketch.network.identities import SIGNATURE_BYTES
from fl_sketch.network.keys import KEY_BYTES, TAG_BYTES
from fl_sketch.network.shamir import SHARE_BYTES
from fl_sketch.network.terms import Terms

HEADER = struct.Struct("<4sBBQI8s")
MAGIC, VERSION = b"SSUM", 2
STAGES = ("keys", "shares", "numbers", "answer")  # what clients send, in order
DIGEST_BYTES = 16
SEED, KEY = 0, 1  # what a share is of


class Kind(NamedTuple):
    """A kind of message.

    Attributes:
      number: the kind, as the header has it.
      entry: the format of an entry of its table.
    """

    number: int
    name: str
    entry: struct.Struct


_KEYS = f"{KEY_BYTES}s{KEY_BYTES}s{SIGNATURE_BYTES}s"
_SEALED = f"{2 * SHARE_BYTES + TAG_BYTES}s"
KEYS = Kind(1, "keys", struct.Struct(f"<{_KEYS}"))
ROSTER = Kind(2, "roster", struct.Struct(f"<I{_KEYS}"))
SHARES = Kind(3, "shares", struct.Struct(f"<I{DIGEST_BYTES}s{DIGEST_BYTES}s{_SEALED}"))
RELAY = Kind(4, "relay", struct.Struct(f"<I{_SEALED}"))
NUMBERS = Kind(5, "numbers", struct.Struct("<B"))
SURVIVORS = Kind(6, "survivors", struct.Struct("<I"))
ANSWER = Kind(7, "answer", struct.Struct(f"<I{SHARE_BYTES}s"))


class Traffic(NamedTuple):
    """The bytes that a client sends and receives in one stage."""

    up: int
    down: int


def write(kind: Kind, terms: Terms, client: int, content: bytes) -> bytes:
    """Returns a message of a client, or for it."""
    fingerprint = terms.fingerprint
    head = HEADER.pack(MAGIC, VERSION, kind.number, terms.round, client, fingerprint)
    return head + content


def read(kind: Kind, terms: Terms, client: int, data: bytes) -> memoryview:
    """Returns the content of a message of this kind, round and client.

    Raises:
      ValueError: for any other message.
    """
    what = f"{kind.name} of client {client} in round {terms.round}"
    if len(data) < HEADER.size or data[:4] != MAGIC:
        head = bytes(data[:4])
        msg = f"Expected {what}, got {len(data)} bytes that begin with {head!r}."
        raise ValueError(msg)
    _, version, number, round, about, fingerprint = HEADER.unpack_from(data)
    if (version, number, round, about) != (VERSION, kind.number, terms.round, client):
        msg = (
            f"Expected {what} (version {VERSION}, kind {kind.number}), got version "
            f"{version}, kind {number}, client {about} and round {round}."
        )
        raise ValueError(msg)
    if fingerprint != terms.fingerprint:
        msg = f"Expected {what} by {terms}, got a message by other terms."
        raise ValueError(msg)
    return memoryview(data)[HEADER.size :]


def write_table(
    kind: Kind, terms: Terms, client: int, entries: Iterable[tuple]
) -> bytes:
    """Returns a message whose content is a table."""
    content = b"".join(kind.entry.pack(*entry) for entry in entries)
    return write(kind, terms, client, content)


def read_table(
    kind: Kind, terms: Terms, client: int, data: bytes, few: int, many: int
) -> list[tuple[Any, ...]]:
    """Returns the entries of a table, of which there are `few` to `many`.

    Raises:
      ValueError: for another message, another length, or clients that do not rise.
    """
    content = read(kind, terms, client, data)
    count, rest = divmod(len(content), kind.entry.size)
    what = f"{kind.name} of client {client}"
    if rest or not few <= count <= many:
        msg = (
            f"Expected {what} to have {few} to {many} entries of {kind.entry.size} "
            f"bytes, got {len(content)} bytes."
        )
        raise ValueError(msg)
    entries = list(kind.entry.iter_unpack(content))
    numbers = [entry[0] for entry in entries]
    if kind is not KEYS and sorted(set(numbers)) != numbers:
        msg = f"Expected {what} to name clients in rising order, each once."
        raise ValueError(msg)
    return entries


def digest(terms: Terms, owner: int, holder: int, of: int, share: bytes) -> bytes:
    """Returns the digest by which the server knows a share when it comes.

    Args:
      of: `SEED` or `KEY`.
    """
    about = struct.pack("<QIIB", terms.round, owner, holder, of)
    return hashlib.blake2b(about + share, digest_size=DIGEST_BYTES).digest()


def to_sign(terms: Terms, client: int, pair: Sequence[bytes]) -> bytes:
    """Returns what a client signs of its two public keys."""
    return b"fl_sketch keys" + write(KEYS, terms, client, b"".join(pair))


def traffic(terms: Terms) -> dict[str, Traffic]:
    """Returns the bytes of a client in each stage of a round in which all stay.

    What a client receives at the end of a stage counts to this stage. If others drop
    out, the client receives fewer bytes, and its answer is shorter.
    """

    def table(kind):
        return HEADER.size + terms.group * kind.entry.size

    numbers = HEADER.size + packing.size(terms.length, terms.bits)
    return {
        "keys": Traffic(HEADER.size + KEYS.entry.size, table(ROSTER)),
        "shares": Traffic(table(SHARES), table(RELAY)),
        "numbers": Traffic(numbers, table(SURVIVORS)),
        "answer": Traffic(table(ANSWER), 0),
    }
