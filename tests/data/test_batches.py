"""Batches come from the right client, uniformly, at a cost that is the cohort's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from scipy import stats

from fl_sketch.data import batches, partition
from fl_sketch.data.examples import ALIGNED, Examples, aligned
from fl_sketch.data.partition import Partition
from tests.meshes import mesh_of
from tests.refusals import refused

KEY = jax.random.key(0)
both = pytest.mark.parametrize("replacement", [True, False])


def numbers(count):
    """Examples whose input is their own number."""
    return Examples(np.arange(count, dtype=np.float32)[:, None], np.arange(count))


def places(key, start, size, **options):
    """Places of a client that has so many, from `start` on."""
    return batches.places(jnp.array([start, start + size]), key, 0, **options)


@pytest.mark.parametrize(
    ("replacement", "devices"), [(True, 1), (False, 1), (False, 8)]
)
def test_batches_hold_the_clients_own_examples(replacement, devices):
    shares = partition.iid(500, 12, seed=0)
    shares.starts[6] = shares.starts[5]  # client 5 has nothing, and not a neighbour's
    everywhere = NamedSharding(mesh_of(devices, "clients"), P())
    data = batches.resident(numbers(500), shares, device=everywhere)
    cohort = jnp.array([11, 0, 5, 0])
    options = {"steps": 7, "batch": 4, "replacement": replacement}

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, 0, 0))
    def draw(data, key, client):
        return batches.batches(data, key, client, **options)

    inputs, targets = draw(data, jax.random.split(KEY, 4), cohort)
    assert inputs.shape == (4, 7, 4, 1) and targets.shape == (4, 7, 4)
    np.testing.assert_array_equal(inputs[..., 0], targets)
    for row, client in zip(targets, cohort, strict=True):
        assert np.isin(row, shares.of(int(client)) if client != 5 else 0).all()
    assert np.any(targets[1] != targets[3])  # another key, another draw


@pytest.mark.parametrize("kind", batches.KINDS)
def test_a_kind_of_batches_is_what_it_says(kind):
    shares = Partition(np.arange(12, dtype=np.int32), np.array([0, 5, 12]))
    data = batches.resident(numbers(12), shares)
    fetch = jax.jit(batches.fetching(kind, steps=40, batch=4))
    drawn = np.asarray(fetch(data, 1, (), KEY).targets)
    assert drawn.shape == (40, 4) and drawn.min() >= 5
    repeats = sum(len(set(row)) < 4 for row in drawn.tolist())
    assert (repeats > 0) == (kind == "fresh")
    assert (len({tuple(row) for row in drawn.tolist()}) == 1) == (kind == "whole")
    if kind == "whole":
        wide = batches.fetching(kind, steps=1, batch=9)(data, 1, (), KEY)
        assert wide.targets.tolist() == [[5, 6, 7, 8, 9, 10, 11, 5, 6]]


@functools.lru_cache(maxsize=4)
def _many(replacement, rounds):
    """Returns a program for all sizes, whose shuffle has so many rounds."""
    assert rounds == batches.ROUNDS
    draw = functools.partial(places, steps=2, batch=6, replacement=replacement)
    return jax.jit(jax.vmap(draw, in_axes=(0, None, None)))


def many(size, *, replacement=False):
    """Returns twelve draws of each of 60,000 keys, as offsets."""
    draw = _many(replacement, batches.ROUNDS)
    return np.asarray(draw(jax.random.split(KEY, 60_000), 0, size)).reshape(-1, 12)


SIZES = (1, 2, 3, 97, 4096, 70_000)


@functools.cache
def stream():
    """Returns a program of three epochs of the largest size, and more of the others."""
    draw = functools.partial(places, steps=3, batch=max(SIZES), replacement=False)
    return jax.jit(lambda size: draw(KEY, 5, size).ravel())


@pytest.mark.parametrize("size", SIZES)
def test_an_epoch_holds_each_place_once(size):
    drawn = np.asarray(stream()(size))
    epochs = drawn[: drawn.size // size * size].reshape(-1, size)[:300]
    assert len(epochs) >= 3
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), 5 + np.arange(size))
    if size >= 97:
        assert np.mean(epochs[0] == epochs[1]) < 0.05


def uniform(observed):
    return stats.chisquare(observed).pvalue > 1e-4


@both
@pytest.mark.parametrize("size", [2, 3, 5, 12, 25, 1000])
def test_places_and_pairs_of_them_are_equally_likely(replacement, size):
    drawn = many(size, replacement=replacement)
    assert uniform(np.bincount(drawn[:, 0], minlength=size))
    for second in {1, min(size, 11)} if size <= 25 else ():
        pairs = np.bincount(drawn[:, 0] * size + drawn[:, second], minlength=size**2)
        if replacement or second == size:  # of two epochs
            assert uniform(pairs)
        elif size > 2:
            off_diagonal = pairs.reshape(size, size)[~np.eye(size, dtype=bool)]
            assert off_diagonal.sum() == 60_000 and uniform(off_diagonal)


def test_orders_of_four_are_equally_likely():
    codes = many(4)[:, :4] @ [64, 16, 4, 1]
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == 24 and uniform(counts)


@both
def test_the_cost_of_a_batch_does_not_depend_on_the_population(replacement):
    options = {"steps": 5, "batch": 4, "replacement": replacement}
    draw = jax.jit(lambda data, key: batches.batches(data, key, 7, **options))

    def cost(population):
        indices = np.arange(3 * population, dtype=np.int32) % 100
        shares = Partition(indices, 3 * np.arange(population + 1))
        compiled = draw.lower(batches.resident(numbers(100), shares), KEY).compile()
        analysis = compiled.memory_analysis(), compiled.cost_analysis()
        return analysis[0].temp_size_in_bytes, analysis[1]["flops"]

    assert cost(1_000_000) == cost(1000)


def test_what_cannot_be_drawn_from_is_refused():
    texts = Examples(np.array(["to", "be"], object), np.arange(2))
    with refused("strings", error=TypeError):
        batches.resident(texts, partition.iid(10, 2, seed=0))
    with refused("index 9"):
        batches.resident(numbers(9), partition.iid(10, 2, seed=0))


def shifted(shape, dtype):
    """Returns random numbers in memory that begins nowhere in particular."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.frombuffer(np.random.default_rng(0).bytes(size + 2 * ALIGNED), np.uint8)
    begin = -memory.ctypes.data % ALIGNED + 4
    return memory[begin : begin + size].view(dtype).reshape(shape)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="others have own memory")
def test_all_devices_have_one_copy_of_the_examples():
    examples = Examples(shifted((64, 8, 8, 1), np.uint8), shifted((64,), np.int32))
    shared = Examples(*map(aligned, examples))
    everywhere = NamedSharding(mesh_of(8, "clients"), P())
    shares = partition.iid(64, 4, seed=0)
    data = batches.resident(shared, shares, device=everywhere)
    leaves = data.examples.inputs.numbers, data.examples.targets
    for leaf, array in zip(leaves, shared, strict=True):
        shards = {s.data.unsafe_buffer_pointer() for s in leaf.addressable_shards}
        assert shards == {array.ctypes.data}
        np.testing.assert_array_equal(leaf, array.reshape(leaf.shape))
