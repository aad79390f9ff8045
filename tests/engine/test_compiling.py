"""Programs whose sums a library of jaxlib gets wrong are compiled without it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.engine import compiling

pytestmark = pytest.mark.fast
ONE = engine.mesh_over(jax.devices()[:1])
LONG = jnp.arange(50_000.0)
WRONG = {
    "broadcast": (lambda x: jnp.broadcast_to(x, (64, x.size)).sum(), LONG),
    "of several clients": (
        lambda x: jax.vmap(lambda one: (one * x).sum())(x[1] * jnp.ones(4)).sum(),
        LONG,
    ),
    "transposed": (lambda x: jnp.broadcast_to(x[:, None], (x.size, 64)).T.sum(), LONG),
    "windows": (
        lambda x: jax.lax.reduce_window(
            jnp.broadcast_to(x, (64, x.size)),
            0.0,
            jax.lax.add,
            *2 * [(64, 10_000)],
            "VALID",
        ),
        LONG,
    ),
    "products": (
        lambda x: jax.vmap(lambda row: ((jnp.eye(3) @ row) ** 2).sum())(x),
        jnp.zeros((32_769, 3)).at[:, 0].set(jnp.arange(32_769.0)),
    ),
}


def lowered(function, x):
    return jax.jit(function).lower(x)


@pytest.mark.parametrize("name", WRONG)
def test_sums_are_right_and_the_same_in_each_call(name):
    function, x = WRONG[name]
    with jax.enable_x64(True):
        expected = function(np.asarray(x, np.float64))
    program = engine.compile_program(lowered(function, x), ONE)
    for _ in range(20):
        np.testing.assert_allclose(program(x), expected, rtol=1e-3)
    if compiling.FAULTY:
        assert not compiling.has_wrong_sums(program.as_text())
