"""A checkpoint is whole or not there, and says when it is damaged."""

import errno
import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.workdir import checkpoint, weights
from tests.run.configs import refused

pytestmark = pytest.mark.fast

TREE = {
    "state": (jnp.arange(50.0), {"w": jnp.ones((3, 2), jnp.bfloat16)}),
    "empty": (),
    "counts": np.arange(4, dtype=np.int64),
    "key": jax.random.key(3),
}


def same(a, b):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_what_is_saved_comes_back_to_the_bit(tmp_path):
    folder, lines = tmp_path / "c", []
    assert checkpoint.newest(folder, TREE, lines.append) is None
    extra = {"text": b"ab", "recent/loss": np.arange(3.0)}
    checkpoint.save(folder, 7, TREE, extra=extra)
    saved = checkpoint.newest(folder, TREE, lines.append)
    assert saved.number == 7 and not lines
    assert jax.tree.structure(saved.tree) == jax.tree.structure(TREE)
    same(saved.tree, TREE)
    assert saved.extra["text"].tobytes() == b"ab"
    np.testing.assert_array_equal(saved.extra["recent/loss"], extra["recent/loss"])
    checkpoint.save(tmp_path / "again", 7, TREE, extra=extra)
    a, b = (tmp_path / n / "round_00000007.npz" for n in ("c", "again"))
    assert a.read_bytes() == b.read_bytes()


def test_the_newest_two_are_kept_and_the_newest_is_read(tmp_path):
    for number in (1, 2, 3, 10):
        params = {"params": {"w": jnp.full(2, float(number))}}
        checkpoint.save(tmp_path / "checkpoints", number, {"state": {"server": params}})
    assert checkpoint.rounds(tmp_path / "checkpoints") == [3, 10]
    like = {"state": {"server": params}}
    assert checkpoint.newest(tmp_path / "checkpoints", like, print).number == 10
    np.testing.assert_array_equal(weights.in_run(tmp_path)["w"], [10.0, 10.0])
    checkpoint.path_of(tmp_path / "checkpoints", 10).write_bytes(b"PK")
    with pytest.warns(UserWarning, match="round_00000010"):
        np.testing.assert_array_equal(weights.in_run(tmp_path)["w"], [3.0, 3.0])
    checkpoint.save(tmp_path / "all", 1, TREE, keep=0)
    checkpoint.save(tmp_path / "all", 2, TREE, keep=0)
    checkpoint.save(tmp_path / "all", 3, TREE, keep=0)
    assert checkpoint.rounds(tmp_path / "all") == [1, 2, 3]


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
        lines = []
        number, tree, _ = checkpoint.newest(tmp_path, TREE, lines.append)
        same(tree, TREE)
        passed_over += number == 1
        assert (number == 1) == (len(lines) == 1)
    assert passed_over > 100
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        lines = []
        assert checkpoint.newest(tmp_path, TREE, lines.append).number == 1
        assert "round_00000002.npz" in lines[0]


def test_if_all_are_damaged_it_says_so_instead_of_beginning_again(tmp_path):
    checkpoint.save(tmp_path, 1, TREE)
    (tmp_path / "round_00000001.npz").write_bytes(b"PK")
    with refused("1", tmp_path, error=checkpoint.Unreadable):
        checkpoint.newest(tmp_path, TREE, lambda line: None)


def test_a_checkpoint_of_another_shape_or_round_is_refused(tmp_path):
    checkpoint.save(tmp_path, 1, TREE)
    lines = []
    with pytest.raises(checkpoint.Unreadable):
        checkpoint.newest(tmp_path, TREE | {"counts": np.zeros(3)}, lines.append)
    assert "counts of float64[3]" in lines[0] and "int64[4]" in lines[0]
    (tmp_path / "round_00000001.npz").rename(tmp_path / "round_00000005.npz")
    with refused("round_00000005.npz", "round 1"):
        checkpoint.newest(tmp_path, TREE, print)


def test_a_half_written_file_is_removed(tmp_path):
    checkpoint.save(tmp_path, 1, TREE)
    (tmp_path / ".round_00000002.npz.partial").write_bytes(b"PK")
    assert checkpoint.newest(tmp_path, TREE, print).number == 1
    assert [path.name for path in tmp_path.iterdir()] == ["round_00000001.npz"]


def test_a_full_disk_leaves_the_old_ones_as_they_were(tmp_path):
    checkpoint.save(tmp_path, 1, TREE)
    big = TREE | {"state": jnp.zeros(100_000)}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(OSError, match="round_00000002") as caught:
            checkpoint.save(tmp_path, 2, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert [path.name for path in tmp_path.iterdir()] == ["round_00000001.npz"]
    same(checkpoint.newest(tmp_path, TREE, print).tree, TREE)
