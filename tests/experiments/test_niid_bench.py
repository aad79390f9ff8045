"""NIID-Bench's partition, its number of classes, and its SCAFFOLD."""

import itertools

import jax
import numpy as np
import pytest

from experiments import niid_bench
from fl_sketch import algorithms, data, engine
from fl_sketch.run import simulate

pytestmark = pytest.mark.fast

LABELS = np.arange(1000) % 10


@pytest.mark.parametrize("seed", [0, 1, niid_bench.SEED])
def test_parties_share_all_examples_and_a_full_one_gets_no_more(seed):
    held = niid_bench.parties(LABELS, 5, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(held)), np.arange(1000))
    assert min(map(len, held)) >= niid_bench.FEWEST
    for own in held:
        counts = np.bincount(LABELS[own], minlength=10)
        full = np.cumsum(counts) >= 1000 / 5
        assert not counts[1:][full[:-1]].any()


def test_parties_of_one_class_have_one_and_equal_ones_all():
    one = [np.flatnonzero(label == LABELS) for label in range(10)]
    assert niid_bench.classes(LABELS, one) == pytest.approx(1)
    assert niid_bench.classes(LABELS, np.split(np.arange(1000), 5)) == pytest.approx(10)


@pytest.mark.parametrize("cohort", [6, 2])
def test_scaffold_as_there_is_another_if_some_are_absent(cohort):
    """The first round is the same, since c_i - c is zero. Later ones differ."""
    random = np.random.default_rng(0)
    examples = random.normal(size=(12, 3)), random.normal(size=(12, 2))
    clients = data.clients(examples, data.iid(12, 6, seed=0))
    drawn = engine.fixed_size(6, cohort)
    work = {"key": jax.random.key(0), "steps": 2, "batch": 2, "cohort": drawn}

    def ends(make, rounds):
        algorithm = make(
            lambda w, batch: ((batch[0] @ w - batch[1]) ** 2).mean(),
            client_rate=0.05,
            server_rate=1.0,
            steps=2,
        )
        run = simulate(algorithm, np.zeros((3, 2)), clients, rounds=rounds, **work)
        return run.params

    for rounds in (1, 3):
        found = [
            ends(make, rounds)
            for make in (
                algorithms.scaffold,
                niid_bench.scaffold,
                niid_bench.scaffold_begun,
                niid_bench.scaffold_divided,
            )
        ]
        for one, two in itertools.combinations(found, 2):
            same = rounds == 1 or cohort == 6
            assert np.allclose(one, two, atol=1e-6) == same
