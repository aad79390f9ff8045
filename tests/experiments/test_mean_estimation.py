"""Means of integers have the error that is counted, near that of floats."""

import pytest

from fl_sketch.experiments import mean_estimation
from tests.refusals import refused

FEW = {"numbers": 60, "delta": 1e-5, "releases": 60}


@pytest.fixture(scope="module")
def rows():
    return list(mean_estimation.run([20], [8, 12, 18], [4.0], **FEW))


@pytest.mark.slow
def test_every_kind_and_size_has_a_row(rows):
    assert [(row.noise, row.bits) for row in rows] == [
        ("gaussian", 32),
        ("gaussian, by pld", 32),
        *(
            (kind, bits)
            for kind in ("skellam", "discrete_gaussian")
            for bits in (8, 12, 18)
        ),
    ]
    assert [row.bytes_up for row in rows[:3]] == [240, 240, 64]


@pytest.mark.slow
def test_errors_are_as_counted_and_fine_steps_are_as_good_as_floats(rows):
    for row in rows:
        assert row.over_gaussian == pytest.approx(row.counted, rel=0.15)
        assert row.wraps <= 1e-3
    last = {row.noise: row for row in rows}
    assert last["gaussian, by pld"].counted < 1
    for kind in ("skellam", "discrete_gaussian"):
        assert 1 <= last[kind].counted < 1.02
        coarse, finer, _ = (row for row in rows if row.noise == kind)
        assert coarse.counted > finer.counted > last[kind].counted


def test_what_cannot_be_measured_is_refused():
    for clients, bits, changes, word in (
        ([0], [16], {}, "clients=0"),
        ([4], [7], {}, "bits=7"),
        ([4], [16], {"releases": 0}, "releases=0"),
    ):
        with refused(word):
            list(mean_estimation.run(clients, bits, [1.0], **FEW | changes))


@pytest.mark.slow
def test_a_promise_that_bits_cannot_keep_is_a_row_without_numbers():
    rows = list(mean_estimation.run([400], [8], [0.1], **FEW | {"releases": 1}))
    assert [row.error is None for row in rows] == [False, False, True, True]
    assert mean_estimation.TABLE.line(rows[-1]).split()[-1] == "64"
