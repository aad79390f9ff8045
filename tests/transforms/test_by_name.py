"""Optimizers of clients by their names in optax, and their weight decay."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch.transforms import by_name
from tests.refusals import refused


def steps(tx, count=3):
    """Returns where gradients of x^2 lead from one."""
    x = jnp.ones(2)
    state = tx.init(x)
    for _ in range(count):
        updates, state = tx.update(2 * x, state, x)
        x = optax.apply_updates(x, updates)
    return x


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sgd", optax.sgd(0.1)),
        ("sgd(momentum=0.9, nesterov=True)", optax.sgd(0.1, 0.9, nesterov=True)),
        ("adamw(weight_decay=0.1)", optax.adamw(0.1, weight_decay=0.1)),
        ("yogi(b1=0.5)", optax.yogi(0.1, b1=0.5)),
    ],
)
def test_it_is_the_optimizer_of_that_name(text, expected):
    np.testing.assert_array_equal(steps(by_name.optimizer(text)(0.1)), steps(expected))


def test_decay_takes_a_share_off_beside_the_step():
    plain = by_name.optimizer("adam")
    decayed = by_name.decoupled(plain, 0.5)
    x = jnp.array([2.0, -1.0])
    moves = [tx.update(x, tx.init(x), x)[0] for tx in (plain(0.1), decayed(0.1))]
    np.testing.assert_allclose(moves[1], moves[0] - 0.1 * 0.5 * x, rtol=1e-6)
    assert by_name.decoupled(plain, 0.0) is plain


@pytest.mark.parametrize(
    "text",
    [
        "adamm",
        "sgd(0.1)",
        "sgd(momentun=1)",
        "__import__('os').system('true')",
        "sgd(momentum=open)",
        "lbfgs",
    ],
)
def test_anything_else_gets_one_line(text):
    with refused(error=(ValueError, TypeError)):
        by_name.optimizer(text)
