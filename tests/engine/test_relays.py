"""Relays bring the sum to all nodes, and cost what counting their messages costs."""

import numpy as np
import pytest

from fl_sketch.engine import graph as graphs
from fl_sketch.engine import relays
from fl_sketch.engine.relays import RELAYS
from tests.engine.test_graph import GRAPHS, every_graph, neighbours


def counted(graph, sent):
    """Returns how often (from, to) is in a list, there and back over each edge."""
    edge = {tuple(pair): number for number, pair in enumerate(graph.edges.tolist())}
    crossed = np.zeros((len(graph.edges), 2), int)
    for node, other, *_ in sent:
        crossed[edge[min(node, other), max(node, other)], int(node > other)] += 1
    return crossed


def flood_by_hand(graph):
    """Returns (hops until all know all, who sent to whom the message of which node)."""
    near = [np.flatnonzero(row) for row in neighbours(graph)]
    known = [{node} for node in range(graph.nodes)]
    fresh = [{node: set()} for node in range(graph.nodes)]  # message: who sent it here
    hops, sent = 0, []
    while any(len(own) < graph.nodes for own in known):
        hops += 1
        heard = [{} for _ in range(graph.nodes)]
        for node, messages in enumerate(fresh):
            for message, senders in messages.items():
                for other in set(near[node].tolist()) - senders:
                    sent.append((node, other, message))
                    heard[other].setdefault(message, set()).add(node)
        fresh = [
            {m: s for m, s in own.items() if m not in known[node]}
            for node, own in enumerate(heard)
        ]
        for own, new in zip(known, fresh, strict=True):
            own.update(new)
    return hops, sent


def tree_by_hand(graph, edges):
    """Returns the messages of sums from the leaves of a tree on, and of one back.

    A node that has heard from all its neighbours on the tree but one sends that one the
    sum. Whoever has heard from all of them has the whole, which goes back.
    """
    near = {node: set() for node in range(graph.nodes)}
    for a, b in edges:
        near[a].add(b)
        near[b].add(a)
    inward, heard = [], {node: set() for node in near}
    while len(inward) < graph.nodes - 1:
        done = {node for node, _ in inward}
        for node in sorted(set(near) - done):
            left = near[node] - heard[node]
            if len(left) == 1 and len(inward) < graph.nodes - 1:
                (other,) = left
                inward.append((node, other))
                heard[other].add(node)
    return inward + [(other, node) for node, other in reversed(inward)]


@every_graph
def test_a_flood_takes_the_diameter_and_crosses_as_counted(name):
    graph = GRAPHS[name][0]
    hops, sent = flood_by_hand(graph)
    relay = relays.flood(graph)
    assert relay.hops == graphs.distances(graph).max() == hops
    np.testing.assert_array_equal(relay.crossings, counted(graph, sent))
    by_node = np.bincount([node for node, *_ in sent], minlength=graph.nodes)
    np.testing.assert_array_equal(relay.sent, by_node)
    np.testing.assert_array_equal(relay.over_edges(40), relay.crossings * 44)
    np.testing.assert_array_equal(relay.over_edges(40, 2), relay.crossings * 48)


@every_graph
def test_a_tree_spans_with_one_message_each_way_over_each_of_its_edges(name):
    graph = GRAPHS[name][0]
    relay = relays.tree(graph)
    assert relay.crossings.sum() == 2 * (graph.nodes - 1)
    assert set(map(tuple, relay.crossings.tolist())) <= {(1, 1), (0, 0)}
    edges = graph.edges[relay.crossings[:, 0] == 1]
    own = graphs.from_edges(edges)  # which would refuse one in parts
    assert own.nodes == graph.nodes and len(own.edges) == graph.nodes - 1
    sent = tree_by_hand(graph, edges.tolist())
    np.testing.assert_array_equal(relay.crossings, counted(graph, sent))
    by_node = np.bincount([node for node, *_ in sent], minlength=graph.nodes)
    np.testing.assert_array_equal(relay.sent, by_node)
    np.testing.assert_array_equal(relay.over_edges(40, 2), relay.crossings * 40)
    # There and back from a node that is nowhere far from any other.
    assert relay.hops == 2 * graphs.distances(graph).max(axis=1).min()


@pytest.mark.parametrize("relay", RELAYS)
@every_graph
def test_edges_share_all_bytes_as_they_share_the_messages(name, relay):
    way = RELAYS[relay](GRAPHS[name][0])
    rounds = [way.over_edges(40), way.over_edges(1000, 2), way.over_edges(7)]
    total = sum(int(one.sum()) for one in rounds)
    np.testing.assert_array_equal(way.shared_out(total), sum(rounds))


@pytest.mark.parametrize(
    ("bits", "got"), [(31, "in 31 bits"), (None, "in a varying number of bits")]
)
def test_a_tree_wants_messages_that_are_as_long_as_their_sums(bits, got):
    graph = graphs.ring(4)
    relays.flood(graph).require_sums(bits, 1)
    relays.tree(graph).require_sums(32, 1)
    with pytest.raises(ValueError, match=f"relay=tree, got .*{got}: use") as caught:
        relays.tree(graph).require_sums(bits, 1)
    assert "\n" not in str(caught.value)
