"""Nodes that play by themselves have what a server would have."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.channels import player
from fl_sketch.core.protocols import Linear
from fl_sketch.core.wire import byte_count
from fl_sketch.engine import gossip, relays
from fl_sketch.engine import graph as graphs
from fl_sketch.privacy import clipping, mechanism
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
QUICK = ("fedavg", "safl", "heaprix", "scaffold", "marina")  # the others are slow
SHORT = {  # messages that are not as long as their sums
    "quantised", "ef21", "marina", "onebit_adam", "cocktail_sgd", "cd_adam",
    "sign_sgd", "ef_sign_sgd",
}  # fmt: skip


def round_of(name, graph, devices=1, **options):
    mesh = mesh_of(devices, "clients")
    make = gossip.make_gossip_round
    return make(CATALOGUE[name], fetch, GRAPHS[graph], mesh, **options)


@functools.cache
def played(name, graph, devices=1, **options):
    """Returns the nodes of an algorithm after some rounds, and all reports."""
    one_round = compiled(round_of(name, graph, devices, **options))
    state, reports = gossip.initial_nodes(CATALOGUE[name], PARAMS, NODES), []
    for _ in range(ROUNDS):
        state, report = jax.device_get(one_round(state, KEY, optima(NODES)))
        reports.append(report)
    return state, reports


def message_by_message(algorithm):
    """The same algorithm, whose server adds up messages, as a network must.

    By default it adds up what sketches are of, and makes one sketch of the sum.
    """
    inner = algorithm.uplink.talk

    def talk(*arguments):
        own, answer = inner(*arguments), None
        try:
            while True:
                said = own.send(answer)
                answer = (
                    yield player.message(said) if isinstance(said, Linear) else said
                )
        except StopIteration as end:
            return end.value

    return algorithm._replace(uplink=algorithm.uplink._replace(talk=talk))


@functools.cache
def served(name):
    algorithm = message_by_message(CATALOGUE[name])
    return jax.device_get(simulate(algorithm, rounds=ROUNDS, clients=NODES))


def of_node(state, node):
    return jax.tree.map(lambda leaf: leaf[node], state.server)


def marked(names):
    slow = pytest.mark.slow
    return [n if n in QUICK else pytest.param(n, marks=slow) for n in names]


def graph_for(name):
    """Returns the name of a graph: all of them come up."""
    return list(GRAPHS)[list(CATALOGUE).index(name) % len(GRAPHS)]


@pytest.mark.parametrize("name", marked(CATALOGUE))
def test_a_flood_gives_every_node_what_a_server_has_to_the_last_bit(name):
    nodes, reports = played(name, graph_for(name))
    server, others = served(name)
    for node in range(NODES):  # without ever sending a model
        chex.assert_trees_all_equal(of_node(nodes, node), server.server)
    chex.assert_trees_all_equal(nodes.clients, server.clients)
    for number, report in enumerate(reports):
        for key, value in report.simulator_only.diagnostics.items():
            theirs = others.simulator_only.diagnostics[key][number]
            np.testing.assert_allclose(value, theirs, rtol=1e-6)


@pytest.mark.parametrize("name", marked(n for n in CATALOGUE if n not in SHORT))
def test_a_tree_gives_all_nodes_the_same_within_rounding(name):
    nodes, _ = played(name, graph_for(name), relay="tree")
    for node in range(NODES):
        chex.assert_trees_all_equal(of_node(nodes, node), of_node(nodes, 0))
    server = served(name)[0]
    close = functools.partial(chex.assert_trees_all_close, rtol=2e-5, atol=2e-5)
    close(of_node(nodes, 0), server.server)
    close(nodes.clients, server.clients)


@pytest.mark.parametrize("name", sorted(SHORT))
def test_a_tree_refuses_messages_that_are_shorter_than_their_sums(name):
    state = gossip.initial_nodes(CATALOGUE[name], PARAMS, NODES)
    with pytest.raises(ValueError, match="relay=tree, got messages of 16 numbers"):
        jax.eval_shape(round_of(name, "ring", relay="tree"), state, KEY, optima(NODES))


@pytest.mark.parametrize("devices", [2, 4])  # the last of which has nodes left over
def test_devices_share_the_nodes_and_change_no_bit(devices):
    alone = played("heaprix", "grid", relay="tree")
    shared = played("heaprix", "grid", devices, relay="tree")
    chex.assert_trees_all_equal(shared, alone)


def test_nodes_that_work_at_the_same_time_stay_alike():
    alone, _ = played("safl", "ring")
    together, _ = played("safl", "ring", chunk=4)  # and two are left
    for node in range(NODES):
        chex.assert_trees_all_equal(of_node(together, node), of_node(together, 0))
    chex.assert_trees_all_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "relay", "message", "exchanges"),
    [
        ("safl", "flood", 4 * 8, 1),
        ("safl", "tree", 4 * 8, 1),
        ("heaprix", "flood", 4 * (12 * 3 + 4), 2),
        ("heaprix", "tree", 4 * (12 * 3 + 4), 2),
        ("sign_sgd", "flood", 2, 1),
    ],
)
def test_a_report_has_the_bytes_that_every_node_sent(name, relay, message, exchanges):
    way = gossip.RELAYS[relay](GRAPHS[graph_for(name)])
    _, reports = played(name, graph_for(name), relay=relay)
    each = message + exchanges * (4 if relay == "flood" else 0)
    for report in reports:
        seen = report.simulator_only
        np.testing.assert_array_equal(byte_count(seen.bytes_up), way.sent * each)
        np.testing.assert_array_equal(seen.clients, np.arange(NODES))
        assert seen.answered.all() and byte_count(seen.bytes_told) == 0


def test_bytes_that_depend_on_the_round_are_those_of_the_round():
    way = relays.flood(GRAPHS[graph_for("onebit_adam")])
    _, reports = played("onebit_adam", graph_for("onebit_adam"))
    sent = [byte_count(one.simulator_only.bytes_up) for one in reports]
    np.testing.assert_array_equal(sent[3], way.sent * (16 * 4 + 4))  # of the warm-up
    np.testing.assert_array_equal(sent[4], way.sent * (16 // 8 + 4 + 4))


def test_a_sum_is_of_floats_of_32_bits():
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    nodes = gossip.initial_nodes(CATALOGUE["full_gradient"], params, NODES)
    one_round = round_of("full_gradient", "ring", relay="tree")
    after, _ = jax.eval_shape(one_round, nodes, KEY, optima(NODES))
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after.server.params)
    assert shapes == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), nodes.server.params
    )


def test_a_mechanism_is_refused_where_every_node_sees_every_message():
    guard = mechanism.central(
        clipping.clip(1.0), noise_multiplier=1.0, denominator=NODES
    )
    private = CATALOGUE["iterative_sketching"]._replace(mechanism=guard)
    with pytest.raises(ValueError, match="without a mechanism on a graph"):
        gossip.make_gossip_round(private, fetch, GRAPHS["ring"])
    with pytest.raises(ValueError, match="without a mechanism on a graph"):
        gossip.initial_nodes(private, PARAMS, NODES)
    with pytest.raises(ValueError, match="relay to be one of 'flood', 'tree'"):
        round_of("fedavg", "ring", relay="tre")
