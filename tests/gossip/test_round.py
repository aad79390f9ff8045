"""Nodes that play by themselves have what a server would have."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest

from fl_sketch import gossip, talks
from fl_sketch.engine.exchange import as_heard
from fl_sketch.gossip import graph as graphs
from fl_sketch.protocols import Coded, Told
from tests.meshes import mesh_of
from tests.quadratics import CATALOGUE, PARAMS, fetch, optima
from tests.simulation import KEY, compiled, simulate

NODES, ROUNDS = 6, 6
GRAPHS = {
    "ring": graphs.ring(6),
    "grid": graphs.grid(2, 3),
    "random_regular": graphs.random_regular(6, 3, seed=0),
    "edge list": graphs.from_edges([(0, 5), (5, 2), (2, 1), (1, 3), (3, 4)]),
}


@functools.cache
def played(name, graph, relay="flood", devices=1):
    """Returns the nodes of an algorithm after some rounds, and the last report."""
    algorithm, mesh = CATALOGUE[name], mesh_of(devices, "clients")
    one_round = compiled(
        gossip.make_gossip_round(algorithm, fetch, GRAPHS[graph], mesh, relay=relay)
    )
    state, report = gossip.initial_nodes(algorithm, PARAMS, NODES), None
    for _ in range(ROUNDS):
        state, report = one_round(state, KEY, optima(NODES))
    return jax.device_get((state, report))


def as_sent(algorithm):
    """The same algorithm, with messages that are numbers before they are added up.

    A server's program adds up what sketches are of, and makes one sketch of the sum; it
    may also round a sum together with what a message is made of. A network cannot.
    """
    inner = algorithm.uplink.talk

    def talk(update, memory, keys, round):
        own, answer = inner(update, memory, keys, round), None
        try:
            while True:
                said = own.send(answer)
                if not isinstance(said, Told):
                    sent = as_heard(talks.message(said), jnp.int32(round.number))
                    coded = isinstance(said, Coded)
                    said = said._replace(value=sent) if coded else sent
                answer = yield said
        except StopIteration as end:
            return end.value

    return algorithm._replace(uplink=algorithm.uplink._replace(talk=talk))


@functools.cache
def served(name):
    state, _ = simulate(as_sent(CATALOGUE[name]), rounds=ROUNDS, clients=NODES)
    return jax.device_get(state)


def of_node(state, node):
    return jax.tree.map(lambda leaf: leaf[node], state.server)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_flood_gives_every_node_what_a_server_has_to_the_last_bit(name):
    graph = list(GRAPHS)[len(name) % len(GRAPHS)]
    nodes, _ = played(name, graph)
    for node in range(NODES):
        chex.assert_trees_all_equal(of_node(nodes, node), served(name).server)
    chex.assert_trees_all_equal(nodes.clients, served(name).clients)
