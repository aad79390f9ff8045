"""Devices of a CPU share what begins where they like it, instead of copying it."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.data import batches as draws
from fl_sketch.data.examples import ALIGNED, Examples, aligned
from fl_sketch.data.partition import iid
from fl_sketch.engine import mesh_over


def shifted(shape, dtype):
    """Returns random numbers in memory that begins nowhere in particular."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.random.default_rng(0).bytes(size + 2 * ALIGNED)
    whole = np.frombuffer(room, np.uint8)
    begin = -whole.ctypes.data % ALIGNED + 4
    return whole[begin : begin + size].view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32])
@pytest.mark.parametrize("shape", [(40, 3, 5), (7,), (0, 4)])
def test_an_array_keeps_its_numbers(shape, dtype):
    array = shifted(shape, dtype)
    found = aligned(array)
    assert found.dtype == array.dtype and found.tobytes() == array.tobytes()
    assert found.shape == array.shape
    assert found.ctypes.data % ALIGNED == 0 or not found.size
    assert aligned(found) is found or not found.size


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="others have own memory")
def test_all_devices_have_one_copy_of_the_examples():
    examples = Examples(shifted((64, 8, 8, 1), np.uint8), shifted((64,), np.int32))
    shared = Examples(*map(aligned, examples))
    everywhere = NamedSharding(mesh_over(jax.devices()), P())
    data = draws.resident(shared, iid(64, 4, seed=0), device=everywhere)
    held = data.examples.inputs.numbers, data.examples.targets
    for leaf, array in zip(held, shared, strict=True):
        places = {s.data.unsafe_buffer_pointer() for s in leaf.addressable_shards}
        assert places == {array.ctypes.data}
        np.testing.assert_array_equal(leaf, array.reshape(leaf.shape))
