"""Song's Algorithm 1: nobody needs the model."""

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
from tests import operators
from tests.oracles.rounds import local_sgd, matrix
from tests.quadratics import (
    ALGORITHMS,
    PARAMS,
    RATE,
    D,
    flat,
    loss,
    optima,
)
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


@functools.cache
def star_of(name, rounds):
    return star(ALGORITHMS[name], rounds)


def run_and_listen(op, rate, devices=1):
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


def replay_is_the_model(op, rate, devices=1):
    algorithm, params, means = run_and_listen(op, rate, devices)
    chex.assert_trees_all_equal(replayed(algorithm, means).params, params)
    assert np.isfinite(flat(params)).all() and np.abs(flat(params)).max() > 0


# One of each code: other rows, blocks and entries of a dense matrix change the numbers
# that it works on. A Gaussian one and Hadamard's are in the two tests that follow.
@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("ams", 0.3),
        ("count_sketch_polynomial", 0.3),
        ("count_sketch_independent", 0.3),
        ("sparse_embedding_one", 0.3),
        ("uniform_sampling", 0.3),
        ("identity", 1.0),
    ],
)
def test_the_stream_of_means_alone_gives_the_model_to_the_bit(name, rate):
    replay_is_the_model(operators.build(name, 8, D), rate)


def test_the_replay_hears_means_of_several_devices():
    replay_is_the_model(sketch.srht(8), 0.7, devices=4)


def test_the_identity_is_fedavg():
    """To 1e-6 over 20 rounds."""
    with_sketch = algorithms.iterative_sketching(
        loss, sketch=sketch.identity(), client_rate=RATE, server_rate=0.8
    )
    without = algorithms.fedavg(loss, client_rate=RATE, server_rate=0.8)
    ours, theirs = (star(a, rounds=20) for a in (with_sketch, without))
    chex.assert_trees_all_close(
        ours.server.params, theirs.server.params, rtol=1e-6, atol=1e-6
    )


def test_the_engine_follows_the_papers_lines():
    rounds, op, rate = 6, sketch.ams(8), 0.5
    targets, w = np.asarray(optima(CLIENTS), np.float64), np.zeros(D)
    for t in range(rounds):
        shared = round_keys(KEY, t, 0).shared
        r = matrix(op, shared)
        changes = [-local_sgd(w, o) for o in targets]  # line 15
        heard = rate * np.mean([r @ c for c in changes], axis=0)  # lines 16, 19
        w = w + r.T @ heard  # line 9
    state = star_of("iterative_sketching", rounds)
    np.testing.assert_allclose(flat(state.server.params), w, rtol=1e-5, atol=1e-5)


def test_the_server_rate_may_be_a_schedule():
    falling = optax.cosine_decay_schedule(1.0, ROUNDS, alpha=0.1)
    replay_is_the_model(sketch.gaussian(8), falling)


def test_channels_that_do_not_clip_are_left_alone():
    channel = channels.exact()
    assert channels.clipped(channel, 0.0) is channel
