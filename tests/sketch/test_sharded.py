"""A sketch in parts: the sum over parts, on one device and on as many as parts."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from fl_sketch import engine, sketch
from fl_sketch.core import trees
from tests.channels.rounds import quickly
from tests.quick import some_fast

KEY = jax.random.key(3)
PARTS = 2
SHAPES = {"bias": (8,), "few": (3,), "heads": (4, 2, 3), "kernel": (6, 10)}
# Fewer numbers than a part has, and in one row more than it has.
OPERATORS = {
    "count_sketch": sketch.count_sketch(70),
    "count_sketch_x3": sketch.count_sketch(6, rows=3),
    "srht": sketch.srht(20),
    "gaussian": sketch.gaussian(20),
}
EXACT = {"rtol": 0, "atol": 0}
ROUGH = {"rtol": 1e-5, "atol": 1e-5}


def update(seed=0):
    rng = np.random.default_rng(seed)
    return {n: rng.normal(size=s).astype(np.float32) for n, s in SHAPES.items()}


def everything(op, key, tree):
    message = op.apply(key, tree)
    return message, op.transpose(key, message, tree), op.estimate(key, message, tree)


@functools.cache
def on_one_device(name):
    op = sketch.sharded(OPERATORS[name], PARTS)
    return quickly(functools.partial(everything, op))(KEY, update())


def slices(tree):
    """Returns the leaves of each part by name, those that are not cut in the last."""
    axes = {name: trees.cut(leaf.shape, PARTS) for name, leaf in tree.items()}
    cut = {
        name: jnp.split(tree[name], PARTS, axis)
        for name, axis in axes.items()
        if axis is not None
    }
    parts = [{name: leaves[n] for name, leaves in cut.items()} for n in range(PARTS)]
    return [*parts, {name: tree[name] for name in tree if axes[name] is None}]


few_fast = pytest.mark.parametrize(
    "name", some_fast(OPERATORS, ["count_sketch", "srht"])
)


@few_fast
def test_it_is_the_sum_of_the_sketches_of_its_parts_each_by_a_key_of_its_own(name):
    """So that it is linear, unbiased and as exact as its operator."""
    op = OPERATORS[name]

    @quickly
    def by_hand(tree, message):
        total, backs, reads = jnp.zeros_like(message), [], []
        for number, part in enumerate(slices(tree)):
            d = sum(leaf.size for leaf in part.values())
            small, key = op.resize(min(op.size(), d)), jax.random.fold_in(KEY, number)
            own = small.apply(key, part)
            place = tuple(map(slice, own.shape))
            total = total.at[place].add(own)
            backs.append(small.transpose(key, message[place], part))
            reads.append(small.estimate(key, message[place], part))
        return total, backs, reads

    tree, (message, back, read) = update(), on_one_device(name)
    assert [*slices(tree)[PARTS]] == ["few"]
    total, backs, reads = by_hand(tree, message)
    made = message, slices(back), slices(read)
    chex.assert_trees_all_close(made, (total, backs, reads), **ROUGH)


@few_fast
def test_devices_make_of_their_parts_what_one_device_makes_of_all(name):
    op, tree = sketch.sharded(OPERATORS[name], PARTS), update()
    mesh = engine.mesh_over(jax.devices()[:4], PARTS)
    assert dict(mesh.shape) == {engine.AXIS: 2, engine.MODEL: PARTS}
    spread = jax.shard_map(
        functools.partial(everything, op),
        mesh=mesh,
        in_specs=(P(), P()),
        out_specs=P(),
        axis_names={engine.AXIS},
    )
    cut = jax.device_put(tree, engine.layout(mesh, tree, tree))
    several = quickly(spread)(KEY, cut)
    for made in several[1:]:
        assert made["kernel"].sharding.spec == P(None, engine.MODEL)
    # Products with a matrix are added up as each program's compiler likes.
    close = ROUGH if name == "gaussian" else EXACT
    chex.assert_trees_all_close(on_one_device(name), several, **close)


def test_an_update_that_cannot_be_cut_is_sketched_whole():
    tree = {"bias": np.ones(7, np.float32)}
    op = sketch.sharded(sketch.count_sketch(5), PARTS)
    own = sketch.count_sketch(5).apply(jax.random.fold_in(KEY, PARTS), tree)
    np.testing.assert_array_equal(op.apply(KEY, tree), own)
