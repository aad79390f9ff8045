"""What peers send is read once: by its length, its types and its ranges."""

import jax
import numpy as np
import pytest

from fl_sketch.core.protocols import Field
from fl_sketch.network import messages
from fl_sketch.network.messages import Kind, Message
from tests.refusals import refused

pytestmark = pytest.mark.fast
SENT = Message(Kind.MODEL, "a" * 32, 7, 1, 3, {"counts": [1.0, 2.0, 5.0]}, b"12345678")


def test_a_message_comes_back():
    assert messages.read(messages.pack(SENT), 8) == SENT


OUT = [{"kind": 99}, {"run": "../../etc/passwd"}, {"round": -1}, {"round": 2**40}]
OUT += [{"exchange": 2**20}, {"site": -1}, {"site": 2**32}, {"payload": b"123456789"}]


@pytest.mark.parametrize("changes", OUT)
def test_what_is_out_of_range_is_refused(changes):
    with refused("Expected a message"):
        messages.read(messages.pack(SENT._replace(**changes)), 8)


def test_a_small_message_cannot_become_large():
    nested = b"\x91" * 2**17  # a list of a list of a list
    for head in (nested, b"\xdd\xff\xff\xff\xff", b"\xc7\xff\x01" + b"1" * 20):
        with refused("Expected a message"):
            messages.read(len(head).to_bytes(4, "little") + head, 2**30)
    with refused("at most"):
        messages.read((2**31).to_bytes(4, "little") + b"1" * 100, 2**30)


def test_notes_have_types_and_ranges():
    notes = {"counts": [1.0, float("nan"), 2.0], "attempt": True, "many": 10**9}
    for read in (
        lambda: messages.floats(notes, "counts", 3),
        lambda: messages.floats({"counts": [1.0, 2.0]}, "counts", 3),
        lambda: messages.floats({"counts": "abc"}, "counts", 3),
        lambda: messages.whole(notes, "attempt", 0, 5),
        lambda: messages.whole(notes, "many", 0, 5),
        lambda: messages.whole(notes, "none", 0, 5),
    ):
        with refused("Expected"):
            read()
    assert messages.line("\x1b[2Jone\ntwo" + "3" * 999).startswith("[2Jone two333")
    assert len(messages.line("3" * 999)) == messages.TEXT


LEAVES = [
    jax.ShapeDtypeStruct((2, 3), "float32"),
    jax.ShapeDtypeStruct((), "int32"),
    jax.ShapeDtypeStruct((3,), "uint32"),
]
ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.int32(-3),
    np.array([2**32 - 1, 0, 7], np.uint32),
]


def test_arrays_come_back_in_their_shapes_and_types():
    layout = messages.of_leaves(LEAVES)
    data = layout.pack(ARRAYS)
    assert len(data) == layout.size == 40
    for one, other in zip(layout.unpack(data), ARRAYS, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    coded = messages.of_fields([Field(3, 5, "uint"), Field(1, 32, "float")])
    data = coded.pack([np.array([1, 31, 4], np.uint32), np.array([0.5], np.float32)])
    assert len(data) == coded.size == 6
    assert coded.unpack(data)[0].tolist() == [1, 31, 4]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_payload_of_another_length_or_of_no_finite_numbers_is_refused(value):
    layout = messages.of_leaves(LEAVES[:1])
    with refused("39"):
        layout.unpack(b"1" * 39)
    with refused("finite"):
        layout.unpack(layout.pack([np.full((2, 3), value, np.float32)]))
