"""Constants are arguments of programs, wherever a function reads them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from fl_sketch.core import constants
from tests.meshes import mesh_of

pytestmark = pytest.mark.fast

SIZE = 50_000
WEIGHTS = constants.Constant({"w": jnp.arange(SIZE, dtype=jnp.float32)})


def plain(x):
    return jnp.sum(WEIGHTS.value["w"] * x)


def scanned(x):
    return jax.lax.scan(lambda carry, _: (carry + plain(x), None), x, None, length=3)[0]


def batched(x):
    # Of unlike entries: jaxlib 0.10.2 gets sums of an array that was broadcast wrong.
    return jax.vmap(plain)(x * jnp.arange(1.0, 5.0)).sum()


def differentiated(x):
    return jax.grad(lambda x: plain(x) ** 2)(x)


def sharded(x):
    mesh = mesh_of(2, "clients")
    part = jax.shard_map(
        lambda x: jax.lax.psum(plain(x[0]), "clients"),
        mesh=mesh,
        in_specs=P("clients"),
        out_specs=P(),
    )
    return part(x * jnp.ones(2))


KINDS = (plain, jax.jit(plain), scanned, batched, differentiated, sharded)


@pytest.mark.parametrize("function", KINDS, ids=range(len(KINDS)))
def test_a_program_has_them_as_arguments_and_not_as_literals(function):
    expected = function(2.0)
    for _ in range(2):  # what is jitted inside is traced for each program
        with constants.noted() as found:
            jax.eval_shape(lambda x: function(x), 2.0)
        trees = constants.trees_of([WEIGHTS])
        program = jax.jit(constants.as_argument(function, [WEIGHTS])).lower(2.0, trees)
        assert len(program.as_text()) < SIZE
        twice = jax.tree.map(lambda leaf: 2 * leaf, trees)
        compiled = program.compile()
        np.testing.assert_allclose(compiled(2.0, trees), expected, rtol=1e-5)
        assert abs(compiled(2.0, twice) / expected - 1) > 0.1
        np.testing.assert_array_equal(function(2.0), expected)
    assert found in ([WEIGHTS], [])  # none, if jax had traced it before


def test_what_is_read_is_noted_once_and_only_inside():
    other = constants.Constant(jnp.ones(3))
    plain(1.0)
    with constants.noted() as found:
        other.value, plain(1.0), other.value
    plain(1.0)
    assert found == [other, WEIGHTS]
    assert constants.size_of(found) == 4 * (3 + SIZE)
    total = constants.jitted(plain)  # finds them by itself
    assert total(2.0) == plain(2.0) and total(3.0) == plain(3.0)
