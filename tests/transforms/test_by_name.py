"""Optimizers of clients by their names in optax, and their weight decay."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch.transforms import by_name

OWN = """
import optax


def warmed(rate):
    return optax.chain(optax.clip(1.0), optax.sgd(rate, momentum=0.5))


def wrong(rate):
    return rate
"""


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


def test_every_name_makes_one_or_says_why_not():
    made = 0
    for name in by_name.NAMES:
        try:
            made += callable(by_name.optimizer(name))
        except TypeError as error:
            assert "\n" not in str(error) and name in str(error)
    assert made > 20


def test_decay_takes_a_share_off_beside_the_step():
    plain = by_name.optimizer("adam")
    decayed = by_name.decoupled(plain, 0.5)
    x = jnp.array([2.0, -1.0])
    moves = [tx.update(x, tx.init(x), x)[0] for tx in (plain(0.1), decayed(0.1))]
    np.testing.assert_allclose(moves[1], moves[0] - 0.1 * 0.5 * x, rtol=1e-6)
    assert by_name.decoupled(plain, 0.0) is plain


def test_one_of_ones_own_is_named_by_its_file(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    make = by_name.optimizer(f"{path}:warmed")
    expected = optax.chain(optax.clip(1.0), optax.sgd(0.1, momentum=0.5))
    np.testing.assert_array_equal(steps(make(0.1)), steps(expected))
    with pytest.raises(TypeError, match="own.py:wrong"):
        by_name.optimizer(f"{path}:wrong")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("adamm", "Did you mean 'adam'"),
        ("sgd(0.1)", "0.1"),
        ("sgd(momentun=1)", "Did you mean 'momentum'"),
        ("sgd(momentum=[1, 2, 3])", "1, 2, 3"),
        ("__import__('os').system('true')", "system"),
        ("open('/etc/passwd')", "passwd"),
        ("sgd(momentum=open)", "momentum=open"),
        ("lbfgs", "lbfgs"),
    ],
)
def test_anything_else_gets_one_line(text, words):
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        by_name.optimizer(text)
    assert "\n" not in str(caught.value)
