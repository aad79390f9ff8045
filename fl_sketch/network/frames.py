"""Frames: what travels between a coordinator and a site, with a check.

All numbers are little-endian. A frame is::

    4 bytes   "FLSN"
    1         the version of the format, 1
    1         its kind, of `Kind`
    2         the exchange, from zero within a round
    8         the round, from zero
    4         the site's number, which is that of a client
    16        the digest of the program that both sides run
    4         the length of the notes
    8         the length of the payload
    ...       the notes: a JSON object, of at most 64 KiB
    ...       the payload: a message, byte for byte as the ledger counts it
    16        a BLAKE2b digest of all before

The check finds damage. Who may send at all is up to the transport (mutual TLS).
"""

import enum
import hashlib
import json
import struct
from typing import Any, NamedTuple

HEADER = struct.Struct("<4sBBHQI16sIQ")
MAGIC, VERSION = b"FLSN", 1
CHECK = DIGEST = 16  # bytes
NOTES = 2**16  # bytes of notes at most


class Kind(enum.IntEnum):
    """What a frame is; a site answers each of the coordinator's with one of its own."""

    TERMS = 1  # down: the config of a run, and the round that it goes on from
    HELLO = 2  # up: what a site has
    MODEL = 3  # down: begins a round, with what a site lacks of the model
    MESSAGE = 4  # up: a message of the round
    MEAN = 5  # down: what a site needs of the mean of an exchange
    END = 6  # down: ends a round: whether the site counted
    DONE = 7  # up: the state after the round is on the site's disk
    REFUSED = 8  # up: the site does not take part, and why
    SUM = 9  # down: a stage of a secure sum, whose masked numbers are a MESSAGE
    PART = 10  # up: keys, shares or an answer of a secure sum


class Frame(NamedTuple):
    """A frame that was read, or is to be written."""

    kind: Kind
    round: int = 0
    exchange: int = 0
    site: int = 0
    program: bytes = bytes(DIGEST)
    notes: dict[str, Any] = {}
    payload: bytes = b""


def overhead(notes: int = NOTES) -> int:
    """Returns the bytes of a frame apart from its payload, with so many of notes."""
    return HEADER.size + notes + CHECK


def write(frame: Frame) -> bytes:
    """Returns a frame as bytes."""
    notes = json.dumps(frame.notes, sort_keys=True).encode() if frame.notes else b""
    if len(notes) > NOTES:
        msg = f"Expected notes of at most {NOTES} bytes, got {len(notes)}."
        raise ValueError(msg)
    numbers = frame.exchange, frame.round, frame.site
    sizes = len(notes), len(frame.payload)
    head = HEADER.pack(MAGIC, VERSION, frame.kind, *numbers, frame.program, *sizes)
    whole = head + notes + frame.payload
    return whole + _check(whole)


def payload_size(data: bytes) -> int:
    """Returns the bytes of the payload of a whole frame."""
    return HEADER.unpack_from(data)[-1]


def is_terms(data: bytes) -> bool:
    """Returns whether bytes begin as a frame of terms does."""
    return len(data) >= HEADER.size and data[5] == Kind.TERMS


def read(data: bytes, most: int) -> Frame:
    """Returns the frame in foreign bytes.

    Args:
      most: the length of the longest payload that may come.

    Raises:
      ValueError: in one line, for anything else. Lengths are compared before anything
        is copied.
    """
    if len(data) < overhead(0) or data[:4] != MAGIC:
        begin = bytes(data[:4])
        msg = f"Expected a frame, got {len(data)} bytes that begin with {begin!r}."
        raise ValueError(msg)
    _, version, kind, exchange, number, site, program, notes, payload = (
        HEADER.unpack_from(data)
    )
    if version != VERSION or kind not in [*Kind]:
        msg = f"Expected a frame of version {VERSION}, got version {version} of kind "
        raise ValueError(msg + f"{kind}.")
    if notes > NOTES or payload > most or len(data) != overhead(notes) + payload:
        msg = (
            f"Expected a frame of at most {NOTES} bytes of notes and {most} of "
            f"payload, got one of {len(data)} bytes that claims {notes} and {payload}."
        )
        raise ValueError(msg)
    if _check(data[:-CHECK]) != data[-CHECK:]:
        msg = f"Expected a whole frame of round {number}, got a damaged one."
        raise ValueError(msg)
    start = HEADER.size + notes
    said = _notes(data[HEADER.size : start])
    content = data[start:-CHECK]
    return Frame(Kind(kind), number, exchange, site, program, said, content)


def _notes(text: bytes) -> dict[str, Any]:
    try:
        notes = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        notes = None
    if not isinstance(notes, dict):
        msg = "Expected notes that are a JSON object, got something else."
        raise ValueError(msg)
    return notes


def _check(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=CHECK).digest()
