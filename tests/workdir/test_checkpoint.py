"""A checkpoint is whole or not there, and says when it is damaged."""

import errno
import resource
import zipfile

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
    folder = tmp_path / "c"
    assert checkpoint.newest(folder, TREE) is None
    extra = {"text": b"ab", "recent/loss": np.arange(3.0)}
    checkpoint.save(folder, 7, TREE, extra=extra)
    saved = checkpoint.newest(folder, TREE)
    assert saved.number == 7
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
        checkpoint.save(tmp_path / "all", number, TREE, keep=0)
    assert checkpoint.rounds(tmp_path / "checkpoints") == [3, 10]
    assert checkpoint.rounds(tmp_path / "all") == [1, 2, 3, 10]
    found = weights.load_params(tmp_path)["w"]
    np.testing.assert_array_equal(found, [10.0, 10.0])


def test_every_damage_is_one_line_or_harmless(tmp_path):
    checkpoint.save(tmp_path, 2, TREE)
    path = tmp_path / "round_00000002.npz"
    whole, seen = path.read_bytes(), 0
    cuts = [whole[:n] for n in (0, 10, len(whole) // 2, len(whole) - 1)]
    flips = (bytes([whole[n] ^ 255]) for n in range(0, len(whole), 7))
    flipped = [whole[: 7 * n] + b + whole[7 * n + 1 :] for n, b in enumerate(flips)]
    for damaged in cuts + flipped:
        path.write_bytes(damaged)
        try:
            same(checkpoint.newest(tmp_path, TREE).tree, TREE)
        except ValueError as error:
            assert path.name in str(error) and "\n" not in str(error)
            seen += 1
    assert seen > 100


def test_a_checkpoint_of_another_shape_or_round_is_refused(tmp_path):
    checkpoint.save(tmp_path, 1, TREE)
    with refused("counts of float64[3]", "int64[4]"):
        checkpoint.newest(tmp_path, TREE | {"counts": np.zeros(3)})
    (tmp_path / "round_00000001.npz").rename(tmp_path / "round_00000005.npz")
    with refused("round_00000005.npz", "round 1"):
        checkpoint.newest(tmp_path, TREE)
    with refused("round_00000004.npz"):
        checkpoint.of_round(tmp_path, 4, TREE)


def test_a_half_written_file_is_removed(tmp_path):
    checkpoint.save(tmp_path, 1, TREE)
    (tmp_path / ".round_00000002.npz.partial").write_bytes(b"PK")
    assert checkpoint.newest(tmp_path, TREE).number == 1
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
    same(checkpoint.newest(tmp_path, TREE).tree, TREE)


def test_entries_of_no_bytes_are_one_line(tmp_path):
    """Of which a kilobyte can say that it has 10^13."""
    path = tmp_path / "round_00000001.npz"
    header = {"descr": "|V0", "fortran_order": False, "shape": (10**13,)}
    with zipfile.ZipFile(path, "w") as archive, archive.open("a.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(ValueError, match="no bytes"):
        checkpoint.arrays_below(path, "")
