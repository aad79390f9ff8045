"""Partitions keep their promises for any input, and refuse what has no answer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_sketch.data import partition, proportions

pytestmark = pytest.mark.fast

LABELS = np.random.default_rng(1).integers(0, 10, 6000)
POPULATIONS = st.tuples(
    st.integers(1, 60), st.integers(0, 200), st.integers(1, 12), st.integers(0, 99)
)

# name -> make(labels, clients, seed): every rule that deals all examples.
RULES = {
    "iid": lambda y, n, s: partition.iid(len(y), n, seed=s),
    "power law": lambda y, n, s: partition.iid(
        len(y),
        n,
        sizes=partition.power_law_sizes(len(y), n, exponent=1.2, seed=s),
        seed=s,
    ),
    "shards": lambda y, n, s: partition.label_shards(y, n, 1, seed=s),
    "mixtures 1e-6": lambda y, n, s: partition.mixtures(y, n, alpha=1e-6, seed=s),
    "mixtures 0.1": lambda y, n, s: partition.mixtures(y, n, alpha=0.1, seed=s),
    "mixtures 1e9": lambda y, n, s: partition.mixtures(y, n, alpha=1e9, seed=s),
    "dirichlet 1e-6": lambda y, n, s: partition.dirichlet(y, n, alpha=1e-6, seed=s),
    "dirichlet 0.5": lambda y, n, s: partition.dirichlet(y, n, alpha=0.5, seed=s),
    "dirichlet 1e9": lambda y, n, s: partition.dirichlet(y, n, alpha=1e9, seed=s),
}
every_rule = pytest.mark.parametrize("rule", RULES)


def check(dealt, examples, clients):
    assert dealt.indices.dtype == np.int32 and dealt.starts.dtype == np.int64
    assert dealt.clients == clients and len(dealt.starts) == clients + 1
    assert dealt.starts[0] == 0 and dealt.starts[-1] == len(dealt.indices)
    assert dealt.sizes.min() >= 1
    assert len(np.unique(dealt.indices)) == len(dealt.indices)
    assert dealt.indices.min() >= 0 and dealt.indices.max() < examples


@every_rule
@settings(max_examples=40, deadline=None)
@given(POPULATIONS)
def test_every_example_has_one_owner_and_every_client_an_example(rule, population):
    clients, spare, classes, seed = population
    examples = clients + spare
    labels = np.random.default_rng(seed).integers(0, classes, examples)
    dealt = RULES[rule](labels, clients, seed)
    check(dealt, examples, clients)
    assert len(dealt.indices) == examples


@every_rule
def test_the_seed_decides(rule):
    first, same, other = (RULES[rule](LABELS, 30, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.indices, same.indices)
    np.testing.assert_array_equal(first.starts, same.starts)
    assert np.any(first.indices != other.indices)


@pytest.mark.parametrize("alpha", [1e-300, 1e-20, 1e-6, 0.01, 1.0, 1e6, 1e300])
def test_dirichlet_takes_any_alpha_and_more_clients_than_examples_of_a_class(alpha):
    labels = np.repeat([0, 1, 2], [3, 497, 500])
    for clients in (1, 2, 600, 1000):
        check(partition.dirichlet(labels, clients, alpha=alpha, seed=0), 1000, clients)


def classes_held(dealt, labels):
    return np.mean([len(np.unique(labels[dealt.of(k)])) for k in range(dealt.clients)])


def test_alpha_goes_from_one_owner_a_class_to_even_shares():
    few, some, all_ = (
        partition.dirichlet(LABELS, 20, alpha=alpha, seed=0)
        for alpha in (1e-6, 0.3, 1e6)
    )
    # Ten classes belong to at most ten; the others were given one example each.
    assert np.sum(few.sizes == 1) >= 10 and few.sizes.max() > 500
    assert classes_held(few, LABELS) < classes_held(some, LABELS) < 10
    assert classes_held(all_, LABELS) == 10
    assert np.ptp(all_.sizes) <= 20


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    clients, alpha, draws = 5, 0.7, 4000
    random = np.random.default_rng(0)
    shares = [proportions._proportions(clients, alpha, random) for _ in range(draws)]
    shares = np.array(shares) / np.sum(shares, axis=1, keepdims=True)
    mean, variance = 1 / clients, (clients - 1) / clients**2 / (clients * alpha + 1)
    assert abs(shares.mean(axis=0) - mean).max() < 5 * np.sqrt(variance / draws)
    np.testing.assert_allclose(shares.var(axis=0), variance, rtol=0.15)


def test_mixtures_are_of_one_size_and_of_few_classes_for_small_alpha():
    labels = np.repeat(np.arange(10), 600)
    dealt = {a: partition.mixtures(labels, 100, a, seed=0) for a in (1e-6, 0.1, 1e6)}
    assert {size for one in dealt.values() for size in one.sizes} == {60}
    few, some, all_ = (classes_held(one, labels) for one in dealt.values())
    assert few < 1.5 < some < 6 < 9.5 < all_


def test_classes_of_a_mixture_have_the_variance_of_the_distribution():
    # The first tenth of the clients, before any class is used up.
    labels, clients, alpha = np.repeat(np.arange(4), 25_000), 1000, 0.7
    dealt = partition.mixtures(labels, clients, alpha, seed=0)
    own = [np.bincount(labels[dealt.of(k)], minlength=4) / 100 for k in range(100)]
    between = 3 / 16 / (4 * alpha + 1)  # of shares
    within = (3 / 16 - between) / 100  # of a hundred draws
    np.testing.assert_allclose(np.var(own, axis=0), between + within, rtol=0.35)


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_shards_are_few_labels_each(shards):
    labels = np.repeat(np.arange(10), 600)
    dealt = partition.label_shards(labels, 100, shards, seed=0)
    check(dealt, 6000, 100)
    assert set(dealt.sizes) == {60}
    assert max(len(np.unique(labels[dealt.of(k)])) for k in range(100)) <= shards


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
@pytest.mark.parametrize("clients", [10, 37, 200])
def test_clients_hold_exactly_their_number_of_classes(classes, clients):
    dealt = partition.classes_per_client(LABELS, clients, classes, seed=0)
    check(dealt, 6000, clients)
    held = [set(LABELS[dealt.of(k)]) for k in range(clients)]
    assert {len(own) for own in held} == {classes}
    times = np.bincount([label for own in held for label in own], minlength=10)
    assert np.ptp(times) <= classes
    assert len(dealt.indices) == 6000


def test_pairs_of_classes_vary():
    dealt = partition.classes_per_client(LABELS, 200, 2, seed=0)
    pairs = {tuple(np.unique(LABELS[dealt.of(k)])) for k in range(200)}
    assert len(pairs) > 35  # of 45


def test_classes_without_holder_belong_to_nobody():
    dealt = partition.classes_per_client(LABELS, 3, 2, seed=0)
    check(dealt, 6000, 3)
    assert len(np.unique(LABELS[dealt.indices])) == 6


def test_natural_ids_keep_their_examples_together_and_in_order():
    dealt = partition.natural(np.array([7, 3, 7, 3, 5]))
    assert [dealt.of(k).tolist() for k in range(3)] == [[1, 3], [4], [0, 2]]
    check(dealt, 5, 3)


def test_power_law_sizes_follow_the_law():
    sizes = partition.power_law_sizes(100_000, 100, exponent=1.0, seed=0)
    assert sizes.sum() == 100_000 and sizes.min() >= 1
    ranked = np.sort(sizes)[::-1]
    np.testing.assert_allclose(ranked[0] / ranked[:20], np.arange(1, 21), rtol=0.01)
    assert np.ptp(partition.power_law_sizes(1000, 100, exponent=0, seed=0)) == 0
    steep = partition.power_law_sizes(1000, 100, exponent=500.0, seed=0)
    assert np.sort(steep)[-2:].tolist() == [1, 901]


def test_a_million_clients_share_a_few_examples():
    sizes = partition.power_law_sizes(3_000_000, 1_000_000, exponent=0.5, seed=0)
    dealt = partition.resampled(60_000, sizes, seed=0)
    np.testing.assert_array_equal(dealt.sizes, sizes)
    assert dealt.clients == 1_000_000 and dealt.indices.max() == 59_999
    assert dealt.indices.nbytes + dealt.starts.nbytes < 21e6


def test_golden_values_are_those_of_every_platform():
    labels = np.arange(12) % 3
    dealt = partition.dirichlet(labels, 3, alpha=0.5, seed=0)
    assert dealt.indices.tolist() == [2, 7, 4, 5, 10, 11, 0, 1, 3, 6, 8, 9]
    assert dealt.starts.tolist() == [0, 2, 6, 12]
    assert partition.iid(6, 2, seed=0).indices.tolist() == [3, 2, 5, 4, 0, 1]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: partition.iid(5, 6, seed=0), ValueError, "clients <= 5.*clients=6"),
        (lambda: partition.iid(5, 0, seed=0), ValueError, "clients=0"),
        (lambda: partition.iid(5, 2.0, seed=0), TypeError, "clients=2.0"),
        (lambda: partition.iid(5, 2, seed=-1), ValueError, "seed=-1"),
        (lambda: partition.iid(5, 2, seed=0.5), ValueError, "seed=0.5"),
        (lambda: partition.iid(5, 2, sizes=[3, 3], seed=0), ValueError, "sum 6"),
        (lambda: partition.iid(5, 2, sizes=[3, 0], seed=0), ValueError, "least 0"),
        (lambda: partition.iid(5, 2, sizes=[3], seed=0), ValueError, "got 1, the"),
        (lambda: partition.resampled(5, [2, 0], seed=0), ValueError, "got 0"),
        (lambda: partition.resampled(5, [1.5], seed=0), ValueError, "float64"),
        (lambda: partition.label_shards(LABELS, 1000, 7, seed=0), ValueError, "= 7000"),
        (lambda: partition.label_shards(LABELS, 3, 0, seed=0), ValueError, "client=0"),
        (lambda: partition.label_shards(LABELS, 3, 1.5, seed=0), TypeError, "client=1"),
        (lambda: partition.label_shards([[1]], 1, 1, seed=0), ValueError, r"\(1, 1\)"),
        (lambda: partition.label_shards([], 1, 1, seed=0), ValueError, r"\(0,\)"),
        (lambda: partition.label_shards([0.5], 1, 1, seed=0), ValueError, "float64"),
        (
            lambda: partition.classes_per_client(LABELS, 5, 11, seed=0),
            ValueError,
            "<= 10.*classes=11",
        ),
        (
            lambda: partition.classes_per_client([4, 4, 7], 3, 2, seed=0),
            ValueError,
            "1 of class 7 for 3",
        ),
        (
            lambda: partition.dirichlet(LABELS, 9, alpha=0, seed=0),
            ValueError,
            "alpha=0",
        ),
        (lambda: partition.dirichlet(LABELS, 9, alpha=-1, seed=0), ValueError, "=-1"),
        (lambda: partition.mixtures(LABELS, 9, alpha=-1, seed=0), ValueError, "=-1"),
        (
            lambda: partition.dirichlet(LABELS, 9, alpha=np.nan, seed=0),
            ValueError,
            "nan",
        ),
        (
            lambda: partition.dirichlet(LABELS, 9, alpha=np.inf, seed=0),
            ValueError,
            "inf",
        ),
        (lambda: partition.dirichlet(LABELS, 9, alpha="1", seed=0), ValueError, "'1'"),
        (
            lambda: partition.dirichlet([1, 2], 3, alpha=1.0, seed=0),
            ValueError,
            "clients=3",
        ),
        (lambda: partition.natural([0.5]), ValueError, "float64"),
        (lambda: partition.natural([]), ValueError, r"\(0,\)"),
        (
            lambda: partition.power_law_sizes(5, 2, exponent=-1, seed=0),
            ValueError,
            "exponent=-1",
        ),
        (
            lambda: partition.power_law_sizes(5, 6, exponent=1, seed=0),
            ValueError,
            "clients=6",
        ),
    ],
)
def test_bad_input_gets_one_line(make, error, words):
    with pytest.raises(error, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
