"""Programs that differ in any constant, wherever it is, have unlike digests."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.engine import programs
from tests.meshes import mesh_of

START = np.ones(4, np.float32)


def jitted(constant):
    return jax.jit(lambda x: (x * constant).sum())


def nested(constant):
    inner = jitted(constant)
    return jax.jit(lambda x: inner(x) + 1)


def checkpointed(constant):
    return jax.checkpoint(jitted(constant))


def scanned(constant):
    inner = jitted(constant)

    def step(total, _):
        return total + inner(total), None

    return lambda x: jax.lax.scan(step, x, None, length=3)[0]


def branched(constant):
    return lambda x: jax.lax.cond(x[0] > 0, jitted(constant), jnp.sum, x)


def custom(constant):
    @jax.custom_vjp
    def plain(x):
        return x.sum()

    plain.defvjp(
        lambda x: (plain(x), x), lambda x, slope: (slope * jitted(constant)(x) + x,)
    )
    return jax.grad(lambda x: plain(x))


def drawn(constant):
    key = jax.random.key(int(constant[0]))
    return jax.jit(lambda x: x + jax.random.normal(key, (4,)))


MAKERS = [nested, checkpointed, scanned, branched, custom, drawn]


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize("make", MAKERS)
def test_a_constant_is_part_of_a_program(make, asarray):
    one, again, other = (
        programs.digest(make(asarray(np.full(4, value, np.float32))), START)
        for value in (1.0, 1.0, 2.0)
    )
    assert one == again != other


def test_all_digits_of_a_number_are_part_of_a_program():
    one, other = (
        programs.digest(functools.partial(jnp.multiply, float(c)), START)
        for c in (np.float32(0.1), np.nextafter(np.float32(0.1), np.float32(1)))
    )
    assert one != other


def test_a_fingerprint_knows_constants_settings_and_callbacks(monkeypatch):
    mesh = mesh_of(1, "clients")

    def of(function):
        return programs.fingerprint(jax.jit(function).lower(1.0), mesh)

    array = np.arange(5000, dtype=np.float32)
    other = array + (np.arange(5000) == 4321)
    assert of(lambda x: x * array) == of(lambda x: x * array)
    assert of(lambda x: x * array) != of(lambda x: x * other)
    first = of(lambda x: jnp.sin(x))
    monkeypatch.setenv("XLA_FLAGS", "--another")
    assert of(lambda x: jnp.sin(x)) != first
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    hosts = [of(lambda x: jax.pure_callback(np.sin, shape, x)) for _ in range(2)]
    assert hosts[0] != hosts[1]
