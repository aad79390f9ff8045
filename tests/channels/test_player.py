"""What channels may yield, how they are played, and what no network can hold."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import channels, engine, sketch
from fl_sketch.channels import player
from fl_sketch.core.protocols import (
    Algorithm,
    Channel,
    Coded,
    Delivery,
    Linear,
    Memory,
)
from fl_sketch.engine import costs
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.transforms import local
from tests.channels.rounds import quickly
from tests.meshes import mesh_of
from tests.quadratics import PARAMS, SGD, fetch, flat, loss, optima

CLIENTS = 12
COUNT = sketch.count_sketch(12, rows=3)
CLIP = mechanism.central(
    clipping.clip(1.0), noise_multiplier=0.0, denominator=float(CLIENTS)
)


def in_a_program(function, *arguments):
    return quickly(function)(*arguments)


def round_of(algorithm, devices=1, play=in_a_program):
    """Returns the state after a round with everyone, and its report."""
    one_round = engine.make_round(algorithm, fetch, mesh_of(devices, "clients"))
    everyone = engine.everyone(CLIENTS)(jax.random.key(0))
    state = engine.initial_state(algorithm, PARAMS, CLIENTS)
    return play(one_round, state, jax.random.key(1), everyone, optima(CLIENTS))


def after(channel, devices=1, guard=None):
    """Returns the model after a round with everyone."""
    algorithm = Algorithm(
        local.sgd_steps(loss, SGD), channel, optax.sgd(1.0), mechanism=guard
    )
    return flat(round_of(algorithm, devices)[0].server.params)


def one_by_one(channel):
    """Returns a channel whose clients make their messages themselves."""

    def talk(*arguments):
        inner = channel.talk(*arguments)
        try:
            sent = next(inner)
            while True:
                sent = player.message(sent) if isinstance(sent, Linear) else sent
                sent = inner.send((yield sent))
        except StopIteration as end:
            return end.value

    return channel._replace(talk=talk)


def test_the_map_of_the_sum_is_the_sum_of_the_messages():
    channel = channels.heavy_values(COUNT, 4)
    np.testing.assert_allclose(after(channel), after(one_by_one(channel)), rtol=1e-5)


@pytest.mark.parametrize(("guard", "each"), [(None, False), (CLIP, True)])
def test_it_is_made_once_on_a_device_unless_messages_are_bounded(guard, each):
    made = []

    def apply(key, x):
        jax.debug.callback(lambda _: made.append(1), flat(x)[0])
        return COUNT.apply(key, x)

    counted = COUNT._replace(apply=apply)
    after(channels.sketched(counted), guard=guard)
    jax.effects_barrier()
    assert (len(made) >= CLIENTS) == each and made


def in_a_loop(update, memory, *_):
    def body(total, _):
        total = yield total
        return total, None

    average, _ = jax.lax.scan(body, update, None, length=3)
    yield average
    return Delivery(average, update), memory


def without_messages(update, memory, *_):
    return Delivery(update, update), memory


def of_many_exchanges():
    times = itertools.count(1)

    def of_many_exchanges(update, memory, *_):
        for _ in range(2 if next(times) < 4 else 1):
            update = yield update
        return Delivery(update, update), memory

    return of_many_exchanges


def in_some_rounds(update, memory, _, round):
    if round.number % 2 == 0:
        update = yield update
    return Delivery(update, update), memory


def a_leak(update, memory, *_):
    yield update
    return Delivery(update, update), memory


def without_from(update, memory, *rest):
    inner = channels.exact().talk(update, memory, *rest)
    yield update
    return Delivery(jax.tree.map(lambda leaf: leaf + inner, update), update), memory


def only_an_estimate(update, *_):
    average = yield update
    return average


def of_a_traced_length(update, memory, keys, _):
    average = yield Coded(update, jnp.where(jax.random.bernoulli(keys.shared), 9, 8))
    return Delivery(average, update), memory


@pytest.mark.parametrize(
    ("talk", "error"),
    [
        (in_some_rounds, TypeError),
        (a_leak, ValueError),
        (without_from, TypeError),
        (only_an_estimate, TypeError),
        (in_a_loop, TypeError),
        (without_messages, TypeError),
        (of_many_exchanges(), ValueError),
    ],
)
def test_what_no_network_can_hold_is_refused_by_name(talk, error):
    algorithm = Algorithm(local.one_gradient(loss), Channel(talk), optax.sgd(1.0))
    with pytest.raises(error, match=talk.__name__):
        round_of(algorithm, play=jax.eval_shape)


def test_a_length_that_is_traced_is_one_of_several():
    algorithm = Algorithm(
        local.one_gradient(loss), Channel(of_a_traced_length), optax.sgd(1.0)
    )
    with pytest.raises(TypeError, match="Chosen"):
        round_of(algorithm, play=jax.eval_shape)


def test_a_memory_that_nobody_keeps_is_refused_by_name():
    def forgetful(update, *_):
        average = yield update
        return Delivery(average, update), Memory(client=average)

    algorithm = Algorithm(local.one_gradient(loss), Channel(forgetful), optax.sgd(1.0))
    batches = jax.eval_shape(lambda: jax.tree.map(lambda t: t[:1], optima(CLIENTS)))
    with pytest.raises(ValueError, match="forgetful.*Memory"):
        costs.measure_traffic(algorithm, PARAMS, batches)
