"""Song's trade: bits to an accuracy do not grow as the message shrinks."""

import numpy as np
import pytest

from fl_sketch.studies import song_trade
from tests.launching import launch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def task():
    return song_trade.problem(d=32, clients=3, condition=5.0, seed=0)


def test_the_constants_are_those_of_the_problem(task):
    for matrix in np.asarray(task.matrices):
        values = np.linalg.eigvalsh(matrix)
        assert values[0] == pytest.approx(task.convexity, rel=1e-4)
        assert values[-1] == pytest.approx(task.smoothness, rel=1e-4)
    assert float(task.excess(task.optimum)) == 0


def test_bits_do_not_grow_as_the_message_shrinks(task):
    options = {"operator": "srht", "accuracy": 0.05, "seeds": [0, 1]}
    rows = list(song_trade.measure(task, [32, 4], **options))
    assert rows[0].rounds < rows[1].rounds
    assert rows[1].bits < 1.2 * rows[0].bits
    for row in rows:
        assert row.bits < row.promised
        assert row.bits == 32 * 3 * row.b * row.rounds


def test_a_message_larger_than_the_model_is_refused_in_a_line():
    done = launch("launch.trade", "--parameters=8", "--sizes=9")
    assert done.returncode == 2 and "b=9" in done.stderr
    assert done.stderr.count("\n") == 1
