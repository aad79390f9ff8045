"""Momentum and error kept in sketch space: FetchSGD's server, from its parts."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import sketch, transforms

# Long messages have no collisions.
pytestmark = pytest.mark.filterwarnings("ignore:A message of .* is longer")
KEY = jax.random.key(4)
PARAMS = {"w": jnp.zeros((4, 5)), "b": jnp.zeros(4)}
D = 24


def grads(number):
    return jax.tree.map(
        lambda p: jax.random.normal(jax.random.key(number), p.shape) + 1, PARAMS
    )


def flat(tree):
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0])


def fetch_sgd(op, k, forget="subtract"):
    return optax.chain(
        transforms.sketch(op),
        transforms.in_sketch_space(optax.trace(0.9), op),
        optax.scale(0.1),
        transforms.top_k_desketch(op, k, forget),
        optax.scale(-1.0),
    )


def run(tx, rounds=3):
    state, total = tx.init(PARAMS), jax.tree.map(jnp.zeros_like, PARAMS)
    for number in range(rounds):
        step, state = tx.update(
            grads(number), state, PARAMS, key=jax.random.key(number)
        )
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
    sketched = run(fetch_sgd(sketch.fixed_key(op, KEY), D, forget))
    chex.assert_trees_all_close(sketched, plain, rtol=tolerance, atol=tolerance)


def test_state_has_the_size_of_a_message_and_steps_change_k_coordinates():
    op = sketch.fixed_key(sketch.count_sketch(10, rows=3), KEY)
    tx = fetch_sgd(op, 4)
    state = tx.init(PARAMS)
    shapes = [leaf.shape for leaf in jax.tree.leaves(state)]
    assert shapes == [(3, 10), (3, 10)]
    step, _ = tx.update(grads(0), state, PARAMS, key=KEY)
    assert np.count_nonzero(flat(step)) == 4


@pytest.mark.parametrize("forget", ["subtract", "zero"])
def test_what_is_not_applied_stays_in_the_error(forget):
    op = sketch.fixed_key(sketch.count_sketch(10, rows=3), KEY)
    tx = transforms.top_k_desketch(op, 4, forget)
    message = op.apply(KEY, grads(0))
    step, state = tx.update(message, tx.init(PARAMS), PARAMS)
    applied = op.apply(KEY, step)
    if forget == "subtract":
        np.testing.assert_allclose(state.error, message - applied, atol=1e-5)
    else:
        touched = np.asarray(applied) != 0
        assert 0 < touched.sum() < touched.size
        np.testing.assert_array_equal(np.asarray(state.error)[touched], 0)
        np.testing.assert_array_equal(
            np.asarray(state.error)[~touched], np.asarray(message)[~touched]
        )


def test_leaf_by_leaf_messages_work_too():
    op = sketch.fixed_key(sketch.leaf_by_leaf(sketch.count_sketch(12)), KEY)
    total = run(fetch_sgd(op, 3))
    assert np.isfinite(flat(total)).all()
    assert np.count_nonzero(flat(total)) >= 3


def test_a_nan_is_applied_not_hidden():
    op = sketch.fixed_key(sketch.count_sketch(10, rows=3), KEY)
    tx = fetch_sgd(op, 4)
    bad = jax.tree.map(lambda g: g.at[0].set(jnp.nan), grads(0))
    step, _ = tx.update(bad, tx.init(PARAMS), PARAMS, key=KEY)
    assert np.isnan(flat(step)).any()


def test_operators_with_a_fresh_key_each_round_are_refused():
    op = sketch.count_sketch(10)
    with pytest.raises(ValueError, match="fixed_key"):
        transforms.in_sketch_space(optax.trace(0.9), op)
    with pytest.raises(ValueError, match="fixed_key"):
        transforms.top_k_desketch(op, 4)


@pytest.mark.parametrize("k", [0, 25, "all"])
def test_bad_counts_are_refused(k):
    op = sketch.fixed_key(sketch.count_sketch(10), KEY)
    with pytest.raises((ValueError, TypeError), match="k="):
        transforms.top_k_desketch(op, k).init(PARAMS)
    with pytest.raises(ValueError, match="forget='all'"):
        transforms.top_k_desketch(op, 4, forget="all")
