"""Messages over graphs, against floods that are played and sums counted by hand."""

import pytest

from fl_sketch.engine import gossip

GRAPHS = {"ring": 6, "grid:2x3": 6, "complete": 5, "ring ": 5, "grid:1x4": 4}


def played(edges, nodes):
    """Returns the messages over each edge and direction, and the hops of a flood."""
    neighbours = [
        [*edges[edges[:, 0] == n, 1], *edges[edges[:, 1] == n, 0]] for n in range(nodes)
    ]
    have = [{n} for n in range(nodes)]
    fresh = [{(n, None)} for n in range(nodes)]
    sent, hops = {}, 0
    while any(len(own) < nodes for own in have):
        arrived = [set() for _ in range(nodes)]
        for node in range(nodes):
            for origin in {origin for origin, _ in fresh[node]}:
                came_from = {source for one, source in fresh[node] if one == origin}
                for other in neighbours[node]:
                    if other not in came_from:
                        sent[node, other] = sent.get((node, other), 0) + 1
                        arrived[other].add((origin, node))
        for node in range(nodes):
            fresh[node] = {pair for pair in arrived[node] if pair[0] not in have[node]}
            have[node] |= {origin for origin, _ in fresh[node]}
        hops += 1
    return sent, hops


@pytest.mark.parametrize("name", GRAPHS)
def test_a_flood_is_counted_as_it_is_played(name):
    nodes = GRAPHS[name]
    edges = gossip.edges_of(name.strip(), nodes)
    sent, hops = played(edges, nodes)
    expected = gossip.Crossings(sum(sent.values()), max(sent.values()), hops)
    assert gossip.flood(edges, nodes) == expected


def test_sums_cross_every_edge_of_a_tree_twice():
    assert gossip.tree(gossip.edges_of("ring", 6), 6) == (10, 1, 6)
    assert gossip.tree(gossip.edges_of("complete", 5), 5) == (8, 1, 2)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [("rings", 6), ("grid:2x2", 6), ("parts", 4), ("words", 3)],
)
def test_what_is_no_graph_of_the_clients_is_refused(tmp_path, text, nodes):
    files = {"parts": "0 1\n2 3\n", "words": "a b\n"}
    for name, lines in files.items():
        (tmp_path / name).write_text(lines)
    path = str(tmp_path / text) if text in files else text
    with pytest.raises(ValueError, match="graph"):
        gossip.edges_of(path, nodes)
