"""A linear map of a client's update may be made once, of the sum of all updates."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import channels, engine, local, sketch
from fl_sketch.privacy import bounding, mechanism
from fl_sketch.protocols import Algorithm, Link
from tests.meshes import mesh_of
from tests.quadratics import PARAMS, SGD, fetch, flat, loss, optima

CLIENTS = 12
COUNT = sketch.count_sketch(12, rows=3)
CHANNELS = {
    "sketched": channels.sketched,
    "heavy values": functools.partial(channels.heavy_values, k=4),
    "heaprix": functools.partial(channels.heaprix, k=4),
    "fresh heaprix": functools.partial(channels.heaprix, k=4, values="fresh"),
}
CLIP = mechanism.central(
    bounding.clip(1.0), noise_multiplier=0.0, denominator=float(CLIENTS)
)


def after(channel, devices=2, guard=None):
    """Returns the model after a round with everyone."""
    algorithm = Algorithm(
        local.sgd_steps(loss, SGD), channel, optax.sgd(1.0), mechanism=guard
    )
    one_round = engine.make_round(algorithm, fetch, mesh_of(devices, "clients"))
    everyone = engine.everyone(CLIENTS)(jax.random.key(0))
    state = engine.initial_state(algorithm, PARAMS, CLIENTS)
    data = optima(CLIENTS)
    state, _ = jax.jit(one_round)(state, jax.random.key(1), everyone, data)
    return flat(state.server.params)


def one_by_one(channel):
    """Returns a channel whose clients make their messages themselves."""

    def mean(update, memory, keys, link):
        return channel.mean(update, memory, keys, link._replace(of_linear=None))

    return channel._replace(mean=mean)


@pytest.mark.parametrize("name", CHANNELS)
def test_the_map_of_the_sum_is_the_sum_of_the_messages(name):
    channel = CHANNELS[name](COUNT)
    np.testing.assert_allclose(after(channel), after(one_by_one(channel)), rtol=1e-5)


@pytest.mark.parametrize(("guard", "each"), [(None, False), (CLIP, True)])
def test_it_is_made_once_on_a_device_unless_messages_are_bounded(guard, each):
    made = []

    def apply(key, x):
        jax.debug.callback(lambda _: made.append(1), flat(x)[0])
        return COUNT.apply(key, x)

    counted = COUNT._replace(apply=apply)
    after(channels.sketched(counted), devices=1, guard=guard)
    jax.effects_barrier()
    assert (len(made) >= CLIENTS) == each and made


def test_a_link_that_knows_nothing_of_it_gets_the_message():
    sent = []
    link = Link(lambda message: sent.append(message) or message)
    assert link.mean_of(lambda x: 2 * x, jnp.float32(3)) == 6 and sent == [6]
