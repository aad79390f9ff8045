"""What the host gathers is what a resident data set would have given."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.data import batches, partition, residency, streamed
from fl_sketch.data.examples import Examples
from tests.meshes import mesh_of
from tests.refusals import refused

KEYS = jax.random.split(jax.random.key(0), 4)
COHORT = jnp.array([11, 0, 5, 0])
SIZES = partition.power_law_sizes(500, 12, exponent=1.0, seed=0)
SHARES = partition.iid(500, 12, sizes=SIZES, seed=0)
SHARES.starts[6] = SHARES.starts[5]  # client 5 has no examples


@pytest.fixture(name="examples")
def mapped_into_memory(tmp_path):
    inputs = np.random.default_rng(0).integers(0, 256, (500, 5, 5, 1), np.uint8)
    np.save(tmp_path / "inputs.npy", inputs)
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    return Examples(mapped, np.arange(500))


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize(("replacement", "devices"), [(True, 1), (False, 2)])
def test_gathered_batches_are_those_of_a_resident_set(
    examples, bare, replacement, devices
):
    whole = examples.inputs if bare else examples
    host = streamed.on_host(whole, SHARES)
    work = {"steps": 3, "batch": 4, "replacement": replacement}
    drawn = streamed.places(jnp.asarray(host.starts), KEYS, COHORT, **work)
    sharding = NamedSharding(mesh_of(devices, "clients"), P("clients"))
    gathered = streamed.gather(host, np.asarray(drawn), sharding)
    data = batches.resident(whole, SHARES)
    expected = jax.vmap(lambda key, client: batches.batches(data, key, client, **work))
    chex.assert_trees_all_equal(gathered, expected(KEYS, COHORT), strict=True)
    leaf = jax.tree.leaves(gathered)[0]
    shapes = [shard.data.shape for shard in leaf.addressable_shards]
    assert shapes == [(4 // devices, 3, 4, 5, 5, 1)] * devices


def test_only_fresh_batches_are_streamed(monkeypatch):
    arguments = np.zeros((9, 1)), mesh_of(2, "clients"), "subsets"
    with refused("data='streamed'", "subsets"):
        residency.form("streamed", *arguments)
    monkeypatch.setattr(residency, "HOST_LIMIT", 1)
    with refused("data='resident'", "subsets"):
        residency.form("auto", *arguments)
