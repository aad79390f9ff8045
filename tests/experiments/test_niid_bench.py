"""NIID-Bench's partition, and its number of classes."""

import numpy as np
import pytest

from experiments import niid_bench

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
    one = [np.flatnonzero(LABELS == label) for label in range(10)]
    assert niid_bench.classes(LABELS, one) == pytest.approx(1)
    assert niid_bench.classes(LABELS, np.split(np.arange(1000), 5)) == pytest.approx(10)
