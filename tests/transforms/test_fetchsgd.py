"""FetchSGD's server: momentum and error kept in sketch space."""

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

from fl_sketch import sketch, transforms

# Long messages have no collisions.
pytestmark = pytest.mark.filterwarnings("ignore:A message of .* is longer")
KEY = jax.random.key(4)
PARAMS = {"w": jnp.zeros((4, 5)), "b": jnp.zeros(4)}
D = 24
OP = sketch.fixed_key(sketch.count_sketch(10, rows=3), KEY)


def grads(number):
    return jax.tree.map(
        lambda p: jax.random.normal(jax.random.key(number), p.shape) + 1, PARAMS
    )


def chain(op, k, forget="zero"):
    return optax.chain(
        transforms.sketch(op), transforms.fetchsgd(op, k, 0.1, forget=forget)
    )


def run(tx, rounds=3):
    state, total = tx.init(PARAMS), jax.tree.map(jnp.zeros_like, PARAMS)
    for number in range(rounds):
        key = jax.random.key(number)
        step, state = tx.update(grads(number), state, PARAMS, key=key)
        total = optax.apply_updates(total, step)
    return total


@pytest.mark.parametrize(
    ("op", "forget", "tolerance"),
    [
        (sketch.identity(), "subtract", 1e-5),
        (sketch.count_sketch(4096), "zero", 1e-5),
        # Every number of a dense sketch is touched, so that "zero" would drop all.
        (sketch.gaussian(4096), "subtract", 0.2),
    ],
)
def test_without_collisions_and_with_all_coordinates_it_is_momentum_sgd(
    op, forget, tolerance
):
    plain = run(optax.sgd(0.1, momentum=0.9))
    sketched = run(chain(sketch.fixed_key(op, KEY), D, forget))
    chex.assert_trees_all_close(sketched, plain, rtol=tolerance, atol=tolerance)


def test_operators_with_a_fresh_key_and_too_many_coordinates_are_refused():
    with pytest.raises(ValueError, match="fixed_key"):
        transforms.fetchsgd(sketch.count_sketch(10), 4, 0.1)
    with pytest.raises(ValueError, match="k="):
        transforms.fetchsgd(OP, 25, 0.1).init(PARAMS)
