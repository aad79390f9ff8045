"""Groups are symmetric, and as large as the three rare events need."""

import math
import random

import numpy as np
import pytest

from fl_sketch import network
from fl_sketch.network import neighbours
from tests.refusals import refused


@pytest.mark.fast
@pytest.mark.parametrize("count, few", [(2, 1), (5, 4), (6, 2), (11, 4), (40, 20)])
def test_neighbours_are_mutual_and_as_many_as_asked(count, few):
    clients = random.Random(count).sample(range(2**32), count)
    groups = neighbours.groups(clients, few, random.Random(0).shuffle)
    assert set(groups) == set(clients)
    for client, group in groups.items():
        assert len(group) == few + 1
        assert client in group
        assert list(group) == sorted(set(group))
        assert all(client in groups[other] for other in group)


@pytest.mark.fast
def test_the_ring_is_drawn_and_fewer_clients_than_neighbours_are_one_group():
    rings = [neighbours.groups(range(20), 4, random.Random(i).shuffle) for i in (0, 1)]
    assert rings[0] != rings[1]
    assert {*neighbours.groups([3, 1, 2], 8, random.shuffle).values()} == {(1, 2, 3)}


def tail(count, marked, drawn, at_least):
    """Returns the chance that a draw without replacement has so many marked."""
    ways = sum(
        math.comb(marked, i) * math.comb(count - marked, drawn - i)
        for i in range(at_least, min(marked, drawn) + 1)
    )
    return ways / math.comb(count, drawn)


@pytest.mark.parametrize(
    "clients, colluding, dropping",
    [(101, 0.1, 0.1), (150, 0.2, 0.2), (1000, 0.2, 0.2), (1000, 0.4, 0.0)],
)
def test_events_that_break_a_round_are_as_rare_as_promised(
    clients, colluding, dropping
):
    few, threshold = neighbours.usual(clients, colluding, dropping)
    bad, gone = math.floor(colluding * clients), math.floor(dropping * clients)
    assert few < clients - 1 and few % 2 == 0 and 2 * threshold > few + 1
    told = tail(clients - 1, bad, few, threshold)
    assert clients * told <= 2.0**-40
    lost = tail(clients - 1, gone, few, few - threshold + 1)
    assert clients * lost <= 2.0**-30
    cut = math.comb(bad + gone, few) / math.comb(clients, few)
    assert clients**2 / 2 * cut <= 2.0**-40
    assert neighbours._threshold(clients, few - 2, colluding, dropping) is None


def test_a_ring_is_cut_as_rarely_as_the_bound_says():
    """With small numbers, for which a simulation sees the event."""
    clients, few, removed, tries = 12, 4, 7, 20000
    rng, cuts = random.Random(0), 0
    ring = neighbours.groups(range(clients), few, lambda ring: None)
    for _ in range(tries):
        left = set(rng.sample(range(clients), clients - removed))
        seen, new = set(), {min(left)}
        while new:
            seen |= new
            new = {other for one in new for other in ring[one]} & left - seen
        cuts += seen != left
    bound = clients**2 / 2 * math.comb(removed, few) / math.comb(clients, few)
    assert 0 < cuts / tries <= bound


@pytest.mark.fast
@pytest.mark.parametrize(
    "clients, colluding, dropping, usual",
    [
        (2, 0.2, 0.2, (1, 2)),
        (3, 0.2, 0.2, (2, 3)),
        (100, 0.2, 0.2, (99, 67)),
        (100, 0.7, 0.2, (99, 71)),  # above the colluders
        (100, 0.2, 0.45, (99, 55)),  # at most those who stay
        (110, 0.6, 0.39, (109, 68)),  # for which no ring is enough
    ],
)
def test_small_cohorts_mask_with_all(clients, colluding, dropping, usual):
    assert neighbours.usual(clients, colluding, dropping) == usual


@pytest.mark.fast
def test_fractions_that_no_threshold_serves_are_refused():
    with refused("61 of 100", "50"):
        neighbours.usual(100, 0.6, 0.5)
    with refused("dropping", 1.0):
        neighbours.usual(100, 0.6, 1.0)
    with refused("clients", 1):
        network.terms_of(round=0, clients=1, length=1, bits=8)


@pytest.mark.fast
@pytest.mark.parametrize(
    "changed, parts",
    [
        ({"round": -1}, ("round", -1)),
        ({"round": 1.5}, ("round", 1.5)),
        ({"clients": 1}, ("clients", 1)),
        ({"length": 0}, ("length", 0)),
        ({"bits": 33}, ("bits", 33)),
        ({"bits": True}, ("bits", True)),
        ({"neighbours": 10}, ("neighbours", 10)),
        ({"neighbours": 5}, ("neighbours", 9, 5)),
        ({"threshold": 5}, ("threshold", 6, 5)),
        ({"threshold": 11}, ("threshold", 10, 11)),
    ],
)
def test_impossible_terms_are_refused(changed, parts):
    good = dict(round=0, clients=10, length=3, bits=8, neighbours=9, threshold=7)
    network.Terms(**good)
    with refused(*parts):
        network.Terms(**{**good, **changed})


@pytest.mark.fast
def test_terms_of_numpy_integers_are_the_same():
    plain = network.terms_of(round=1, clients=5, length=3, bits=8)
    other = network.Terms(*map(np.int64, (1, 5, 3, 8, 4, 4)))
    assert other.fingerprint == plain.fingerprint
