"""A run on a CPU whose loss has slow convolutions says so once."""

import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest

from fl_sketch import algorithms, models
from fl_sketch.engine import costs

BATCHES = (
    jax.ShapeDtypeStruct((2, 3, 8, 8, 1), jnp.float32),
    jax.ShapeDtypeStruct((2, 3), jnp.int32),
)


def traced(*convolutions):
    """Measures the traffic of a model with these convolutions."""
    layers = [nn.Conv(2, (3, 3), conv_general_dilated=conv) for conv in convolutions]
    net = nn.Sequential([*layers, lambda x: x.reshape(len(x), -1), nn.Dense(3)])

    def loss(params, batch):
        logits = net.apply(params, batch[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

    params = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
    costs.measure_traffic(algorithms.fedavg(loss, client_rate=0.1), params, BATCHES)


def test_the_hint_appears_once_and_for_plain_convolutions_alone():
    costs._hint_at_conv.cache_clear()
    traced(models.conv, models.conv_pool)  # where a warning is an error
    with pytest.warns(UserWarning, match="models.conv"):
        traced(models.conv, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        costs._hint_at_conv.cache_clear()
        traced(None)
        traced(None)
    assert len(caught) == 1
