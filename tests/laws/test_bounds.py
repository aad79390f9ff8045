"""What is added up of one client has a norm of at most C, whatever the client sends.

Messages have magnitudes over the whole range of a type, alone and in all places, and
every bound and every mechanism is tried on each path on which the engine runs it.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from fl_sketch.core import chacha
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Encoded
from fl_sketch.privacy import clipping, integer_sums, lattice, local_noise, mechanism
from tests.meshes import mesh_of
from tests.quadratics import CATALOGUE, D
from tests.quick import some_fast
from tests.simulation import cohort_of, with_cohort

SLACK = 1 + 1e-6
BOUNDS = {"clip": clipping.clip, "normalise": clipping.normalise}
LIMITS = (1e-30, 1e-4, 1.0, 300.0, 1e30)
KEYS = round_keys(chacha.roots_with(0, jnp.arange(8, dtype=jnp.uint32)), 0, 0)
SHAPES = {"w": (3, 4), "b": (), "v": (19,)}
NUMBERS = 32
DTYPES = {"float32": np.float32, "bfloat16": jnp.bfloat16, "float16": np.float16}
# From the least denormal to what is no number; close to each edge of a norm's way.
SIZES = [0.0, 1e-45, 1e-40, 1.17e-38, 1e-30, 1e-19, 1.1e-19, 1e-10, 1.0, 1e10]
SIZES += [3.2e18, 1.8e19, 1.85e19, 1e30, 8.4e37, 8.6e37, 1.7e38, 3.4e38, np.inf, np.nan]


@functools.cache
def vectors():
    """Returns messages as rows: each magnitude alone, among others, and everywhere."""
    rng, rows = np.random.default_rng(0), []
    for size in SIZES:
        for place in (0, 12, NUMBERS - 1):
            rows += [np.zeros(NUMBERS), rng.normal(size=NUMBERS)]
            rows[-1][place] = rows[-2][place] = size
        signs = rng.choice([-1, 1], NUMBERS)
        rows += [np.full(NUMBERS, size), size * signs]
        rows += [size * rng.uniform(-1, 1, NUMBERS)]
    with np.errstate(over="ignore"):
        return np.asarray(rows, np.float32)


def messages(dtype=np.float32):
    """Returns the same as a tree with a leading axis, in a type that may lose some."""
    tree, first = {}, 0
    with np.errstate(over="ignore"):
        for name, shape in SHAPES.items():
            size = int(np.prod(shape))
            part = vectors()[:, first : first + size]
            tree[name] = part.reshape(-1, *shape).astype(dtype)
            first += size
    return tree


def flat(tree):
    """Returns a tree of rows as one matrix in float64."""
    leaves = jax.tree.leaves(jax.device_get(tree))
    rows = len(leaves[0])
    parts = [np.asarray(leaf).astype(np.float64).reshape(rows, -1) for leaf in leaves]
    return np.concatenate(parts, axis=1)


def one_by_one(function, tree):
    """Returns what a function makes of every seventh message, outside of a program."""
    count = len(vectors())
    chosen = [jax.tree.map(lambda x, i=i: x[i], tree) for i in range(0, count, 7)]
    return jax.tree.map(lambda *rows: np.stack(rows), *map(function, chosen))


def in_shard_map(function, tree):
    """Returns what a function makes of each message, on two devices."""
    devices = {"mesh": mesh_of(2, "clients")}
    devices |= {"in_specs": P("clients"), "out_specs": P("clients")}
    return jax.jit(jax.shard_map(lambda rows: jax.lax.map(function, rows), **devices))(
        tree
    )


PATHS = {
    "eager": one_by_one,
    "vmap": lambda f, tree: jax.jit(jax.vmap(f))(tree),
    "map": lambda f, tree: jax.jit(lambda rows: jax.lax.map(f, rows))(tree),
    "shard_map": in_shard_map,
}


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bound_holds_for_every_message(bound, path, dtype):
    tree = messages(DTYPES[dtype])
    sent = flat(tree)[:: 7 if path == "eager" else 1]
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(np.where(abs(sent) < 2.0**-63, 0, sent), axis=1)
    inside, outside = lengths < 1.8e19, ~(lengths < 1.9e19)

    def each(message):
        made = [BOUNDS[bound](limit).apply(message) for limit in LIMITS]
        return [left for left, _ in made], made[0][1]

    bounded, rejected = PATHS[path](each, tree)
    assert not rejected[inside].any() and rejected[outside].all()
    for limit, left in zip(LIMITS, map(flat, bounded), strict=True):
        norms = np.linalg.norm(left, axis=1)
        assert norms.max() <= limit * SLACK
        assert not norms[outside].any()
        some = inside & (lengths > 0)
        target = np.full(len(norms), limit)
        if bound == "clip":
            target = np.minimum(lengths, limit)
        np.testing.assert_allclose(norms[some], target[some], rtol=1e-5)
        cosine = (left[some] * sent[some]).sum(1) / lengths[some] / target[some]
        np.testing.assert_allclose(cosine, 1, rtol=1e-5)


@pytest.mark.parametrize("size", [100_000, 5_000_000])
@pytest.mark.parametrize("bound", BOUNDS)
def test_a_long_message_hides_nothing_behind_its_first_entries(bound, size):
    """A sum in one order would round all but the first of these squares away."""
    message = np.full(size, 2.0**-12.5, np.float32)
    for place in (0, size // 2, size - 1):
        message[place] = 1
    left, _ = jax.jit(BOUNDS[bound](1.0).apply)({"a": message, "b": message[:3]})
    assert np.linalg.norm(np.concatenate([*left.values()], dtype=np.float64)) <= SLACK


@pytest.mark.parametrize("leaves", some_fast([35, 300], [35]))
@pytest.mark.parametrize("bound", BOUNDS)
def test_many_leaves_hide_nothing_behind_the_first(bound, leaves):
    message = [np.ones(1, np.float32)] + [np.full(3, 2**-12.85, np.float32)] * leaves
    left, _ = jax.jit(BOUNDS[bound](1.0).apply)(message)
    assert np.linalg.norm(np.concatenate(left, dtype=np.float64)) <= SLACK


def guards(bound, limit):
    """Returns mechanisms by name, with what a client adds to the sum of messages."""
    common = {"denominator": 8, "noise_multiplier": 0.0}
    integers = [
        mechanism.integers(bound(limit), bits=bits, smallest=smallest, **common)
        for bits, smallest in ((8, 0), (16, 8), (32, 0), (32, 8))
    ]
    floats = [
        mechanism.central(bound(limit), **common),
        mechanism.adaptive(limit, count_noise=2.0, **common),
    ]
    return floats, integers


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("limit", some_fast([1e-4, 300.0], [300.0]))
def test_every_mechanism_adds_at_most_c(bound, limit):
    floats, integers = guards(BOUNDS[bound], limit)

    def each(message):
        return (
            [g.encode(g.init(), 0, message, KEYS).summand for g in floats],
            [
                integer_sums.on_wire(g, g.encode((), 0, message, KEYS).summand)
                for g in integers
            ],
        )

    sums, words = jax.jit(jax.vmap(each))(messages())
    central, (adaptive, half) = sums
    for summand in (central, adaptive):
        assert np.linalg.norm(flat(summand), axis=1).max() <= limit * SLACK
    assert (abs(np.asarray(half)) == 0.5).all()
    for guard, word in zip(integers, words, strict=True):
        bits, word = guard.integers.bits, np.asarray(word).astype(np.int64)
        word = np.where(word >= 2 ** (bits - 1), word - 2**bits, word)
        scale = lattice.scale(guard.integers, 0.0, word.shape[1])
        squares = (word.astype(np.float64) ** 2).sum(1)
        assert squares.max() <= lattice.square(scale, word.shape[1])


@pytest.mark.parametrize("size", [1e19, 1e20, 2e30, 3e38, np.inf, np.nan])
def test_integers_that_cannot_be_squared_are_none(size):
    """Even if nothing bounds what is rounded."""
    values = jnp.zeros(NUMBERS).at[5].set(size)
    assert not integer_sums.rounded(KEYS.own, values, 2**28).any()


def test_an_example_moves_a_gradient_and_a_step_by_at_most_c():
    def inner(params, batch):
        return jnp.mean(batch @ params)

    def each(example):
        batch = jnp.stack([jnp.zeros(NUMBERS), example])
        total = clipping.clipped_gradient_sum(inner, jnp.zeros(NUMBERS), batch, 0.7)[0]
        work = steps.run(server, (), batch[None], KEYS)
        return total, work.update

    server = type("Server", (), {"params": jnp.zeros(NUMBERS)})
    steps = local_noise.noisy_steps(inner, rate=2.0, clip=0.7, noise_multiplier=0.0)
    total, update = jax.jit(jax.vmap(each))(vectors())
    assert np.linalg.norm(flat(total), axis=1).max() <= 0.7 * SLACK
    assert np.linalg.norm(flat(update), axis=1).max() <= 0.7 * SLACK  # 2 / B = 1


FAST = ("fedavg", "heaprix", "ef21", "fetch_sgd")


@pytest.mark.parametrize("name", some_fast(CATALOGUE, FAST))
def test_no_client_of_any_method_adds_more_than_c(name):
    """Clients whose data are of every magnitude, by what the engine adds up of them."""
    inner = mechanism.central(clipping.clip(0.5), noise_multiplier=0.0, denominator=8)

    def encode(state, exchange, message, keys):
        one = inner.encode(state, exchange, message, keys)
        length = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(one[0])))
        long = 1.0 - (length <= 0.5 * SLACK).astype(jnp.float32)
        return Encoded((one.summand, long), one.rejected)

    def release(state, exchange, total, keys):
        released = inner.release(state, exchange, total[0], keys)
        return released._replace(facts=released.facts | {"too_long": total[1]})

    guard = inner._replace(encode=encode, release=release)
    data = np.float32(SIZES)[:, None] * np.ones(D, np.float32)
    state, report = with_cohort(
        CATALOGUE[name]._replace(mechanism=guard),
        cohort_of(range(len(data))),
        clients=len(data),
        data=data,
        rounds=2,
    )
    facts = report.simulator_only.diagnostics
    assert not facts["mechanism_too_long"].any()
    assert facts["mechanism_rejected"].any()
    chex.assert_tree_all_finite((state.server, state.clients))
