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
from fl_sketch.data.examples import Examples, aligned, aligned_empty
from fl_sketch.data.partition import Partition
from tests.meshes import mesh_of

KEY = jax.random.key(0)
both = pytest.mark.parametrize("replacement", [True, False])


def numbers(count):
    """Examples whose input is their own number."""
    return Examples(np.arange(count, dtype=np.float32)[:, None], np.arange(count))


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


def test_a_pass_holds_each_example_once_and_its_last_batch_is_short():
    shares = Partition(np.arange(112, dtype=np.int32), np.array([0, 5, 102, 112]))
    data = batches.resident(numbers(112), shares)
    fetch = batches.fetching("fresh", steps=1, batch=10, epochs=3)
    passes = jax.jit(lambda: fetch(data, 1, (), KEY))()
    assert int(passes.steps) == 3 * 10
    drawn, weights = jax.jit(jax.vmap(passes.at))(jnp.arange(30))
    assert np.isin(drawn.targets, shares.of(1)).all()  # what fills up a batch too
    counted = weights.reshape(3, 10, 10).sum(-1)
    np.testing.assert_array_equal(counted, [[10] * 9 + [7]] * 3)
    orders = np.asarray(drawn.targets)[weights > 0].reshape(3, 97)
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), shares.of(1))
    assert np.mean(orders[0] == orders[1]) < 0.1
    assert int(fetch(data, 0, (), KEY).steps) == 3


def test_an_epoch_holds_each_place_once():
    most = 70_000
    options = {"steps": 3, "batch": most, "replacement": False}

    @jax.jit  # three epochs of the largest size, and more of the others
    def stream(size):
        return batches.places(jnp.array([5, 5 + size]), KEY, 0, **options).ravel()

    for size in (1, 2, 3, 97, 4096, most):
        drawn = np.asarray(stream(size))
        epochs = drawn[: drawn.size // size * size].reshape(-1, size)[:300]
        for epoch in epochs:
            np.testing.assert_array_equal(np.sort(epoch), 5 + np.arange(size))
        if size >= 97:
            assert np.mean(epochs[0] == epochs[1]) < 0.05


def uniform(observed):
    return stats.chisquare(observed).pvalue > 1e-4


@functools.cache
def twelve(replacement):
    """Returns a program that draws twelve places of a client that has so many."""
    options = {"steps": 2, "batch": 6, "replacement": replacement}

    def draw(key, size):
        return batches.places(jnp.array([0, size]), key, 0, **options).ravel()

    return jax.jit(jax.vmap(draw, in_axes=(0, None)))


@both
@pytest.mark.parametrize("size", [2, 3, 4, 5, 12, 25, 1000])
def test_places_pairs_and_orders_are_equally_likely(replacement, size):
    drawn = np.asarray(twelve(replacement)(jax.random.split(KEY, 60_000), size))
    assert uniform(np.bincount(drawn[:, 0], minlength=size))
    for second in {1, min(size, 11)} if size <= 25 else ():
        pairs = np.bincount(drawn[:, 0] * size + drawn[:, second], minlength=size**2)
        if replacement or second == size:  # of two epochs
            assert uniform(pairs)
        elif size > 2:
            off_diagonal = pairs.reshape(size, size)[~np.eye(size, dtype=bool)]
            assert off_diagonal.sum() == 60_000 and uniform(off_diagonal)
    if size == 4 and not replacement:
        codes = drawn[:, :4] @ [64, 16, 4, 1]
        counts = np.unique(codes, return_counts=True)[1]
        assert len(counts) == 24 and uniform(counts)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="others have own memory")
def test_all_devices_have_one_copy_of_the_examples():
    nowhere = aligned_empty((64 * 64 + 4,), np.uint8)[4:].reshape(64, 8, 8, 1)
    shared = Examples(aligned(nowhere), aligned(np.arange(64, dtype=np.int32)))
    everywhere = NamedSharding(mesh_of(8, "clients"), P())
    shares = partition.iid(64, 4, seed=0)
    data = batches.resident(shared, shares, device=everywhere)
    leaves = data.examples.inputs.numbers, data.examples.targets
    for leaf, array in zip(leaves, shared, strict=True):
        shards = {s.data.unsafe_buffer_pointer() for s in leaf.addressable_shards}
        assert shards == {array.ctypes.data}
