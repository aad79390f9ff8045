"""Programs whose sums a library of jaxlib gets wrong are compiled without it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.engine import compiling

pytestmark = pytest.mark.fast
OPTIONS = {"xla_cpu_multi_thread_eigen": False}
ONE = engine.mesh_over(jax.devices()[:1])
LONG = jnp.arange(50_000.0)
SQUARE = jnp.ones((200, 200))
WRONG = {
    "broadcast": (lambda x: jnp.broadcast_to(x, (64, x.size)).sum(), LONG),
    "of several clients": (
        lambda x: jax.vmap(lambda one: (one * x).sum())(x[1] * jnp.ones(4)).sum(),
        LONG,
    ),
    "one by one": (
        lambda x: jnp.exp(0 * jnp.broadcast_to(x, (16, x.size))).sum(),
        LONG,
    ),
    "columns": (lambda x: jnp.broadcast_to(x[:, None], (x.size, 8)).sum(), LONG),
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
RIGHT = {
    "all": (lambda x: x.sum(), LONG),
    "deviations": (lambda x: ((x - x.mean(1, keepdims=True)) ** 2).sum(1), SQUARE),
    "products": (lambda x: (x @ x).sum(0), SQUARE),
    "pooled": (
        lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, *2 * [(2, 2)], "VALID"),
        SQUARE,
    ),
    "normalised": (lambda x: jax.nn.softmax(2 * x, axis=1), SQUARE),
}
faulty = pytest.mark.skipif(not compiling.FAULTY, reason="this jaxlib has no such sums")


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


@faulty
@pytest.mark.parametrize("name", WRONG)
def test_wrong_sums_are_found(name):
    assert compiling.has_wrong_sums(lowered(*WRONG[name]).compile().as_text())


@faulty
@pytest.mark.parametrize("name", RIGHT)
def test_other_sums_keep_the_library(name):
    program = engine.compile_program(lowered(*RIGHT[name]), ONE)
    assert "__ynn_fusion" in program.as_text()


@faulty
def test_other_options_stay(monkeypatch):
    given, program = [], lowered(*WRONG["broadcast"])
    monkeypatch.setattr(compiling, "compiler_options", lambda mesh: OPTIONS)
    compiled = type(program).compile

    def watched(self, options):
        given.append(options)
        return compiled(self, options)

    monkeypatch.setattr(type(program), "compile", watched)
    text = engine.compile_program(program, ONE).as_text()
    assert not compiling.has_wrong_sums(text)
    assert given == [OPTIONS, OPTIONS | compiling.WITHOUT]


def test_a_fixed_jaxlib_compiles_once(monkeypatch):
    monkeypatch.setattr(compiling, "FAULTY", False)
    monkeypatch.setattr(compiling, "has_wrong_sums", None)
    engine.compile_program(lowered(*WRONG["broadcast"]), ONE)
