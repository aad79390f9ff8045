"""What each theorem bounds stays below its bound."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import algorithms
from fl_sketch.core import files
from fl_sketch.experiments.verify import chen, others, song
from fl_sketch.experiments.verify import known_problems as known
from launch.reproductions import RESULTS
from tests.launching import launch


@pytest.mark.slow
def test_songs_bounds_are_above_what_is_measured():
    rows = list(song.song("gaussian"))
    names = ["Song E.1", "Song E.2", "Song 5.1, 5.2", "Song 5.3, 5.4", "Song E.3"]
    assert [row.theorem for row in rows] == [*names, "Song G.2, corrected"]
    for row in rows:
        assert row.ratio >= 1 and row.needed <= row.rounds
        assert row.bound < row.start  # it does say something
        assert row.ratio == row.bound / row.measured


@pytest.fixture
def _small(monkeypatch):
    sizes = {"D": 64, "B": 16, "ROUNDS": 400, "LONG": 1 << 12, "DRAWS": 2000}
    for name, value in sizes.items():
        monkeypatch.setattr(chen, name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("operator", "b1"), [("identity", 0.9), ("count_sketch", 0.0), ("gaussian", 0.9)]
)
def test_chens_bounds_are_above_what_is_measured(monkeypatch, operator, b1):
    monkeypatch.setattr(chen, "B1", b1)
    rows = list(chen.chen(operator))
    names = ["3.2", "Corollary 1", "B.3", "4.4", "4.4"]
    told = [f"Chen {name}, corrected" for name in names]
    assert [row.theorem.partition(":")[0] for row in rows] == told
    for row in rows:
        assert row.ratio >= 1 and 0 < row.measured <= row.start * (1 + 1e-5)


@pytest.mark.slow
def test_corollary_2_is_above_what_is_measured_where_it_speaks(monkeypatch):
    monkeypatch.setattr(chen, "SEEDS", range(1))
    row = chen.early()
    assert row.ratio >= 1 and row.rounds == 10 and row.measured < row.start


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
def test_property_3_has_a_row_for_each_operator():
    tails = list(chen.tails())
    rows = {row.operator: row for row in tails[:6]}
    longer = {row.operator: row for row in tails[6:]}
    assert len(rows) == len(longer) == 6
    for row in tails:
        assert row.ratio >= 1 or math.isnan(row.bound)
    assert {name for name, row in rows.items() if math.isnan(row.bound)} == {
        "sparse_embedding",
        "uniform_sampling",
    }
    # Two that met, as 1 in 32 draws have it; of 128 numbers, fewer do than 1 in 100.
    assert rows["count_sketch"].measured == pytest.approx(1)
    assert longer["count_sketch"].measured < 0.5


@pytest.mark.slow
def test_das_theorem_2_is_above_what_is_measured():
    row = others.das()
    assert row.ratio >= 1 and row.needed <= row.rounds and row.bound < row.start


@pytest.mark.slow
@pytest.mark.parametrize("tracking", [False, True])
def test_haddadpours_orders_hold_with_constants_of_about_one(monkeypatch, tracking):
    """Here Theorem 2 needs a constant of 1.3 for losses that are not convex."""
    sizes = {"SEEDS": range(2), "D": 16, "COLS": 8, "CLIENTS": 3, "TARGET": 0.05}
    for name, value in sizes.items():
        monkeypatch.setattr(others, name, value)
    rows = list(others.haddadpour("privix", tracking=tracking))
    assert [row.theorem for row in rows] == [
        f"Haddadpour {2 + tracking}, {kind}" for kind in ("pl", "nonconvex")
    ]
    for row, least in zip(rows, (1.0, 1.0 if tracking else 0.5), strict=True):
        assert row.ratio >= least and row.bound < row.start


@pytest.mark.fast
def test_no_kept_row_is_above_its_bound():
    rows = list(files.read_rows(RESULTS / "theory" / "theorems.csv"))
    assert {row["theorem"].split()[0] for row in rows} == {
        "Song", "Chen", "Das", "Haddadpour",
    }  # fmt: skip
    for row in rows:
        assert float(row["bound"]) >= float(row["measured"]) or row["bound"] == "nan"


@pytest.mark.fast
def test_the_constants_are_those_of_the_problem():
    task = known.quadratics(d=24, clients=3, condition=5.0, seed=1, apart=0.5)
    for matrix in np.asarray(task.matrices):
        values = np.linalg.eigvalsh(matrix)
        assert values[0] == pytest.approx(task.convexity, rel=1e-4)
        assert values[-1] == pytest.approx(task.smoothness, rel=1e-4)
    off = np.asarray(task.optimum - task.optima)
    gradients = np.einsum("cij,cj->ci", task.matrices, off)
    np.testing.assert_allclose(gradients.mean(0), 0, atol=1e-6)
    assert task.spread == pytest.approx((gradients**2).sum(1).mean(), rel=1e-4)
    alike = known.quadratics(d=24, clients=3, condition=5.0, seed=1)
    assert alike.spread == 0
    np.testing.assert_allclose(alike.optima[0], alike.optimum, atol=1e-6)


def test_wells_have_the_slopes_and_curvatures_that_they_promise():
    task = known.wells(d=5, clients=2, decay=1.0, seed=0)
    assert task.intrinsic == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)
    places = np.linspace(-4, 4, 2001)[:, None] * np.ones(5) + task.optima[0]
    x = places - task.optima[0]
    slopes = task.curvatures * x / (1 + x**2)
    bends = task.curvatures * (1 - x**2) / (1 + x**2) ** 2
    assert np.linalg.norm(slopes, axis=1).max() == pytest.approx(task.gradient)
    assert bends.max() == task.smoothness and bends.min() > -task.smoothness / 8 - 1e-6
    # Of one client they are those of its loss.
    at = jnp.asarray(places[7], jnp.float32)
    numeric = [
        (task.loss(at.at[i].add(1e-2), 0) - task.loss(at.at[i].add(-1e-2), 0)) / 2e-2
        for i in range(5)
    ]
    np.testing.assert_allclose(numeric, slopes[7], atol=1e-3)


def test_the_wells_distance_to_their_least_is_what_descent_finds():
    task = known.wells(d=6, clients=3, decay=1.0, seed=2)
    slope = jax.jit(jax.grad(task.mean_loss))
    at = task.optima.mean(0)
    for _ in range(500):
        at = at - slope(at)
    gap = float(task.mean_loss(jnp.zeros(6)) - task.mean_loss(at))
    assert task.start == pytest.approx(gap, rel=1e-4) and gap < task.start * (1 + 1e-6)
    alone = known.wells(d=6, clients=1, decay=1.0, seed=2)  # its least is zero
    whole = float(alone.mean_loss(jnp.zeros(6)))
    assert alone.start == pytest.approx(whole, rel=1e-5)


@pytest.mark.slow
def test_the_average_on_the_way_is_that_of_a_plain_loop():
    """Of all clients' parameters before each step, as the engine walked."""
    task = known.quadratics(d=6, clients=3, condition=4.0, seed=0, apart=1.0)
    steps, rate, rounds = 3, 0.2, 5

    def make(own):
        return algorithms.fedavg(task.loss, client_rate=own, server_rate=1.0)

    given = {"steps": steps, "clients": 3, "d": 6, "seeds": [0]}
    walked = known.walk(make, np.full(rounds, rate), **given)
    found = known.averages_of_rounds(task, walked, rate=rate, steps=steps, clients=3)
    w, places = np.zeros(6), []
    for _ in range(rounds):
        ends = []
        for client in range(3):
            q, o = np.asarray(task.matrices[client]), np.asarray(task.optima[client])
            u = w
            for _ in range(steps):
                places.append(u)
                u = u - rate * q @ (u - o)
            ends.append(u)
        w = np.mean(ends, axis=0)
    np.testing.assert_allclose(found[0].mean(0), np.mean(places, axis=0), atol=1e-5)
    np.testing.assert_allclose(walked[0, -1], w, atol=1e-5)


@pytest.mark.slow
def test_the_command_keeps_a_row_a_theorem(tmp_path):
    out = tmp_path / "rows.csv"
    done = launch("launch.theorems", "--paper=das", f"--out={out}")
    assert done.returncode == 0, done.stderr
    (row,) = files.read_rows(out)
    assert row["theorem"] == "Das Theorem 2" and float(row["ratio"]) >= 1
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.slow
def test_an_operator_without_a_tail_is_refused_in_a_line():
    done = launch("launch.theorems", "--paper=chen", "--operator=uniform_sampling")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "operator=uniform_sampling" in done.stderr and not done.stdout
