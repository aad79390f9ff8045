"""A convolution costs the same inside a loop as outside of it (on a CPU)."""

import functools
import time

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from fl_sketch import models
from fl_sketch.models.forms import ORDER

# As users compile; what other tests run once is compiled with less effort.
compiled = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 3}
)
STEPS = 5
KEY = jax.random.key(0)

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="the forms differ on CPUs only"
)


def best_seconds(functions, rounds=7):
    """Returns the least time of each function, measured in turn."""
    best = [float("inf")] * len(functions)
    for function in functions:
        jax.block_until_ready(function())
    for _ in range(rounds):
        for i, function in enumerate(functions):
            begin = time.perf_counter()
            jax.block_until_ready(function())
            best[i] = min(best[i], time.perf_counter() - begin)
    return best


def test_a_step_of_lenet_is_no_slower_inside_scan():
    loss = models.classification(models.lenet(10))
    images, labels = jax.random.normal(KEY, (32, 28, 28, 1)), jnp.arange(32) % 10
    params = jax.block_until_ready(loss.init(KEY, images))

    def step(params, _):
        gradient = jax.grad(loss.value)(params, images, labels)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient), None

    once = compiled(lambda params: step(params, None)[0])
    inside = compiled(lambda params: lax.scan(step, params, None, length=STEPS)[0])

    def outside():
        moved = params
        for _ in range(STEPS):
            moved = once(moved)
        return moved

    alone, looped = best_seconds([outside, lambda: inside(params)])
    assert looped < 3 * alone


def test_the_plain_form_is_why():
    x = jax.random.normal(KEY, (4, 30, 30, 32))
    kernel = jax.random.normal(KEY, (3, 3, 32, 64))

    def steps(convolve):
        def step(kernel, _):
            gradient = jax.grad(lambda k: jnp.sin(convolve(x, k)).sum())(kernel)
            return kernel - 1e-6 * gradient, None

        run = compiled(lambda kernel: lax.scan(step, kernel, None, length=STEPS)[0])
        return lambda: run(kernel)

    def plain(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "VALID", dimension_numbers=ORDER
        )

    def chosen(x, kernel):
        return models.convolve(x, kernel, padding="VALID")

    ours, naive = best_seconds([steps(chosen), steps(plain)], rounds=3)
    assert ours < naive
    if naive < 4 * ours:
        pytest.skip(
            f"JAX's own form is {naive / ours:.1f} times slower here, not 4: "
            "if that is so everywhere, fl_sketch/models/convolution.py can go"
        )
