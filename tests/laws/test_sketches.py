"""The laws that every sketch operator obeys, whatever the shapes.

Compiling is the cost of these laws, so one program answers all questions about a shape,
one all about what jax makes of an operator, and one all about several devices.
"""

import functools
import itertools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import PartitionSpec as P

from fl_sketch import sketch
from fl_sketch.core import trees
from fl_sketch.sketch import hadamard
from fl_sketch.sketch.median import comparators, median
from tests.channels.rounds import quickly
from tests.meshes import mesh_of
from tests.operators import OPERATORS, build, every_operator

KEYS = 10_000
D, B = 30, 6  # of plain calls
CLOSE = {"rtol": 1e-4, "atol": 1e-3}


def vector(d, seed=1):
    # Uneven on purpose: a law that holds for this holds for more than noise.
    noise = np.random.default_rng(seed).normal(size=d)
    return (noise * (1 + np.arange(d) % 7)).astype(np.float32)


def vectors(number, d):
    return np.stack([vector(d, seed) for seed in range(number)])


@functools.cache
def key_of(seed):
    return jax.random.key(seed)


plain = functools.cache(lambda name: build(name, B, D))  # its programs are kept in it


class Answers(NamedTuple):
    """What an operator makes of one shape, by its first key but for the last field.

    Attributes:
      matrix: R, from what `apply` makes of unit vectors.
      sketches: of x, y and 2 x - y.
      message: a random one.
      back: what `transpose` makes of it.
      desketched: R^T R x by all other keys.
    """

    matrix: np.ndarray
    sketches: np.ndarray
    message: np.ndarray
    back: np.ndarray
    desketched: np.ndarray


@functools.cache
def answers(name, d, b, keys):
    """Returns all that is asked about a shape, in float64 for tight tolerances."""
    op, x, y = build(name, b, d), vector(d), vector(d, 2)
    zeros = jax.eval_shape(op.zeros, jax.ShapeDtypeStruct((d,), np.float32))
    message = np.random.default_rng(3).normal(size=zeros.shape).astype(np.float32)
    assert op.size(d) == message.size

    # Making millions of normal numbers costs more than compiling.
    @(jax.jit if name == "gaussian" and keys == KEYS else quickly)
    def everything(seed, rows, x, message):
        keys_of = jax.random.split(jax.random.key(seed), 1 + keys)
        rows = jax.vmap(lambda row: op.apply(keys_of[0], row).ravel())(rows)

        def there_and_back(number, key):
            sent = jnp.where(number == 0, message, op.apply(key, x))
            return op.transpose(key, sent, d)

        return rows, jax.vmap(there_and_back)(jnp.arange(1 + keys), keys_of)

    rows = np.concatenate([np.eye(d), [x, y, 2 * x - y]]).astype(np.float32)
    made = everything(np.uint32(5), rows, x, message)
    rows, read = (np.asarray(a, np.float64) for a in made)
    message = message.ravel().astype(np.float64)
    return Answers(rows[:d].T, rows[d:], message, read[0], read[1:])


# (d, b, keys): b divides d, and does not; and of few keys, b is more than d, and one.
MANY = [(32, 8, KEYS), (19, 5, KEYS)]
FEW = [pytest.param(d, b, 1, marks=pytest.mark.slow) for d, b in ((5, 7), (1, 1))]


@every_operator
@pytest.mark.parametrize(("d", "b", "keys"), MANY + FEW)
def test_sketch_is_linear_and_the_adjoint_is_its_transpose(name, d, b, keys):
    r, (rx, ry, rxy), s, back, _ = answers(name, d, b, keys)
    x, y = (np.asarray(vector(d, seed), np.float64) for seed in (1, 2))
    size = np.linalg.norm(r, 2) * (np.linalg.norm(x) + np.linalg.norm(y))
    np.testing.assert_allclose(rxy, 2 * rx - ry, atol=1e-5 * size)
    np.testing.assert_allclose(rx, r @ x, atol=1e-5 * size)
    inner = size * np.linalg.norm(s)
    assert rx @ s == pytest.approx(x @ back, abs=1e-5 * inner)
    np.testing.assert_allclose(back, r.T @ s, atol=1e-5 * inner)


@every_operator
@pytest.mark.parametrize(("d", "b", "keys"), MANY)
def test_estimate_is_unbiased_with_the_error_of_its_closed_form(name, d, b, keys):
    ys, x = answers(name, d, b, keys).desketched, np.asarray(vector(d), np.float64)
    standard_error = ys.std(axis=0) / KEYS**0.5
    assert np.all(np.abs(ys.mean(axis=0) - x) <= 4 * standard_error + 1e-4)

    errors = np.sum((ys - x) ** 2, axis=1)
    expected = OPERATORS[name].error(x, b)
    tolerance = 3 * errors.std() / KEYS**0.5 + 1e-6 * (x @ x)
    assert errors.mean() == pytest.approx(expected, abs=tolerance)


@every_operator
def test_every_round_has_a_fresh_sketch_and_one_key_the_same(name):
    op, x = plain(name), vector(D)
    first = op.apply(key_of(0), x)
    np.testing.assert_array_equal(first, op.apply(jax.random.key(0), x))
    if name != "identity":
        assert not np.allclose(first, op.apply(key_of(1), x))


def readings(op):
    """Returns its ways to read a message: one, where the estimate is the adjoint."""
    return dict.fromkeys([op.transpose, op.estimate])


class Made(NamedTuple):
    """What jax makes of an operator, on some vectors of length D, in one program.

    Attributes:
      batched: their messages, by vmap.
      mapped: the same, in a loop.
      backs: what each way to read makes of these messages, by vmap.
      loops: the same, in the loop.
      tangents: of `apply` in the direction of the second vector, in the loop.
      gradients: of half the energy of the message, R^T R x.
      twice: the second derivatives, R^T R in that direction.
    """

    batched: np.ndarray
    mapped: np.ndarray
    backs: list
    loops: list
    tangents: np.ndarray
    gradients: np.ndarray
    twice: np.ndarray


@functools.cache
def made(name):
    """Returns what jax makes of an operator."""
    op = plain(name)

    @quickly
    def everything(key, xs):
        reads = [lambda s, read=read: read(key, s, D) for read in readings(op)]

        def apply_and_gradient(x):
            message, pull = jax.vjp(lambda x: op.apply(key, x), x)
            return message, *pull(message)

        def in_a_loop(x):
            (message, gradient), (tangent, twice) = jax.jvp(
                apply_and_gradient, (x,), (xs[1],)
            )
            back = [read(message) for read in reads]
            return message, back, tangent, gradient, twice

        batched = jax.vmap(lambda x: op.apply(key, x))(xs)
        backs = [jax.vmap(read)(batched) for read in reads]
        mapped, loops, *derivatives = jax.lax.map(in_a_loop, xs)
        return Made(batched, mapped, backs, loops, *derivatives)

    return everything(key_of(4), vectors(3, D))


@every_operator
def test_jit_vmap_and_map_agree_with_the_plain_call(name):
    op, results, key = plain(name), made(name), key_of(4)
    close = {"rtol": 1e-5, "atol": 1e-5}
    messages = [op.apply(key, x) for x in vectors(3, D)]
    np.testing.assert_allclose(results.batched, np.stack(messages), **close)
    np.testing.assert_allclose(results.mapped, np.stack(messages), **close)
    for read, *ways in zip(readings(op), results.backs, results.loops, strict=True):
        back = np.stack([read(key, s, D) for s in messages])
        for way in ways:
            np.testing.assert_allclose(way, back, rtol=1e-4, atol=1e-4)


@every_operator
def test_derivatives_are_those_of_a_linear_map(name):
    """Forwards R, backwards R^T, and once more: an attack differentiates twice."""
    op, key, results, (x, dx, _) = plain(name), key_of(4), made(name), vectors(3, D)
    sketched = op.apply(key, dx)
    back = op.transpose(key, op.apply(key, x), D)
    np.testing.assert_allclose(results.tangents[0], sketched, **CLOSE)
    np.testing.assert_allclose(results.gradients[0], back, **CLOSE)
    again = op.transpose(key, sketched, D)
    np.testing.assert_allclose(results.twice[0], again, rtol=1e-3, atol=5e-3)


@pytest.mark.slow
@every_operator
def test_over_devices_sketches_add_up_and_keys_may_differ(name):
    op, key, xs, x = plain(name), key_of(6), vectors(2, D), vector(D)
    keys = jax.random.split(key_of(0), 2)

    @functools.partial(
        jax.shard_map,
        mesh=mesh_of(2, "devices"),
        in_specs=(P("devices"), P(), P("devices"), P()),
        out_specs=(P(), P(), P("devices")),
    )
    def on_one_device(xs, key, keys, x):
        message = op.apply(key, xs[0])
        total = jax.lax.psum(message, "devices")
        own = op.transpose(keys[0], op.apply(keys[0], x), D)
        return total, op.estimate(key, total, D), own[None]

    total, estimate, own = quickly(on_one_device)(xs, key, keys, x)
    summed = op.apply(key, xs.sum(0))
    np.testing.assert_allclose(total, summed, **CLOSE)
    np.testing.assert_allclose(estimate, op.estimate(key, summed, D), **CLOSE)
    by_own_key = op.transpose(keys[1], op.apply(keys[1], x), D)
    np.testing.assert_allclose(own[1], by_own_key, rtol=1e-5, atol=1e-5)


@every_operator
def test_float16_types_are_summed_in_float32(name):
    op, key, x = plain(name), key_of(2), vector(D).astype(jnp.bfloat16)
    s = op.apply(key, x)
    assert s.dtype == jnp.float32
    exact = op.apply(key, x.astype(np.float32))
    np.testing.assert_allclose(s, exact, rtol=1e-5, atol=1e-5)
    assert jax.eval_shape(op.transpose, key, s, x).dtype == jnp.bfloat16


@every_operator
def test_nan_is_not_hidden(name):
    op, key = plain(name), key_of(0)
    assert np.isnan(op.apply(key, np.full(D, np.nan, np.float32))).all()
    if name == "uniform_sampling":  # sends a coordinate or does not
        return
    s = op.apply(key, np.where(np.arange(D) == 17, np.float32(np.nan), vector(D)))
    assert np.isnan(s).any()
    assert np.isnan(op.estimate(key, s, D)[17])


@every_operator
def test_a_tree_is_sketched_as_the_vector_of_its_leaves(name):
    tree = {"w": vector(20).reshape(4, 5), "b": (vector(9), vector(1).reshape(()))}
    op, key, flat = plain(name), key_of(1), np.asarray(trees.ravel(tree))
    s = op.apply(key, tree)
    np.testing.assert_array_equal(s, op.apply(key, flat))
    assert op.size(tree) == s.size
    back = op.transpose(key, s, tree)
    chex.assert_trees_all_equal_shapes(back, tree)
    np.testing.assert_array_equal(trees.ravel(back), op.transpose(key, s, D))
    shapes = jax.eval_shape(lambda: tree)
    chex.assert_trees_all_equal(back, op.transpose(key, s, shapes))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - {"identity"}))
def test_no_operator_needs_more_than_two_vectors_and_a_few_messages(name):
    d = 2**24
    dense = name in ("gaussian", "ams")
    op = OPERATORS[name].make(1000 if dense else d // 100)
    x, s = jax.ShapeDtypeStruct((d,), jnp.float32), jax.eval_shape(op.zeros)
    kernels = [(op.apply, x)]
    for read in readings(op):
        kernels.append((lambda key, s, read=read: read(key, s, d), s))
    for kernel, given in kernels:
        compiled = jax.jit(kernel).lower(key_of(0), given).compile()
        memory = compiled.memory_analysis()
        taken = memory.temp_size_in_bytes + memory.output_size_in_bytes
        assert taken <= 4 * (2 * d + 4 * op.size() + 2**20)


@pytest.mark.parametrize(
    ("change", "name"), [("fixed_key", "gaussian"), ("materialized", "count_sketch_x5")]
)
def test_of_one_key_it_is_the_operator_under_that_key(change, name):
    op, key, tree = plain(name), key_of(1), {"w": vector(20), "b": vector(10)}
    of_one_key = getattr(sketch, change)(op, key)
    assert of_one_key.fixed_key and of_one_key.size(tree) == op.size(tree)
    assert of_one_key.resize(5).fixed_key

    @quickly
    def both(key, other, tree):
        message, made = op.apply(key, tree), []
        for each, own in ((of_one_key, other), (op, key)):
            backs = [
                read(own, message, tree) for read in (each.transpose, each.estimate)
            ]
            made.append((each.apply(own, tree), backs, each.resize(5).apply(own, tree)))
        return made

    chex.assert_trees_all_close(*both(key, key_of(2), tree), rtol=1e-5, atol=1e-5)
    linear = op.estimate is op.transpose
    assert linear == (of_one_key.estimate is of_one_key.transpose)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ValueError, lambda op: op.resize(0)),
        (TypeError, lambda op: op.resize(2.5)),
        (TypeError, lambda op: op.apply(key_of(0), {"steps": jnp.int32(3)})),
        (TypeError, lambda op: op.apply(key_of(0), np.ones(10))),  # float64
        (ValueError, lambda op: op.apply(key_of(0), {})),
        (ValueError, lambda op: op.apply(key_of(0), vector(3))),  # shorter than b
        (TypeError, lambda op: op.apply(jnp.zeros(2, jnp.uint32), vector(D))),
        (TypeError, lambda op: op.transpose(0, op.zeros(), D)),
        (ValueError, lambda op: op.transpose(key_of(0), op.zeros()[:-1], D)),
        (ValueError, lambda op: op.estimate(key_of(0), op.zeros(), 2**31)),
    ],
)
def test_what_cannot_be_sketched_is_refused(error, call):
    with pytest.raises(error):
        call(sketch.srht(8))


@pytest.mark.fast
@pytest.mark.parametrize("n", [1, 2, 64, 128, 512, 2048])
def test_both_ways_to_a_walsh_hadamard_transform_are_the_product(n):
    x = vector(n)
    expected = scipy.linalg.hadamard(n).astype(np.float64) @ x
    for transform in (
        hadamard.walsh_hadamard_by_butterflies,
        hadamard.walsh_hadamard_by_matmuls,
    ):
        np.testing.assert_allclose(jax.jit(transform)(x), expected, atol=1e-4 * n)


@pytest.mark.fast
@pytest.mark.parametrize("count", [*range(1, 10), 20, 51])
def test_the_network_sorts_so_that_its_middle_is_the_median(count):
    rows = np.stack([vector(200, seed) for seed in range(count)])
    for values in (
        rows[:, :50].T if count > 9 else itertools.product((0, 1), repeat=count)
    ):
        values = list(values)  # Knuth: what sorts all zeros and ones sorts everything
        for low, high in comparators(count):
            assert low < high
            values[low], values[high] = sorted((values[low], values[high]))
        assert values == sorted(values)
    of_rows = median([jnp.asarray(row) for row in rows])
    np.testing.assert_allclose(of_rows, np.median(rows, axis=0), rtol=1e-6)
    with_nan = [jnp.float32(row[0]) for row in rows]
    with_nan[count // 2] = jnp.float32(np.nan)
    assert jnp.isnan(median(with_nan))
