"""The suite of integers draws from the right distributions, and adds up."""

import pytest

from fl_sketch.experiments.bench import integers_suite


@pytest.fixture
def rows(monkeypatch):
    small = {"DRAWS": 10**5, "TIMES": 1, "FEW": 100, "CLIENTS": 5, "LENGTH": 16}
    for name, value in small.items():
        monkeypatch.setattr(integers_suite, name, value)
    monkeypatch.setattr(integers_suite, "DEVIATIONS", (0.7, 100.0))
    return list(integers_suite.run())


def test_rows_have_exact_moments_and_the_bytes_of_a_sum(rows):
    *noise, total = [row for row in rows if not row.what.startswith("opendp")]
    assert [row.what for row in noise] == 2 * ["skellam"] + 2 * ["discrete_gaussian"]
    for row in noise:
        assert row.variance == pytest.approx(1, abs=0.03)
        assert row.fourth == pytest.approx(1, abs=0.1)
        assert row.nanoseconds == pytest.approx(row.seconds * 1e4)
    assert total.what == "masked sum" and total.clients == 5
    assert total.bytes_up > 5 * 16 * 2
