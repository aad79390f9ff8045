"""Partitions keep their promises for any input, and refuse what has no answer."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_sketch.data import partition
from fl_sketch.data.holdout import held_out
from tests.refusals import refused

pytestmark = pytest.mark.fast

LABELS = np.random.default_rng(1).integers(0, 10, 6000)
POPULATIONS = st.tuples(
    st.integers(1, 60), st.integers(0, 200), st.integers(1, 12), st.integers(0, 99)
)


def by_law(labels, clients, seed):
    options = {"exponent": 1.2, "seed": seed}
    sizes = partition.power_law_sizes(len(labels), clients, **options)
    return partition.iid(len(labels), clients, sizes=sizes, seed=seed)


# name -> make(labels, clients, seed): every rule that deals all examples.
RULES = {
    "iid": lambda y, n, s: partition.iid(len(y), n, seed=s),
    "power law": by_law,
    "shards": lambda y, n, s: partition.label_shards(y, n, 1, seed=s),
    "mixtures 1e-6": lambda y, n, s: partition.mixtures(y, n, alpha=1e-6, seed=s),
    "mixtures 0.1": lambda y, n, s: partition.mixtures(y, n, alpha=0.1, seed=s),
    "mixtures 1e9": lambda y, n, s: partition.mixtures(y, n, alpha=1e9, seed=s),
    "dirichlet 1e-300": lambda y, n, s: partition.dirichlet(y, n, 1e-300, seed=s),
    "dirichlet 0.5": lambda y, n, s: partition.dirichlet(y, n, alpha=0.5, seed=s),
    "dirichlet 1e300": lambda y, n, s: partition.dirichlet(y, n, 1e300, seed=s),
}


def check(shares, examples, clients):
    assert shares.indices.dtype == np.int32 and shares.starts.dtype == np.int64
    assert shares.clients == clients and len(shares.starts) == clients + 1
    assert shares.starts[0] == 0 and shares.starts[-1] == len(shares.indices)
    assert shares.sizes.min() >= 1
    assert np.array_equal(np.sort(shares.indices), np.arange(examples))


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=40, deadline=None)
@given(POPULATIONS)
def test_every_example_has_one_owner_and_every_client_an_example(rule, population):
    clients, spare, classes, seed = population
    examples = clients + spare
    labels = np.random.default_rng(seed).integers(0, classes, examples)
    check(RULES[rule](labels, clients, seed), examples, clients)


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    clients, alpha, classes = 5, 0.7, 4000
    labels = np.repeat(np.arange(classes), 100)
    shares = partition.dirichlet(labels, clients, alpha, seed=0)
    own = [np.bincount(labels[shares.of(k)], minlength=classes) for k in range(clients)]
    parts = np.array(own) / 100
    mean, variance = 1 / clients, (clients - 1) / clients**2 / (clients * alpha + 1)
    assert abs(parts.mean(axis=1) - mean).max() < 5 * np.sqrt(variance / classes)
    np.testing.assert_allclose(parts.var(axis=1), variance, rtol=0.15)


def test_a_capped_client_gets_no_class_once_it_has_its_share():
    """A client is above its share by less than the last class that it got."""
    labels, clients, full = np.repeat(np.arange(10), 100), 8, 125
    for seed in range(20):
        shares = partition.capped_dirichlet(labels, clients, 0.2, seed=seed)
        check(shares, 1000, clients)
        assert shares.sizes.min() >= partition.FEWEST
        for client in range(clients):
            held = np.bincount(labels[shares.of(client)], minlength=10)
            before = np.cumsum(held) - held
            assert not held[before >= full].any()
    plain = [partition.dirichlet(labels, clients, 0.2, seed=seed) for seed in range(20)]
    assert min(one.sizes.min() for one in plain) < partition.FEWEST  # else no test
    same = partition.capped_dirichlet(labels, clients, 0.2, seed=19)
    assert np.array_equal(same.indices, shares.indices)


def test_classes_of_a_mixture_have_the_variance_of_the_distribution():
    # The first tenth of the clients, before any class is used up.
    labels, clients, alpha = np.repeat(np.arange(4), 25_000), 1000, 0.7
    shares = partition.mixtures(labels, clients, alpha, seed=0)
    own = [np.bincount(labels[shares.of(k)], minlength=4) / 100 for k in range(100)]
    between = 3 / 16 / (4 * alpha + 1)  # of shares
    within = (3 / 16 - between) / 100  # of a hundred draws
    np.testing.assert_allclose(np.var(own, axis=0), between + within, rtol=0.35)


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_shards_are_few_labels_each(shards):
    labels = np.repeat(np.arange(10), 600)
    shares = partition.label_shards(labels, 100, shards, seed=0)
    check(shares, 6000, 100)
    assert set(shares.sizes) == {60}
    assert max(len(np.unique(labels[shares.of(k)])) for k in range(100)) <= shards


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
@pytest.mark.parametrize("clients", [10, 37, 200])
def test_clients_hold_exactly_their_number_of_classes(classes, clients):
    shares = partition.classes_per_client(LABELS, clients, classes, seed=0)
    check(shares, 6000, clients)
    held = [set(LABELS[shares.of(k)]) for k in range(clients)]
    assert {len(own) for own in held} == {classes}
    times = np.bincount([label for own in held for label in own], minlength=10)
    assert np.ptp(times) <= classes


def test_power_law_sizes_follow_the_law():
    sizes = partition.power_law_sizes(100_000, 100, exponent=1.0, seed=0)
    ranked = np.sort(sizes)[::-1]
    np.testing.assert_allclose(ranked[0] / ranked[:20], np.arange(1, 21), rtol=0.01)
    assert np.ptp(partition.power_law_sizes(1000, 100, exponent=0, seed=0)) == 0
    steep = partition.power_law_sizes(1000, 100, exponent=500.0, seed=0)
    assert np.sort(steep)[-2:].tolist() == [1, 901]


def test_one_seed_is_one_partition_on_every_platform():
    """Of a digest that was written down once."""
    digest = hashlib.sha256()
    made = [rule(LABELS, 30, 3) for rule in RULES.values()]
    for array in (*sum(made, ()), *partition.classes_per_client(LABELS, 30, 2, seed=3)):
        digest.update(array.tobytes())
    assert digest.hexdigest()[:16] == "bcc41b4d9e21e5ae"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.4, 0.99])
def test_clients_hold_back_and_train_on_at_least_one_example(share):
    shares = partition.Partition(np.arange(10) + 5, np.array([0, 0, 1, 3, 10]))
    train, held = held_out(shares, share, seed=0)
    assert (train.sizes + held.sizes).tolist() == [0, 1, 2, 7]
    counts = {0.0: [0, 0, 0, 0], 0.01: [0, 0, 1, 1], 0.4: [0, 0, 1, 2]}
    assert held.sizes.tolist() == counts.get(share, [0, 0, 1, 6])
    for client in range(4):
        parts = *train.of(client), *held.of(client)
        assert sorted(parts) == shares.of(client).tolist()


BAD = {
    "clients=6": lambda p: p.iid(5, 6, seed=0),
    "[3 3]": lambda p: p.iid(5, 2, sizes=[3, 3], seed=0),
    "1000 clients x 7": lambda p: p.label_shards(LABELS, 1000, 7, seed=0),
    "float64": lambda p: p.label_shards([0.5], 1, 1, seed=0),
    "classes=11": lambda p: p.classes_per_client(LABELS, 5, 11, seed=0),
    "1 examples for 3": lambda p: p.classes_per_client([4, 4, 7], 3, 2, seed=0),
    "alpha=0": lambda p: p.dirichlet(LABELS, 9, alpha=0, seed=0),
    "after 1000 draws": lambda p: p.capped_dirichlet(LABELS, 50, 1e-9, seed=0),
    "needed=40": lambda p: p.capped_dirichlet([1, 2, 3, 4], 4, alpha=1, seed=0),
    "exponent=-1": lambda p: p.power_law_sizes(5, 2, exponent=-1, seed=0),
}


@pytest.mark.parametrize("words", BAD)
def test_what_cannot_be_split_gets_one_line(words):
    with refused(words):
        BAD[words](partition)
