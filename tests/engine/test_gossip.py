"""Nodes that flood their messages have what one server has with everyone in the cohort.

Every node keeps a server of its own, adds up what it heard, and takes the step. The
engine plays a graph as an ordinary round, and counts bytes by a relay's prices.
"""

import functools

import chex
import jax
import numpy as np
import pytest

from fl_sketch.channels import player
from fl_sketch.core.keys import for_batches, round_keys
from fl_sketch.core.protocols import Memory, Round
from fl_sketch.engine import graph as graphs
from fl_sketch.engine import initial_server, ledger, relays
from fl_sketch.engine.clients import Client
from fl_sketch.engine.exchange import as_heard
from fl_sketch.engine.prices import Prices
from tests.engine.test_relays import flood_by_hand
from tests.quadratics import CATALOGUE, PARAMS, fetch, optima
from tests.simulation import KEY, cohort_of, compiled, with_cohort

NODES, ROUNDS = 6, 4
GRAPHS = {
    "ring": graphs.ring(6),
    "grid": graphs.grid(2, 3),
    "edge list": graphs.from_edges([(0, 5), (5, 2), (2, 1), (1, 3), (3, 4)]),
}
# Of sketches a server adds up what they are made of, which rounds in another way.
LINEAR = ("safl", "heaprix")
ALGORITHMS = ("fedavg", "marina", "scaffold", "ef21", "sketched_down", *LINEAR)
EXCHANGES = {"heaprix": 2}


def over_nodes(function):
    """Returns the program that maps one of a node over the rows of all nodes.

    What all nodes know comes first, as an argument: a compiler rounds otherwise what it
    knows, and what is in no loop.
    """

    @compiled
    def program(known, *rows):
        return jax.lax.map(lambda row: function(known, *row), rows)

    return lambda *rows: jax.device_get(program(KNOWN, *rows))


KNOWN = np.asarray(optima(NODES)), np.float32(NODES)
NUMBERS = np.arange(NODES, dtype=np.int32)


@functools.cache
def parts_of(name):
    """Returns what a node does: its work, its messages, and what it then has."""
    algorithm = CATALOGUE[name]

    def work(known, node, server, client):
        keys = round_keys(KEY, server.round, node)
        batches = fetch(known[0], node, None, for_batches(keys))
        return algorithm.local.run(server, client.local, batches, keys)

    def turn(known, node, server, client, work, means):
        count = known[1]
        about = Round(server.round, denominator=count, present=count, population=count)
        memory, keys = (
            Memory(client.memory, server.memory),
            round_keys(KEY, server.round, node),
        )
        return keys, player.play(
            algorithm.uplink, (work.update, memory, keys, about), means
        )

    def message(*arguments):
        return player.message(turn(*arguments)[1].sent)

    def after(known, node, server, client, work, means):
        keys, end = turn(known, node, server, client, work, means)
        server = server._replace(memory=end.memory.server)
        server = player.serve(algorithm, server, end.delivery.estimate, keys)
        local = algorithm.local.finish(work.state, end.delivery)
        return server, Client(local, end.memory.client)

    def mean(known, total, server):
        return as_heard(jax.tree.map(lambda leaf: leaf / known[1], total), server.round)

    return [over_nodes(part) for part in (work, message, mean, after)]


def flooded(graph, messages):
    """Returns the sum that every node makes, in the order of the nodes' numbers."""
    heard = [{node: message} for node, message in enumerate(messages)]
    for node, other, message in flood_by_hand(graph)[1]:
        heard[other][message] = heard[node][message]  # which it must have by then
    return [
        functools.reduce(added, [own[node] for node in range(NODES)]) for own in heard
    ]


def over_a_tree(graph, messages):
    """Returns the sum of all at every node, made on the way to the root of a tree."""
    sums = list(messages)
    for node, parent in reversed(graphs.links(graph, 0).tolist()):
        sums[parent] = added(sums[parent], sums[node])
    return [sums[0]] * NODES


def added(one, other):
    return jax.tree.map(np.add, one, other)


def stacked(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def of_node(rows, node):
    return jax.tree.map(lambda leaf: leaf[node], rows)


@functools.cache
def played(name, graph, adds=flooded):
    """Returns servers and clients of all nodes after some rounds."""
    work, message, mean, after = parts_of(name)
    start = jax.device_get(initial_server(CATALOGUE[name], PARAMS))
    rows = stacked([start] * NODES)
    for _ in range(ROUNDS):
        works, means = work(NUMBERS, *rows), ()
        for _ in range(EXCHANGES.get(name, 1)):
            sent = message(NUMBERS, *rows, works, means)
            sums = adds(GRAPHS[graph], [of_node(sent, node) for node in NUMBERS])
            means += (mean(stacked(sums), rows[0]),)
        rows = after(NUMBERS, *rows, works, means)
    return rows


@functools.cache
def served(name):
    everyone = cohort_of(NUMBERS)
    return with_cohort(CATALOGUE[name], everyone, rounds=ROUNDS, clients=NODES)


def compared(name, servers, clients, check):
    state, _ = served(name)
    for node in NUMBERS:
        chex.assert_trees_all_equal(of_node(servers, node), of_node(servers, 0))
    check(of_node(servers, 0), state.server)
    check(clients, state.clients)


close = functools.partial(chex.assert_trees_all_close, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_flood_gives_every_node_what_a_server_has(name):
    graph = list(GRAPHS)[ALGORITHMS.index(name) % len(GRAPHS)]
    check = close if name in LINEAR else chex.assert_trees_all_equal
    compared(name, *played(name, graph), check)


@pytest.mark.parametrize("name", ["fedavg", "safl"])
def test_sums_over_a_tree_differ_in_last_bits_only(name):
    compared(name, *played(name, "grid", over_a_tree), close)


@pytest.mark.parametrize(
    ("name", "message"), [("safl", 4 * 8), ("heaprix", 4 * (12 * 3 + 4))]
)
def test_a_ledger_has_the_bytes_that_nodes_send(name, message):
    """Of a flood with the number of its node, of a tree the sums alone."""
    graph, exchanges = GRAPHS["edge list"], EXCHANGES.get(name, 1)
    _, reports = served(name)
    flood = [node for node, *_ in flood_by_hand(graph)[1]]
    tree = [node for link in graphs.links(graph, 0).tolist() for node in link]
    for relay, senders, more in ((relays.flood, flood, 4), (relays.tree, tree, 0)):
        book = ledger.empty(NODES)
        prices = Prices(0, relay=relay(graph), exchanges=exchanges)
        for number in range(ROUNDS):
            report = of_node(reports, number).simulator_only
            ledger.record(book, prices, number, report)
        each = message + exchanges * more
        sent = ROUNDS * each * np.bincount(senders, minlength=NODES)
        np.testing.assert_array_equal(book.up, sent)
        assert not book.down.any()  # no model is ever sent
        over_edges = prices.relay.over_edges(message, exchanges)
        assert over_edges.sum() * ROUNDS == book.up.sum()
