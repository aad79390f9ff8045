"""Song's Algorithm 1: the mean messages are enough to have the model."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, channels, engine, sketch
from fl_sketch.core.keys import round_keys, sketch_keys
from fl_sketch.core.protocols import Channel, Memory
from tests.oracles.rounds import local_sgd, matrix
from tests.quadratics import ALGORITHMS, PARAMS, RATE, D, flat, loss, optima
from tests.simulation import KEY, compiled, simulate

CLIENTS, ROUNDS = 6, 6


def remembering(channel, op):
    """The same channel, all mean messages left in the server's memory."""

    def init(params):
        message = jax.eval_shape(op.apply, KEY, params)
        table = jax.tree.map(lambda m: jnp.zeros((ROUNDS, *m.shape), m.dtype), message)
        return Memory((), table)

    def talk(update, memory, keys, round):
        inner = channel.talk(update, Memory(), keys, round)
        heard = yield next(inner)
        table = jax.tree.map(
            lambda t, m: t.at[round.number].set(m), memory.server, heard
        )
        try:
            inner.send(heard)
        except StopIteration as end:
            return end.value[0], Memory((), table)

    return Channel(talk, init)


def star(algorithm, rounds, devices=1):
    return simulate(algorithm, rounds=rounds, clients=CLIENTS, devices=devices)[0]


def run_and_listen(op, rate, devices):
    """Returns (last parameters, the mean messages of all rounds)."""
    algorithm = algorithms.iterative_sketching(
        loss, sketch=op, client_rate=RATE, server_rate=rate
    )
    listening = algorithm._replace(uplink=remembering(algorithm.uplink, op))
    state = star(listening, ROUNDS, devices)
    return algorithm, state.server.params, state.server.memory


def replayed(algorithm, means):
    """Returns the server that a client makes of the means."""
    start, _ = engine.initial_server(algorithm, PARAMS)
    replay = compiled(functools.partial(algorithms.replay, algorithm))
    return replay(start, sketch_keys(KEY, ROUNDS), means)


@pytest.mark.parametrize(
    ("op", "rate", "devices"),
    [
        (sketch.srht(8), 0.7, 4),
        (sketch.gaussian(8), optax.cosine_decay_schedule(1.0, ROUNDS, alpha=0.1), 1),
    ],
    ids=["devices", "schedule"],
)
def test_the_stream_of_means_alone_gives_the_model_to_the_bit(op, rate, devices):
    algorithm, params, means = run_and_listen(op, rate, devices)
    chex.assert_trees_all_equal(replayed(algorithm, means).params, params)
    assert np.isfinite(flat(params)).all() and np.abs(flat(params)).max() > 0


def test_the_engine_follows_the_papers_lines():
    rounds, op, rate = 6, sketch.ams(8), 0.5
    targets, w = np.asarray(optima(CLIENTS), np.float64), np.zeros(D)
    for t in range(rounds):
        shared = round_keys(KEY, t, 0).shared
        r = matrix(op, shared)
        changes = [-local_sgd(w, o) for o in targets]  # line 15
        heard = rate * np.mean([r @ c for c in changes], axis=0)  # lines 16, 19
        w = w + r.T @ heard  # line 9
    state = star(ALGORITHMS["iterative_sketching"], rounds)
    np.testing.assert_allclose(flat(state.server.params), w, rtol=1e-5, atol=1e-5)


def test_channels_that_do_not_clip_are_left_alone():
    channel = channels.exact()
    assert channels.clipped(channel, 0.0) is channel
