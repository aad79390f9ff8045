"""Messages and checkpoints of any shape, and any bit of them turned over."""

import math
import pathlib
import tempfile

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_sketch.core import wire
from fl_sketch.core.protocols import Field
from fl_sketch.workdir import checkpoint

FIELDS = st.lists(
    st.builds(
        lambda count, bits, kind: Field(count, 32 if kind == "float" else bits, kind),
        st.integers(0, 9),
        st.integers(1, 32),
        st.sampled_from(("uint", "float")),
    ),
    min_size=1,
    max_size=4,
)
QUICK = settings(max_examples=60, deadline=None, database=None)


def numbers(fields, seed):
    """Returns arrays that fit some fields."""
    random = np.random.default_rng(seed)
    return tuple(
        random.normal(size=f.count).astype(np.float32)
        if f.kind == "float"
        else random.integers(0, 2**f.bits, f.count, np.uint64).astype(np.uint32)
        for f in fields
    )


def equal(one, other):
    return all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )


@QUICK
@given(FIELDS, st.integers(0, 99), st.data())
def test_a_message_comes_back_and_a_bit_of_it_changes_one_number_or_none(
    fields, seed, data
):
    arrays = numbers(fields, seed)
    sent = wire.encode(fields, arrays)
    assert equal(wire.decode(fields, sent), arrays)
    bits = wire.size_in_bits(fields)
    assert len(sent) == math.ceil(bits / 8)
    if not sent:
        return
    place = data.draw(st.integers(0, 8 * len(sent) - 1))
    turned = bytearray(sent)
    turned[place // 8] ^= 1 << place % 8
    found = wire.decode(fields, bytes(turned))
    unlike = sum(
        int((a.view(np.uint32) != b.view(np.uint32)).sum())
        for a, b in zip(found, arrays, strict=True)
    )
    assert unlike == (place < bits)  # what fills up the last byte means nothing


@QUICK
@given(FIELDS, st.integers(0, 99), st.integers(-3, 3).filter(bool))
def test_a_message_of_another_length_is_refused(fields, seed, more):
    sent = wire.encode(fields, numbers(fields, seed))
    other = sent + bytes(more) if more > 0 else sent[:more]
    if len(other) == len(sent):
        return
    try:
        wire.decode(fields, other)
    except ValueError as error:
        assert "Expected a message of" in str(error)
    else:
        raise AssertionError


KINDS = (np.float32, np.int32, np.int64, np.uint8, np.bool_, jax.numpy.bfloat16)
TREES = st.lists(
    st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 3), max_size=3)),
    min_size=1,
    max_size=4,
)


def tree_of(shapes, seed):
    random = np.random.default_rng(seed)
    return {
        f"leaf{n}": [np.asarray(random.integers(0, 2, shape), kind)]
        for n, (kind, shape) in enumerate(shapes)
    }


def same(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


@QUICK
@given(TREES, st.integers(0, 99), st.binary(max_size=20), st.data())
def test_a_checkpoint_comes_back_and_damage_is_seen_or_harmless(
    shapes, seed, text, data
):
    tree = tree_of(shapes, seed)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "kept"
        checkpoint.save(folder, 3, tree, extra={"own": text})
        saved = checkpoint.newest(folder, tree)
        assert same(saved.tree, tree) and saved.extra["own"].tobytes() == text
        path = checkpoint.path_of(folder, 3)
        whole = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(whole) - 1))
        if data.draw(st.booleans()):
            whole[place] ^= 1 << data.draw(st.integers(0, 7))
        else:
            whole = whole[:place]
        path.write_bytes(whole)
        try:
            saved = checkpoint.newest(folder, tree)
        except ValueError as error:
            assert path.name in str(error)
        else:
            assert same(saved.tree, tree)
