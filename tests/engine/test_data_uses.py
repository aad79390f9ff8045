"""What a traced program does with the data is what the function does."""

import jax
import jax.numpy as jnp
import optax
import pytest

from fl_sketch.engine.data_uses import Place, places, reach

pytestmark = pytest.mark.fast
NUMBERS, LABELS = jnp.zeros((5, 3)), jnp.zeros(5, int)
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def found(loss, labels=LABELS):
    program = jax.make_jaxpr(loss)(NUMBERS, labels).jaxpr
    return {place[1:] for place in places(program, {1: 0})}


@pytest.mark.parametrize(
    ("loss", "place"),
    [
        (cross_entropy, (3, True)),
        (jax.grad(lambda n, y: cross_entropy(n, y).sum()), (3, True)),
        (jax.vmap(cross_entropy), (3, True)),
        (lambda n, y: jnp.take(n, y, axis=0), (5, True)),
        (lambda n, y: n[y], (5, True)),
        (lambda n, y: optax.softmax_cross_entropy(n, jax.nn.one_hot(y, 3)), (3, False)),
    ],
)
def test_integers_that_are_places_are_found_with_their_number(loss, place):
    assert found(loss) == {place}


@pytest.mark.parametrize(
    "loss",
    [
        lambda n, y: cross_entropy(n, y - 1),
        lambda n, y: cross_entropy(n, y + 1),
        lambda n, y: cross_entropy(n, jnp.where(y < 0, 0, y)),
        lambda n, y: cross_entropy(n, jnp.clip(y, 0, 2)),
        lambda n, y: ((n.mean(1) - y) ** 2).mean(),
    ],
)
def test_integers_that_are_changed_before_are_not(loss):
    assert not found(loss)


def test_places_within_a_loop_are_found():
    def step(total, label):
        return total + jnp.take(NUMBERS[0], label), None

    assert found(lambda n, y: jax.lax.scan(step, 0.0, y)[0]) == {(3, True)}
    assert Place(0, 3, True)[1:] == (3, True)


def looped(x, y):
    """Returns what depends on x, on y, on y from the second turn on, and on neither."""

    def step(carry, number):
        first, second, third, fourth = carry
        return (first + x, second * y, third + second, fourth + number), None

    return jax.lax.scan(step, (0.0, 1.0, 0.0, 0.0), jnp.arange(3.0))[0]


@pytest.mark.parametrize(
    ("function", "depends"),
    [
        (looped, [False, True, True, False]),
        (jax.jit(lambda x, y: (x + 1, x * y, 0.0 * y)), [False, True, True]),
        (lambda x, y: (jax.lax.stop_gradient(x), jnp.zeros_like(y)), [False, False]),
        (lambda x, y: jax.lax.cond(x > 0, lambda: (x, y), lambda: (y, x)), [True] * 2),
        (lambda x, y: jax.grad(lambda p: (p[0] * y).sum())((x, x)), [True, False]),
    ],
)
def test_what_depends_on_an_input_is_known(function, depends):
    program = jax.make_jaxpr(function)(1.0, 2.0).jaxpr
    assert reach(program, [False, True]) == depends
