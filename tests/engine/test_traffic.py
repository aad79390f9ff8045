"""What all say to each other is known before a run, and they need nothing else."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, engine, talks
from fl_sketch.algorithms import catalog
from fl_sketch.engine import exchange, traffic
from fl_sketch.keys import round_keys, sketch_keys
from fl_sketch.protocols import Channel, Coded, Delivery, Memory, Round
from fl_sketch.sketch import count_sketch
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
from tests.simulation import KEY, simulate

CLIENTS = 6
KEYS = round_keys(jax.random.key(3), 0, 0)
BATCHES = jnp.zeros((STEPS, SIZE))


@pytest.mark.parametrize(
    ("name", "sent", "bits", "told", "stateful", "heard"),
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
    name, sent, bits, told, stateful, heard
):
    found = traffic.measure_traffic(ALGORITHMS[name], PARAMS, BATCHES)
    assert found[:5] == (sent, bits, told, stateful, heard)


def test_bits_that_depend_on_a_coin_are_not_known_beforehand():
    def talk(update, memory, keys, round):
        coin = jax.random.bernoulli(keys.shared)
        average = yield Coded(update, jnp.where(coin, 512, 64))
        return Delivery(average, round.counted(update)), memory

    algorithm = ALGORITHMS["fedavg"]._replace(uplink=Channel(talk))
    assert traffic.measure_traffic(algorithm, PARAMS, BATCHES).bits_up is None


BAD = {"f": jnp.nan, "i": 77, "u": 77, "b": True}


def spoilt(tree, kept):
    """Returns a tree with rubbish in all leaves but those that are kept."""
    return jax.tree.map(
        lambda leaf, keep: leaf if keep else jnp.full_like(leaf, BAD[leaf.dtype.kind]),
        tree,
        kept,
    )


def part(algorithm, server, client, means, told):
    """Returns what a client says and remembers that heard this."""
    batches = jnp.broadcast_to(optima(CLIENTS)[0], (STEPS, SIZE))
    work = algorithm.local.run(server, client.local, batches, KEYS)
    memory = Memory(client.memory, server.memory)
    arguments = (work.update, memory, KEYS, Round(server.round))

    def turn(known):
        answers = iter(told)
        return talks.play(
            algorithm.uplink, arguments, known, told=lambda _: next(answers)
        )

    said = [talks.message(turn(means[:n]).sent) for n in range(len(means))]
    end = turn(means)
    return said, algorithm.local.finish(work.state, end.delivery), end.memory.client


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_client_needs_nothing_that_it_is_not_sent(name):
    """Its messages and its memory are the same whatever stands in all else."""
    algorithm = CATALOGUE[name]
    state = simulate(algorithm, rounds=3)[0]
    client = jax.tree.map(lambda leaf: leaf[0], state.clients)
    found = traffic.measure_traffic(algorithm, PARAMS, BATCHES)
    batches = jnp.broadcast_to(optima(CLIENTS)[0], (STEPS, SIZE))
    work = algorithm.local.run(state.server, client.local, batches, KEYS)
    memory = Memory(client.memory, state.server.memory)
    arguments, told = (work.update, memory, KEYS, Round(state.server.round)), []
    means = talks.messages(algorithm.uplink, arguments)
    talks.play(
        algorithm.uplink,
        arguments,
        means,
        told=lambda t: told.append(t.value) or told[-1],
    )
    # The parameters are fetched, and the number of the round is known.
    fetched = found.read._replace(params=jax.tree.map(lambda _: True, PARAMS))
    lost = spoilt(state.server, fetched._replace(round=True))
    heard = (
        means if found.heard else spoilt(means, jax.tree.map(lambda _: False, means))
    )
    ours = part(algorithm, state.server, client, means, told)
    theirs = part(algorithm, lost, client, heard, told)
    # What a later message is made of is in `told`, or among the means.
    for one, other in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        np.testing.assert_array_equal(one, other)


EVERYONE = engine.everyone(CLIENTS)


def heard_in(algorithm, rounds, monkeypatch, sampler=EVERYONE):
    """Returns the servers before all rounds, and what was sent down in each."""
    sent, structures = {}, {}

    def noted(tree, number, exchange=0):
        def note(number, *leaves):
            sent.setdefault(int(number), {})[exchange] = leaves

        structures[exchange] = jax.tree.structure(tree)
        jax.debug.callback(note, number, *jax.tree.leaves(tree))
        return tree

    if algorithm.downlink:
        algorithm = algorithm._replace(downlink=spied(algorithm.downlink, noted))
    else:
        plain, calls = exchange._as_heard, itertools.count()
        monkeypatch.setattr(
            exchange,
            "_as_heard",
            lambda mean, number: noted(plain(mean, number), number, next(calls)),
        )
    servers = [engine.initial_state(algorithm, PARAMS, CLIENTS)]
    one_round = jax.jit(engine.make_round(algorithm, fetch, mesh_of(1, "clients")))
    cohort = sampler(KEY)
    for _ in range(rounds):
        servers.append(one_round(servers[-1], KEY, cohort, optima(CLIENTS))[0])
    jax.effects_barrier()
    heard = [
        tuple(jax.tree.unflatten(structures[k], sent[n][k]) for k in sorted(sent[n]))
        for n in range(rounds)
    ]
    return [state.server for state in servers], heard


def spied(downlink, noted):
    """Returns a downlink of which is noted what it sends."""

    def update(updates, state, params=None, **extra):
        number, inner = state
        out, inner = downlink.transform.update(updates, inner, params, **extra)
        return noted(out, number), (number + 1, inner)

    def init(params):
        return jnp.int32(0), downlink.transform.init(params)

    return downlink._replace(
        transform=optax.GradientTransformationExtraArgs(init, update)
    )


SERVERS = {
    f"safl_{name}": algorithms.safl(
        loss,
        sketch=count_sketch(6),
        client_rate=0.1,
        server=catalog.build_optimizer(name, 0.05, b1=0.9, b2=0.99, eps=1e-8),
    )
    for name in catalog.OPTIMIZERS
}


@pytest.mark.parametrize("name", [*CATALOGUE, *SERVERS])
def test_who_follows_has_the_servers_model_to_the_bit(name, monkeypatch):
    """From what was sent in each round, also by a newcomer in the middle of a run."""
    algorithm, rounds = (CATALOGUE | SERVERS)[name], 6
    servers, heard = heard_in(algorithm, rounds, monkeypatch)
    update = (PARAMS, PARAMS) if name == "marina" else None
    replay = jax.jit(functools.partial(algorithms.replay, algorithm, update=update))
    for begin in (0, 2):
        sent = jax.tree.map(lambda *leaves: jnp.stack(leaves), *heard[begin:])
        keys = sketch_keys(KEY, rounds)[begin:]
        newcomer = servers[begin]._replace(down=())
        found = replay(newcomer, keys, sent if len(sent) > 1 else sent[0])
        chex.assert_trees_all_equal(found.params, servers[-1].params)
        chex.assert_trees_all_equal(found.opt, servers[-1].opt)


@pytest.mark.parametrize("name", ["ef21", "cd_adam", "scaffold"])
def test_who_follows_a_part_of_the_clients_knows_how_many_there_are(name, monkeypatch):
    half = engine.fixed_size(CLIENTS, CLIENTS // 2)
    servers, heard = heard_in(CATALOGUE[name], 4, monkeypatch, half)
    known = Round(
        denominator=half.size * 1.0, present=half.size * 1.0, population=CLIENTS * 1.0
    )
    replay = jax.jit(functools.partial(algorithms.replay, CATALOGUE[name], known=known))
    (sent,) = jax.tree.map(lambda *leaves: jnp.stack(leaves), *heard)
    found = replay(servers[0]._replace(down=()), sketch_keys(KEY, 4), sent)
    chex.assert_trees_all_equal(found.params, servers[-1].params)
