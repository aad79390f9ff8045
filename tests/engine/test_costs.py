"""What all say to each other is known before a run, and they need nothing else."""

import functools
from typing import Any, NamedTuple
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, engine
from fl_sketch.algorithms import catalog
from fl_sketch.channels import player
from fl_sketch.core.keys import round_keys, sketch_keys
from fl_sketch.core.protocols import Memory, Round
from fl_sketch.engine import costs as traffic
from fl_sketch.engine import exchange
from fl_sketch.engine import round as round_module
from tests.engine import replaying
from tests.meshes import mesh_of
from tests.quadratics import (
    ALGORITHMS,
    CATALOGUE,
    PARAMS,
    STEPS,
    fetch,
    loss,
    optima,
)
from tests.quadratics import D as SIZE
from tests.quick import some_fast
from tests.simulation import KEY, compiled

CLIENTS = 6
KEYS = round_keys(jax.random.key(3), 0, 0)
BATCHES = jnp.zeros((STEPS, SIZE))


@pytest.mark.parametrize(
    ("name", "sent", "bits", "told", "stateful", "received"),
    [
        ("fedavg", (16,), 32 * 16, 0, False, 0),
        ("safl", (8,), 32 * 8, 0, False, 0),
        ("heaprix", (36, 4), 32 * 40, 4 * 4, False, 0),
        ("sketched_sgd", (36, 4), 32 * 40, 4 * 4, True, 0),
        # The variates follow the mean within the round.
        ("gradient_tracking", (36,), 32 * 36, 0, True, 4 * 36),
        ("fetch_sgd", (36,), 32 * 36, 0, False, 0),
    ],
)
def test_the_traffic_of_an_algorithm_is_known_before_it_runs(
    name, sent, bits, told, stateful, received
):
    found = traffic.measure_traffic(ALGORITHMS[name], PARAMS, BATCHES)
    assert found[:5] == (sent, bits, told, stateful, received)


BAD = {"f": jnp.nan, "i": 77, "u": 77, "b": True}


def spoilt(tree, kept):
    """Returns a tree with rubbish in all leaves but those that are kept."""
    return jax.tree.map(
        lambda leaf, keep: leaf if keep else jnp.full_like(leaf, BAD[leaf.dtype.kind]),
        tree,
        kept,
    )


@functools.cache
def part(algorithm):
    """Returns programs of a client.

    Of the first come the means of what it says, were it alone, and what it is told; of
    the second what it says and remembers that received means and was told so.
    """

    def arguments(server, client):
        batches = jnp.broadcast_to(optima(CLIENTS)[0], (STEPS, SIZE))
        work = algorithm.local.run(server, client.local, batches, KEYS)
        memory = Memory(client.memory, server.memory)
        return work, (work.update, memory, KEYS, Round(server.round))

    @compiled
    def alone(server, client):
        _, given = arguments(server, client)
        means, told = player.messages(algorithm.uplink, given), []

        def note(said):
            told.append(said.value)
            return said.value

        player.play(algorithm.uplink, given, means, receive=note)
        return means, told

    @compiled
    def said(server, client, means, told):
        work, given = arguments(server, client)

        def turn(known):
            answers = iter(told)
            return player.play(
                algorithm.uplink, given, known, receive=lambda _: next(answers)
            )

        said = [player.message(turn(means[:n]).sent) for n in range(len(means))]
        end = turn(means)
        return said, algorithm.local.finish(work.state, end.delivery), end.memory.client

    return alone, said


@functools.cache
def engine_round(algorithm):
    """Returns the engine's round, whose diagnostics are all means, and its start."""
    if algorithm.downlink:
        algorithm = algorithm._replace(downlink=remembering(algorithm.downlink))

    def noting(*args, **options):
        received = exchange.exchange(*args, **options)
        return received._replace(diagnostics={"means": received.means})

    one_round = jax.jit(engine.make_round(algorithm, fetch, mesh_of(1, "clients")))
    state = jax.device_get(engine.initial_state(algorithm, PARAMS, CLIENTS))
    with mock.patch.object(round_module, "exchange", noting):  # while it is traced
        one_round(state, KEY, everyone(), optima(CLIENTS))
    return one_round, state


def everyone():
    return engine.everyone(CLIENTS)(KEY)


@functools.cache
def heard_in(algorithm, rounds, present=None):
    """Returns the states before all rounds, and what was sent down in each."""
    one_round, begin = engine_round(algorithm)
    cohort, states, received = everyone(), [begin], []
    if present:
        weights = jnp.asarray(present, jnp.float32)
        cohort = cohort._replace(weights=weights, denominator=jnp.sum(weights))
    for _ in range(rounds):
        state, report = one_round(states[-1], KEY, cohort, optima(CLIENTS))
        state, means = jax.device_get((state, report.simulator_only.diagnostics))
        states.append(state)
        received.append(means["means"])
    if algorithm.downlink:
        received = [(state.server.down.sent,) for state in states[1:]]
        states = [
            state._replace(server=state.server._replace(down=state.server.down.inner))
            for state in states
        ]
    return states, received


class Remembered(NamedTuple):
    """What a downlink sent last, and its own state."""

    sent: Any
    inner: Any


def remembering(downlink):
    """Returns a downlink that keeps what it sends."""

    def init(params):
        nothing = jax.tree.map(jnp.zeros_like, params)
        return Remembered(nothing, downlink.transform.init(params))

    def update(updates, state, params=None, **extra):
        out, inner = downlink.transform.update(updates, state.inner, params, **extra)
        return out, Remembered(out, inner)

    return downlink._replace(
        transform=optax.GradientTransformationExtraArgs(init, update)
    )


ROUNDS = 6
QUICK = ("fedavg", "safl", "heaprix", "ef21", "marina", "fetch_sgd")


@pytest.mark.parametrize("name", some_fast(CATALOGUE, QUICK))
def test_a_client_needs_nothing_that_it_is_not_sent(name):
    """Its messages and its memory are the same whatever stands in all else."""
    algorithm = CATALOGUE[name]
    state = heard_in(algorithm, ROUNDS)[0][3]
    client = jax.tree.map(lambda leaf: leaf[0], state.clients)
    found = traffic.measure_traffic(algorithm, PARAMS, BATCHES)
    alone, said = part(algorithm)
    means, told = jax.device_get(alone(state.server, client))
    # The parameters are fetched, and the number of the round is known.
    fetched = found.read._replace(params=jax.tree.map(lambda _: True, PARAMS))
    lost = spoilt(state.server, fetched._replace(round=True))
    received = (
        means if found.received else spoilt(means, jax.tree.map(lambda _: False, means))
    )
    ours = said(state.server, client, means, told)
    theirs = said(lost, client, received, told)
    # What a later message is made of is in `told`, or among the means.
    for one, other in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        np.testing.assert_array_equal(one, other)


SERVERS = {
    f"server_{name}": algorithms.fedopt(
        loss,
        client_rate=0.1,
        server=catalog.build_optimizer(name, 0.05, b1=0.9, b2=0.99, eps=1e-8),
    )
    for name in ("amsgrad", "yogi")
}


def follow(replay, states, received, begin, end):
    """Raises if who received these rounds has not the server's model to the bit."""
    sent = jax.tree.map(lambda *leaves: np.stack(leaves), *received[begin:end])
    keys = sketch_keys(KEY, end)[begin:]
    newcomer = states[begin].server._replace(down=())
    found = replay(newcomer, keys, sent if len(sent) > 1 else sent[0])
    chex.assert_trees_all_equal(found.params, states[end].server.params)
    chex.assert_trees_all_equal(found.opt, states[end].server.opt)


@pytest.mark.parametrize("name", some_fast([*CATALOGUE, *SERVERS], QUICK))
def test_who_follows_has_the_servers_model_to_the_bit(name):
    """From what was sent in each round, also by a newcomer in the middle of a run."""
    algorithm = (CATALOGUE | SERVERS)[name]
    update = (PARAMS, PARAMS) if name == "marina" else None
    replay = jax.jit(functools.partial(replaying.replay, algorithm, update=update))
    for begin in (0, 2):  # of as many rounds, which are one program
        follow(replay, *heard_in(algorithm, ROUNDS), begin, begin + 4)


@pytest.mark.parametrize("name", some_fast(["ef21", "scaffold"], ["ef21"]))
def test_who_follows_a_part_of_the_clients_knows_how_many_there_are(name):
    known = Round(denominator=3.0, present=3.0, population=CLIENTS * 1.0)
    replay = jax.jit(functools.partial(replaying.replay, CATALOGUE[name], known=known))
    part_of_them = heard_in(CATALOGUE[name], 4, present=(1, 0, 0, 1, 0, 1))
    follow(replay, *part_of_them, 0, 4)
