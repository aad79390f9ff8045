"""A checkpoint is whole or not there, and says when it is damaged."""

import errno
import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.workdir import checkpoint

pytestmark = pytest.mark.fast

TREE = {
    "state": (jnp.arange(50.0), {"w": jnp.ones((3, 2), jnp.bfloat16)}),
    "empty": (),
    "counts": np.arange(4, dtype=np.int64),
    "key": jax.random.key(3),
}


def listen():
    lines = []
    return lines, lines.append


def same(a, b):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_what_is_saved_comes_back_to_the_bit(tmp_path):
    checkpoint.save(tmp_path / "c", 7, TREE)
    lines, say = listen()
    number, tree, _ = checkpoint.newest(tmp_path / "c", TREE, say)
    assert number == 7 and not lines
    assert jax.tree.structure(tree) == jax.tree.structure(TREE)
    same(tree, TREE)


def test_equal_trees_make_equal_bytes(tmp_path):
    for name in "ab":
        checkpoint.save(tmp_path / name, 7, TREE)
    a, b = ((tmp_path / n / "round_00000007.npz").read_bytes() for n in "ab")
    assert a == b


def test_the_newest_two_are_kept(tmp_path):
    for number in (1, 2, 3, 10):
        checkpoint.save(tmp_path, number, TREE)
    assert checkpoint.rounds(tmp_path) == [3, 10]


def test_nothing_is_found_where_nothing_was_saved(tmp_path):
    assert checkpoint.newest(tmp_path / "none", TREE, print) is None


def test_every_damage_is_seen_or_harmless(tmp_path):
    checkpoint.save(tmp_path, 1, TREE)
    checkpoint.save(tmp_path, 2, TREE)
    path = tmp_path / "round_00000002.npz"
    whole = path.read_bytes()
    passed_over = 0
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        lines, say = listen()
        number, tree, _ = checkpoint.newest(tmp_path, TREE, say)
        same(tree, TREE)
        passed_over += number == 1
        assert (number == 1) == (len(lines) == 1)
    assert passed_over > 100
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        lines, say = listen()
        assert checkpoint.newest(tmp_path, TREE, say)[0] == 1
        assert "round_00000002.npz is damaged" in lines[0]
        assert "trying the one before" in lines[0]


def test_if_all_are_damaged_it_says_so_instead_of_beginning_again(tmp_path):
    checkpoint.save(tmp_path, 1, TREE)
    (tmp_path / "round_00000001.npz").write_bytes(b"PK")
    with pytest.raises(checkpoint.Unreadable, match="None of the 1 checkpoints"):
        checkpoint.newest(tmp_path, TREE, lambda line: None)


def test_a_checkpoint_of_another_shape_is_refused(tmp_path):
    checkpoint.save(tmp_path, 1, TREE)
    lines, say = listen()
    with pytest.raises(checkpoint.Unreadable):
        checkpoint.newest(tmp_path, TREE | {"counts": np.zeros(3)}, say)
    assert "expected counts of float64[3], got int64[4]" in lines[0]


def test_a_half_written_file_is_removed(tmp_path):
    checkpoint.save(tmp_path, 1, TREE)
    (tmp_path / ".round_00000002.npz.partial").write_bytes(b"PK")
    assert checkpoint.newest(tmp_path, TREE, print)[0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["round_00000001.npz"]


def test_a_full_disk_leaves_the_old_ones_as_they_were(tmp_path):
    checkpoint.save(tmp_path, 1, TREE)
    big = TREE | {"state": jnp.zeros(100_000)}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            checkpoint.save(tmp_path, 2, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert [path.name for path in tmp_path.iterdir()] == ["round_00000001.npz"]
    same(checkpoint.newest(tmp_path, TREE, print)[1], TREE)
