"""The forms that are chosen for accelerators, held against the others by estimates.

Nobody timed anything: TPU's compiler says how many cycles it expects of a program, each
loop as often as it turns, and how much memory it takes.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch import sketch
from fl_sketch.experiments.aot import hlo, topology
from tests.experiments.aot.problems import placed

pytestmark = pytest.mark.slow
LENGTH = 2**24
COLS = LENGTH // 100
OP = sketch.count_sketch(COLS)
KEY, VECTOR = ((2,), jnp.uint32), ((LENGTH,), jnp.float32)
VECTORS = ((8, LENGTH), jnp.float32)


@functools.cache
def expected(form, *arrays):
    """Returns (cycles, bytes of temporaries) of a form on one chip."""
    same = NamedSharding(topology.of_tpus("v5e:1x1"), P())
    given = [jax.ShapeDtypeStruct(*array, sharding=same) for array in arrays]
    program = jax.jit(form).trace(*given).lower(lowering_platforms=("tpu",))
    with topology.own_flags():
        compiled = program.compile()
    taken = compiled.memory_analysis().temp_size_in_bytes
    return hlo.cycles(compiled.as_text()), taken


def by_a_loop(key, x):
    return OP.apply(jax.random.wrap_key_data(key), x)


def by_one_gather(key, x):
    """The same operator with all tiles turned at once, by one gather."""
    places, signs = jax.random.split(jax.random.wrap_key_data(key))
    tiles = jnp.pad(x, (0, -LENGTH % COLS)).reshape(-1, COLS)
    turns = jax.random.randint(places, (len(tiles), 1), 0, COLS)
    minus = jax.random.bits(signs, tiles.shape, jnp.uint32) >> 31
    turned = (jnp.arange(COLS) - turns) % COLS
    signed = jnp.where(minus, -tiles, tiles)
    return jnp.take_along_axis(signed, turned, axis=1).sum(0)


def of_all_at_once(key, vectors):
    return jax.vmap(lambda x: by_a_loop(key, x))(vectors)


def of_one_after_the_other(key, vectors):
    return jax.lax.map(lambda x: by_a_loop(key, x), vectors)


def test_a_blocked_sketch_is_a_loop_and_not_one_gather():
    loop, gather = (
        expected(by_a_loop, KEY, VECTOR),
        expected(by_one_gather, KEY, VECTOR),
    )
    assert 0 < 2 * loop[0] < gather[0]
    assert loop[1] < 4 * LENGTH < gather[1]  # the vector again


def test_a_sketch_takes_at_most_four_times_what_a_copy_does():
    copy, _ = expected(lambda x: x + 1, VECTOR)
    assert expected(by_a_loop, KEY, VECTOR)[0] < 4 * copy


def test_clients_are_sketched_at_once():
    at_once, turns = (
        expected(form, KEY, VECTORS)
        for form in (of_all_at_once, of_one_after_the_other)
    )
    assert (
        at_once[0] < turns[0] and at_once[0] < 8 * expected(by_a_loop, KEY, VECTOR)[0]
    )
    assert at_once[1] < 4 * LENGTH


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_clients_train_at_once(model):
    """What the default of compute.chunk does on accelerators, with memory as price."""
    own = {"model.name": model, "client.batch": 16}
    one, all_of = (
        placed("v5e:1x1", own | {"compute.chunk": chunk}) for chunk in (1, 8)
    )
    assert hlo.cycles(all_of.text) < hlo.cycles(one.text)
