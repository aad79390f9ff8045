"""What compressors lose, in small."""

import pytest

from fl_sketch.experiments.bench import error_suite

pytestmark = pytest.mark.slow


def test_rows_say_what_was_sent_and_lost(monkeypatch):
    monkeypatch.setattr(error_suite, "D", 600)
    monkeypatch.setattr(error_suite, "SIZES", ((5, 60),))
    rows = {(row.channel, row.vector): row for row in error_suite.run(draws=60)}
    assert len(rows) == 8
    assert rows["privix", "dense"].numbers == 300
    assert rows["heaprix", "dense"].numbers == 360
    assert rows["heaprix fresh", "dense"].numbers == 660
    for row in rows.values():
        assert 0 < row.error <= row.bound
    assert rows["heaprix", "power law"].error < rows["privix", "power law"].error
    assert rows["privix", "dense"].standard_errors < 4
    assert rows["heaprix", "dense"].standard_errors > 10
    assert rows["heaprix", "dense"].bias < 0


def test_no_draws_are_refused():
    with pytest.raises(ValueError, match="draws=0"):
        next(error_suite.run(draws=0))
