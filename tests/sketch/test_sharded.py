"""A sketch in parts: the same map on one device and on as many as there are parts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from fl_sketch import engine, sketch
from fl_sketch.algorithms import catalog
from tests.channels.rounds import quickly

KEY = jax.random.key(3)
PARTS = 4
SHAPES = {"bias": (30,), "few": (4,), "heads": (16, 8, 6), "kernel": (24, 64)}
# How many numbers a message has: fewer than a part, more than one, more than all.
SIZED = {
    "count_sketch": lambda b: sketch.count_sketch(b),
    "count_sketch_x5": lambda b: sketch.count_sketch(b // 5, rows=5),
    "sparse_embedding": lambda b: sketch.sparse_embedding(b, 4),
    "srht": sketch.srht,
    "uniform_sampling": sketch.uniform_sampling,
    "gaussian": sketch.gaussian,
    "ams": sketch.ams,
}
# Products with a matrix are added up as each program's compiler likes.
DENSE = ("gaussian", "ams")


def update(seed=0):
    rng = np.random.default_rng(seed)
    return {n: rng.normal(size=s).astype(np.float32) for n, s in SHAPES.items()}


def everything(op, key, tree):
    message = op.apply(key, tree)
    added = op.add_transpose(key, message, tree, -0.5)
    back, read = op.transpose(key, message, tree), op.estimate(key, message, tree)
    return message, back, added, read


@pytest.mark.parametrize("b", [50, 700])
@pytest.mark.parametrize("name", SIZED)
def test_devices_make_of_their_parts_what_one_device_makes_of_all(name, b):
    op, tree = sketch.sharded(SIZED[name](b), PARTS), update()
    play = functools.partial(everything, op)
    one = quickly(play)(KEY, tree)
    mesh = engine.mesh_over(jax.devices(), PARTS)
    assert dict(mesh.shape) == {engine.AXIS: 2, engine.MODEL: PARTS}
    spread = jax.shard_map(
        play, mesh=mesh, in_specs=(P(), P()), out_specs=P(), axis_names={engine.AXIS}
    )
    cut = jax.device_put(tree, engine.layout(mesh, tree, tree))
    several = quickly(spread)(KEY, cut)
    for made in several[1:]:
        assert made["kernel"].sharding.spec == P(None, engine.MODEL)
        assert made["heads"].sharding.spec == P(None, engine.MODEL)
    close = (
        np.testing.assert_allclose if name in DENSE else np.testing.assert_array_equal
    )
    rough = {"rtol": 1e-5, "atol": 1e-5} if name in DENSE else {}
    jax.tree.map(lambda x, y: close(x, y, **rough), one, several)


@pytest.mark.parametrize("name", SIZED)
def test_it_is_linear_its_adjoint_is_its_transpose_and_it_is_unbiased(name):
    keys, op, x, y = 4000, sketch.sharded(SIZED[name](60), PARTS), update(), update(1)

    @quickly
    def made(x, y):
        rx, ry = op.apply(KEY, x), op.apply(KEY, y)
        rxy = op.apply(KEY, jax.tree.map(lambda x, y: 2 * x - y, x, y))
        back = op.transpose(KEY, ry, x)
        some = {n: x[n] for n in ("bias", "heads")}
        draw = lambda key: op.transpose(key, op.apply(key, some), some)  # noqa: E731
        return rx, ry, rxy, back, jax.lax.map(draw, jax.random.split(KEY, keys))

    rx, ry, rxy, back, many = jax.tree.map(np.asarray, made(x, y))
    np.testing.assert_allclose(rxy, 2 * rx - ry, atol=1e-3)
    inner = sum(np.vdot(x[n], back[n]) for n in x)
    assert np.vdot(rx, ry) == pytest.approx(inner, rel=1e-4, abs=1e-2)
    samples = np.concatenate([many[n].reshape(keys, -1) for n in ("bias", "heads")], 1)
    truth = np.concatenate([x["bias"], x["heads"].ravel()])
    spread = samples.std(axis=0) / keys**0.5
    off = np.abs(samples.mean(axis=0) - truth)
    assert np.mean(off <= 3 * spread + 1e-4) > 0.99
    assert np.all(off <= 5.5 * spread + 1e-4)


@pytest.mark.parametrize("name", ["count_sketch", "srht", "gaussian"])
def test_its_error_is_that_of_the_operator(name):
    """A sum over parts strays as one sketch of all does, by about |x|^2 d / b."""
    x, b, keys = update(), 60, 1000
    d = sum(leaf.size for leaf in jax.tree.leaves(x))

    def error(op):
        def one(key):
            back = op.transpose(key, op.apply(key, x), x)
            off = jax.tree.map(lambda back, x: jnp.sum((back - x) ** 2), back, x)
            return sum(jax.tree.leaves(off))

        return quickly(lambda keys: jnp.mean(jax.lax.map(one, keys)))(
            jax.random.split(KEY, keys)
        )

    whole = float(error(SIZED[name](b)))
    parts = float(error(sketch.sharded(SIZED[name](b), PARTS)))
    squared = sum(float(np.sum(leaf**2)) for leaf in jax.tree.leaves(x))
    assert parts == pytest.approx(whole, rel=0.1)
    assert parts == pytest.approx(squared * d / b, rel=0.15)


def test_it_has_the_messages_of_its_operator():
    op = sketch.sharded(sketch.count_sketch(10, rows=5), PARTS)
    assert op.zeros().shape == op.zeros(update()).shape == (5, 10)
    assert op.size() == op.size(update()) == 50
    assert op.resize(100).zeros().shape == (5, 20)
    with pytest.raises(ValueError, match=r"Expected a message of shape \(5, 10\)"):
        op.transpose(KEY, jnp.zeros((5, 9)), update())


def test_what_no_part_can_be_of_is_refused():
    op = sketch.sharded(sketch.count_sketch(10), PARTS)
    with pytest.raises(
        TypeError, match="Expected the pytree that is sketched in parts"
    ):
        op.transpose(KEY, op.zeros(), 100)
    with pytest.raises(ValueError, match="Expected parts to be an integer >= 1"):
        sketch.sharded(sketch.count_sketch(10), 0)
    with pytest.raises(ValueError, match="Expected stored=False for models over"):
        catalog.build_sketch(
            "srht", 64, compression=4, rows=1, layout="whole", stored=True, parts=2
        )


def test_an_update_that_cannot_be_cut_is_sketched_whole():
    tree = {"bias": np.ones(7, np.float32)}
    op = sketch.sharded(sketch.count_sketch(5), PARTS)
    message = op.apply(KEY, tree)
    own = sketch.count_sketch(5).apply(jax.random.fold_in(KEY, PARTS), tree)
    np.testing.assert_array_equal(message, own)
    back = op.transpose(KEY, message, tree)
    assert back["bias"].shape == (7,)
