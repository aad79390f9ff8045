"""The bits of a chain's message are those that its parts say."""

import jax
import jax.numpy as jnp
import optax
import pytest

from fl_sketch import sketch, transforms
from fl_sketch.sketch import compressors
from tests.refusals import refused

pytestmark = pytest.mark.fast
PARAMS = {"w": jnp.zeros((10, 7)), "b": jnp.zeros(30)}  # a hundred numbers
AVERAGE = transforms.aggregate("devices")
COUNT, LEAVES = sketch.count_sketch(5, 3), sketch.leaf_by_leaf(sketch.srht(20))
TOP, SIGN = compressors.top_k(4), compressors.scaled_sign()


def sketched(op, *rest):
    return optax.chain(transforms.sketch(op), AVERAGE, transforms.desketch(op), *rest)


def compressed(*first, then=AVERAGE):
    return optax.chain(*first, then, optax.adam(0.1))


FEEDBACK = transforms.error_feedback(transforms.compress(TOP))
CASES = {
    "sketch": (sketched(COUNT, optax.adam(0.1)), 32 * 15),
    "leaves": (sketched(LEAVES), 32 * LEAVES.size(PARAMS)),
    "no sketch": (optax.chain(AVERAGE, optax.sgd(0.1)), 32 * 100),
    "top_k": (compressed(transforms.compress(TOP)), TOP.bits(100)),
    "feedback": (compressed(FEEDBACK), TOP.bits(100)),
    "changes": (compressed(transforms.changes(SIGN)), SIGN.bits(100)),
    "changed": (compressed(FEEDBACK, optax.scale(0.1)), 32 * 100),
}


@pytest.mark.parametrize("name", CASES)
def test_a_message_has_the_bits_of_what_made_it(name):
    tx, bits = CASES[name]
    assert transforms.message_bits(tx, PARAMS) == bits
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), PARAMS)
    assert transforms.message_bits(tx, shapes) == bits


def test_a_chain_that_sends_nothing_has_no_message():
    with refused("aggregate"):
        transforms.message_bits(optax.adam(0.1), PARAMS)


def test_a_message_longer_than_the_model_is_warned_of():
    with pytest.warns(UserWarning, match="101 numbers is longer .* has 100"):
        transforms.sketch(sketch.count_sketch(101)).init(PARAMS)
    transforms.sketch(sketch.identity()).init(PARAMS)
