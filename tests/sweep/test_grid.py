"""Grids: what is an axis, which points share a program, and how a grid grows."""

import itertools

import pytest

from configs import default
from fl_sketch.sweep import grid
from tests.refusals import refused

pytestmark = pytest.mark.fast
CONFIG = default.get_config()


def test_continuous_keys_and_seeds_share_a_program():
    over = ["seed=5,6", "sketch.rows=1,2,3", "client.rate=0.1,0.2", "server.b1=0.5"]
    groups = grid.programs(CONFIG, grid.read_axes(CONFIG, over))
    assert [group.config.sketch.rows for group in groups] == [1, 2, 3]
    assert [group.first for group in groups] == [0, 4, 8]
    keys = ("client.rate", "server.b1", "sketch.rows", "seed")
    assert [tuple(point) for group in groups for point in group.points] == [keys] * 12
    assert [tuple(point.values()) for point in groups[1].points] == [
        (rate, 0.5, 2, seed) for seed, rate in itertools.product((5, 6), (0.1, 0.2))
    ]
    assert CONFIG.seed == 0 and CONFIG.sketch.rows == 1


def test_values_may_be_words_and_yes_or_no():
    over = ["client.optimizer=sgd,adam(b1=0.8, b2=0.9)", "sketch.stored=true,False"]
    axes = {axis.key: axis.values for axis in grid.read_axes(CONFIG, over)}
    assert axes["client.optimizer"] == ("sgd", "adam(b1=0.8, b2=0.9)")
    assert axes["sketch.stored"] == (True, False)


MANY = ",".join(map(str, range(1, 102)))


@pytest.mark.parametrize(
    ("over", "name"),
    [
        ([], "--over"),
        (["client.rat=1"], "client.rat"),
        (["client=1"], "client"),
        (["client.rate="], "client.rate"),
        (["client.rate=fast"], "client.rate"),
        (["client.steps=2.5"], "client.steps"),
        (["client.rate=-0.1"], "client.rate"),
        (["server.b1=1.5"], "server.b1"),
        (["client.rate=0.1,0.100000001"], "client.rate"),
        (["seed=0", "seed=1"], "seed"),
        ([f"seed={MANY}", f"rounds={MANY}"], "10201"),
    ],
)
def test_what_is_no_grid_is_refused_in_one_line(over, name):
    with refused(match=name):
        grid.read_axes(CONFIG, over)


@pytest.mark.parametrize(
    ("values", "best", "end"),
    [
        ((0.003, 0.01, 0.03), 0.03, 0.1),
        ((0.03, 0.003, 0.01), 0.003, 0.001),
        ((0.1, 0.3), 0.3, 0.9),
        ((0.1, 0.3, 1.0), 0.3, None),  # inside
        ((0.1,), 0.1, None),
        ((0.0, 0.1), 0.0, None),
    ],
)
def test_a_grid_grows_from_its_end_as_it_began(values, best, end):
    found = grid.beyond({"server.rate": values}, {"server.rate": best})
    assert found == (end and ("server.rate", pytest.approx(end)))


def test_a_grid_does_not_grow_to_what_its_key_may_not_be_or_by_words():
    tune = {"server.b1": (0.5, 0.9), "sketch.rows": (1, 3), "client.rate": (0.1, 0.3)}
    best = {"server.b1": 0.9, "sketch.rows": 3, "client.rate": 0.1}
    assert grid.beyond(tune, best) == ("client.rate", pytest.approx(0.1 / 3, rel=1e-5))
