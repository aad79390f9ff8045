"""Error memories are kept around contractions, and refused around what grows."""

import jax.numpy as jnp
import pytest

from fl_sketch import channels, sketch
from fl_sketch.sketch import compressors
from tests.refusals import refused

pytestmark = pytest.mark.fast
D = 24
UNBIASED = {
    "sketched": channels.sketched(sketch.count_sketch(4)),
    "read by one row": channels.sketched(sketch.count_sketch(4), read="estimate"),
    "clipped": channels.clipped(channels.sketched(sketch.srht(4)), 1.0),
    "random_k": channels.compressed(compressors.random_k(4)),
    "qsgd": channels.compressed(compressors.qsgd(2)),
    "sign": channels.compressed(compressors.sign()),
}
CONTRACTIONS = [
    channels.sketched(sketch.identity()),
    channels.sketched(sketch.count_sketch(4, 3), read="estimate"),
    channels.compressed(compressors.random_k(4, unbiased=False)),
]


@pytest.mark.parametrize("name", UNBIASED)
def test_errors_that_would_grow_are_not_fed_back(name):
    with refused("error feedback", "contraction", "top_k", "without end"):
        channels.error_feedback(UNBIASED[name]).init(jnp.ones(D))


@pytest.mark.parametrize("channel", CONTRACTIONS, ids=range(len(CONTRACTIONS)))
def test_other_errors_are_fed_back(channel):
    assert not channels.error_feedback(channel).init(jnp.ones(D)).client[0].any()
