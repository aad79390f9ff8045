"""What the host gathers is what a resident data set would have given."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.data import batches as draws
from fl_sketch.data import partition, streamed
from fl_sketch.data.examples import Examples
from tests.meshes import mesh_of

KEYS = jax.random.split(jax.random.key(0), 4)
COHORT = jnp.array([11, 0, 5, 0])
WORK = {"steps": 3, "batch": 4}


@pytest.fixture(name="examples")
def mapped_into_memory(tmp_path):
    inputs = np.random.default_rng(0).integers(0, 256, (500, 5, 5, 1), np.uint8)
    np.save(tmp_path / "inputs.npy", inputs)
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    return Examples(mapped, np.arange(500))


def dealt():
    sizes = partition.power_law_sizes(500, 12, exponent=1.0, seed=0)
    return partition.iid(500, 12, sizes=sizes, seed=0)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("devices", [1, 2])
def test_gathered_batches_are_those_of_a_resident_set(examples, replacement, devices):
    host, device = (
        make(examples, dealt()) for make in (streamed.on_host, draws.resident)
    )
    work = WORK | {"replacement": replacement}
    drawn = streamed.places(jnp.asarray(host.starts), KEYS, COHORT, **work)
    sharding = NamedSharding(mesh_of(devices, "clients"), P("clients"))
    found = streamed.gather(host, np.asarray(drawn), sharding)
    expected = jax.vmap(lambda key, client: draws.batches(device, key, client, **work))(
        KEYS, COHORT
    )
    chex.assert_trees_all_equal(found, expected)
    chex.assert_trees_all_equal_dtypes(found, expected)


def test_a_device_gets_the_batches_of_its_own_clients(examples):
    host = streamed.on_host(examples, dealt())
    drawn = streamed.places(jnp.asarray(host.starts), KEYS, COHORT, **WORK)
    sharding = NamedSharding(mesh_of(2, "clients"), P("clients"))
    inputs, _ = streamed.gather(host, np.asarray(drawn), sharding)
    assert [s.data.shape for s in inputs.addressable_shards] == [(2, 3, 4, 5, 5, 1)] * 2


def test_nothing_on_the_host_is_copied(examples):
    host, whole = streamed.on_host(examples, shares := dealt()), examples.inputs
    assert np.shares_memory(host.examples.inputs, whole)
    assert np.shares_memory(host.indices, shares.indices)


def test_what_cannot_be_drawn_from_is_refused():
    texts = Examples(np.array(["to", "be"], object), np.arange(2))
    with pytest.raises(TypeError, match="strings"):
        streamed.on_host(texts, partition.iid(2, 2, seed=0))
    few = Examples(np.zeros((9, 1)), np.arange(9))
    with pytest.raises(ValueError, match="index 9"):
        streamed.on_host(few, partition.iid(10, 2, seed=0))
