"""How channels are played, and what no network can hold."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import channels, engine, sketch
from fl_sketch.core.protocols import Algorithm, Channel, Coded, Delivery, Memory
from fl_sketch.engine import costs
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.transforms import local
from tests.channels.rounds import quickly
from tests.meshes import mesh_of
from tests.quadratics import PARAMS, fetch, flat, loss, optima

CLIENTS = 12
COUNT = sketch.count_sketch(12, rows=3)
CLIP = mechanism.central(
    clipping.clip(1.0), noise_multiplier=0.0, denominator=float(CLIENTS)
)


def of(channel, guard=None):
    return Algorithm(local.one_gradient(loss), channel, optax.sgd(1.0), guard)


def play(algorithm, by=lambda function, *given: quickly(function)(*given)):
    """Plays a round with everyone."""
    one_round = engine.make_round(algorithm, fetch, mesh_of(1, "clients"))
    everyone = engine.everyone(CLIENTS)(jax.random.key(0))
    state = engine.initial_state(algorithm, PARAMS, CLIENTS)
    by(one_round, state, jax.random.key(1), everyone, optima(CLIENTS))


@pytest.mark.parametrize(("guard", "each"), [(None, False), (CLIP, True)])
def test_a_sketch_is_made_once_on_a_device_unless_messages_are_bounded(guard, each):
    made = []

    def apply(key, x):
        jax.debug.callback(lambda _: made.append(1), flat(x)[0])
        return COUNT.apply(key, x)

    play(of(channels.sketched(COUNT._replace(apply=apply)), guard))
    jax.effects_barrier()
    assert (len(made) >= CLIENTS) == each and made


def without_messages(update, memory, *_):
    return Delivery(update, update), memory


def of_many_exchanges():
    times = itertools.count(1)

    def of_many_exchanges(update, memory, *_):
        for _ in range(2 if next(times) < 4 else 1):
            update = yield update
        return Delivery(update, update), memory

    return of_many_exchanges


def a_leak(update, memory, *_):
    yield update
    return Delivery(update, update), memory


def only_an_estimate(update, *_):
    average = yield update
    return average


def of_a_traced_length(update, memory, keys, _):
    bits = jnp.where(jax.random.bernoulli(keys.shared), 9, 8)
    average = yield Coded(update, bits)
    return Delivery(average, update), memory


@pytest.mark.parametrize(
    ("protocol", "error", "words"),
    [
        (a_leak, ValueError, "a_leak"),
        (only_an_estimate, TypeError, "only_an_estimate"),
        (without_messages, TypeError, "without_messages"),
        (of_many_exchanges(), ValueError, "of_many_exchanges"),
        (of_a_traced_length, TypeError, "Chosen"),
    ],
)
def test_what_no_network_can_hold_is_refused(protocol, error, words):
    with pytest.raises(error, match=words):
        play(of(Channel(protocol)), jax.eval_shape)


def test_a_memory_that_nobody_keeps_is_refused_by_name():
    def forgetful(update, *_):
        average = yield update
        return Delivery(average, update), Memory(client=average)

    batches = jax.ShapeDtypeStruct((1, *np.shape(optima(CLIENTS))[1:]), "float32")
    with pytest.raises(ValueError, match="forgetful.*Memory"):
        costs.measure_traffic(of(Channel(forgetful)), PARAMS, batches)
