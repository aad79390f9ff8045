"""What each theorem bounds stays below its bound."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import algorithms, theory
from fl_sketch.core import files
from fl_sketch.experiments.verify import (
    chen,
    haddadpour,
    known_problems,
    leakage,
    song,
    walks,
)
from fl_sketch.experiments.verify.rows import row as make_row
from fl_sketch.theory import Constants
from launch.reproductions import RESULTS
from tests.launching import launch


@pytest.mark.fast
@pytest.mark.parametrize(("error", "needed"), [(2.5, 2.0), (0.5, math.nan)])
def test_a_row_has_the_round_after_which_a_bound_held(error, needed):
    constants = Constants(operator="srht", d=8, step=0.123456, rounds=3)
    bound = theory.Bound("Theorem 1", constants, error, ())
    row = make_row("T 1", "wells", "f", bound, np.array([4.0, 2.0, 1.0]), 9.0, z=2)
    numbers = 3, pytest.approx(needed, nan_ok=True), 9.0, error, 1.0, error
    assert row[5:] == numbers
    names = "T 1", "srht", "wells", "d=8 step=0.1235 z=2", "f"
    assert row[:5] == names


@pytest.mark.slow
def test_songs_bounds_are_above_what_is_measured(monkeypatch):
    for name, value in {"SEEDS": range(2), "D": 16, "B": 8, "STEPS": 2}.items():
        monkeypatch.setattr(song, name, value)
    rows = list(song.song("gaussian"))
    names = ["E.1", "E.2", "5.1, 5.2", "5.3, 5.4", "E.3", "G.2, corrected"]
    assert [row.theorem for row in rows] == [f"Song {name}" for name in names]
    for row in rows:
        assert row.ratio >= 1 and row.needed <= row.rounds
        assert row.bound < row.start  # it does say something


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
    beginnings = [row.theorem.partition(":")[0] for row in rows]
    assert beginnings == [f"Chen {name}, corrected" for name in names]
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
    without = {"sparse_embedding", "uniform_sampling"}
    for row in tails:
        assert row.ratio >= 1 or math.isnan(row.bound)
        assert math.isnan(row.bound) == (row.operator in without)
    # Two that met, as 1 in 32 draws have it; of 128 numbers, fewer do than 1 in 100.
    assert rows["count_sketch"].measured == pytest.approx(1)
    assert longer["count_sketch"].measured < 0.5


def test_songs_bounds_on_an_input_are_above_what_is_measured():
    descent, unique = song.inversion()
    assert descent.theorem == "Song K.3, corrected" and unique.theorem == "Song K.2"
    assert descent.ratio >= 1 and descent.needed <= descent.rounds
    assert descent.bound < descent.start
    assert 1 <= unique.ratio < 2 and unique.measured == descent.start


def test_ripples_have_the_properties_that_they_promise():
    """At random pairs, of which one may be the input."""
    task = known_problems.ripples(d=5, least=0.7, bend=0.1, seed=1)
    c, random = task.constants, np.random.default_rng(0)
    x = random.normal(size=(200, 5)) * random.choice([0.1, 1, 10], (200, 1))
    y = np.where(random.random((200, 1)) < 0.5, task.target, x[::-1])
    values = jax.vmap(jax.value_and_grad(task.objective))
    (f, slope), (g, other) = values(jnp.asarray(x)), values(jnp.asarray(y))
    apart = np.linalg.norm(x - y, axis=1)
    least = g + np.sum(other * (x - y), axis=1) + c.convexity / 2 * apart**2
    least -= c.dent * apart * np.sqrt(g)
    assert np.all(f >= least * (1 - 1e-4) - 1e-4)
    lengths = np.linalg.norm(slope, axis=1)
    assert np.all(lengths >= c.slope * np.sqrt(f) * (1 - 1e-4))
    at_input = np.linalg.norm(x - np.asarray(task.target), axis=1)
    assert np.all(lengths <= c.smoothness * at_input * (1 + 1e-4))


@pytest.fixture
def _few(monkeypatch):
    targets = {"nonconvex": 0.05, "pl": 0.05, "convex": 0.15}
    sizes = {"SEEDS": range(2), "D": 16, "COLS": 8, "CLIENTS": 3, "DELTA": 0.5}
    sizes["TARGETS"] = targets
    for name, value in sizes.items():
        monkeypatch.setattr(haddadpour, name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("_few")
def test_haddadpours_bounds_are_above_what_is_measured(monkeypatch):
    made, values = algorithms.fedsketch, []

    def spied(*arguments, **options):
        values.append(options["values"])
        return made(*arguments, **options)

    monkeypatch.setattr(algorithms, "fedsketch", spied)
    heavy = next(haddadpour.fedsketch("heaprix"))
    rows = [haddadpour.fedavg(), *haddadpour.fedsketch("privix"), heavy]
    names = ["Corollary 5", "5, nonconvex", "6, pl", "7, convex", "5, nonconvex"]
    assert [row.theorem for row in rows] == [f"Haddadpour {name}" for name in names]
    for row in rows:
        assert row.ratio >= 1 and row.bound < row.start and row.needed <= row.rounds
    assert set(values) == {"fresh"}


@pytest.mark.slow
@pytest.mark.usefixtures("_few")
def test_the_orders_of_haddadpours_theorem_3_hold_with_constants_of_one():
    rows = list(haddadpour.fedsketchgate("privix"))
    names = ["Haddadpour 3, pl", "Haddadpour 3, nonconvex"]
    assert [row.theorem for row in rows] == names
    for row in rows:
        assert row.ratio >= 1 and row.bound < row.start


@pytest.mark.fast
def test_no_kept_row_is_above_its_bound():
    rows = list(files.read_rows(RESULTS / "theory" / "theorems.csv"))
    papers = {row["theorem"].split()[0] for row in rows}
    assert papers == {"Song", "Chen", "Das", "Haddadpour"}
    for row in rows:
        above = float(row["measured"]) > float(row["bound"])
        assert above == (row["theorem"] == "Haddadpour 1")  # as its page says
        fresh = "values=fresh" in row["constants"]  # without which HEAPRIX is biased
        assert fresh == (row["operator"] == "heaprix")


@pytest.mark.fast
@pytest.mark.parametrize("apart", [0.0, 0.5])
def test_the_constants_are_those_of_the_problem(apart):
    task = known_problems.quadratics(
        d=24, clients=3, condition=5.0, seed=1, apart=apart
    )
    known = task.constants
    assert (known.d, known.clients) == (24, 3)
    for matrix in np.asarray(task.matrices):
        values = np.linalg.eigvalsh(matrix)
        assert values[0] == pytest.approx(known.convexity, rel=1e-4)
        assert values[-1] == pytest.approx(known.smoothness, rel=1e-4)
    off = np.asarray(task.optimum - task.optima)
    gradients = np.einsum("cij,cj->ci", task.matrices, off)
    np.testing.assert_allclose(gradients.mean(0), 0, atol=1e-6)
    spread = (gradients**2).sum(1).mean()
    assert known.spread == pytest.approx(spread, rel=1e-4, abs=1e-10)
    assert (known.spread == 0) == (apart == 0)
    optimum = np.asarray(task.optimum, np.float64)
    assert known.distance == pytest.approx(optimum @ optimum)
    mean = np.asarray(task.matrices).mean(0)
    assert known.start == pytest.approx(optimum @ mean @ optimum / 2, rel=1e-5)


def test_wells_have_the_slopes_and_curvatures_that_they_promise():
    task = known_problems.wells(d=5, clients=2, decay=1.0, seed=0)
    known = task.constants
    assert known.intrinsic == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)
    places = np.linspace(-4, 4, 2001)[:, None] * np.ones(5) + task.optima[0]
    x = places - task.optima[0]
    slopes = task.curvatures * x / (1 + x**2)
    bends = task.curvatures * (1 - x**2) / (1 + x**2) ** 2
    assert np.linalg.norm(slopes, axis=1).max() == pytest.approx(known.gradient)
    assert bends.max() == known.smoothness
    assert bends.min() > -known.smoothness / 8 - 1e-6
    # Of one client they are those of its loss.
    at = jnp.asarray(places[7], jnp.float32)
    slope = jax.grad(task.loss)(at, 0)
    np.testing.assert_allclose(slope, slopes[7], atol=1e-5)


def test_the_wells_distance_to_their_least_is_what_descent_finds():
    task = known_problems.wells(d=6, clients=3, decay=1.0, seed=2)
    slope = jax.jit(jax.grad(task.mean_loss))
    at = task.optima.mean(0)
    for _ in range(500):
        at = at - slope(at)
    gap = float(task.mean_loss(jnp.zeros(6)) - task.mean_loss(at))
    assert task.constants.start == pytest.approx(gap, rel=1e-4)
    assert gap < task.constants.start * (1 + 1e-6)
    alone = known_problems.wells(d=6, clients=1, decay=1.0, seed=2)  # its least is zero
    whole = float(alone.mean_loss(jnp.zeros(6)))
    assert alone.constants.start == pytest.approx(whole, rel=1e-5)


@pytest.mark.slow
def test_the_average_on_the_way_is_that_of_a_plain_loop():
    """Of all clients' parameters before each step, as the engine walked."""
    task = known_problems.quadratics(d=6, clients=3, condition=4.0, seed=0, apart=1.0)
    run = Constants(d=6, clients=3, steps=3, step=0.2, rounds=5)

    def make(rate):
        return algorithms.fedavg(task.loss, client_rate=rate, server_rate=1.0)

    walked = walks.walk(make, run, [0])
    averages = walks.averages_of_rounds(task, walked, run)
    w, places = np.zeros(6), []
    for _ in range(run.rounds):
        ends = []
        for client in range(3):
            q, o = np.asarray(task.matrices[client]), np.asarray(task.optima[client])
            u = w
            for _ in range(run.steps):
                places.append(u)
                u = u - run.step * q @ (u - o)
            ends.append(u)
        w = np.mean(ends, axis=0)
    np.testing.assert_allclose(averages[0].mean(0), np.mean(places, axis=0), atol=1e-5)
    np.testing.assert_allclose(walked[0, -1], w, atol=1e-5)


@pytest.mark.slow
def test_the_command_keeps_a_row_a_theorem(tmp_path):
    out = tmp_path / "rows.csv"
    done = launch("launch.theorems", "--paper=das", f"--out={out}")
    assert done.returncode == 0, done.stderr
    rows = list(files.read_rows(out))
    names = ["Theorem 2", "Theorem 3", "Theorem 4"]
    names += ["Proposition 1: error", "Proposition 1: C"]
    assert [row["theorem"] for row in rows] == [f"Das {name}" for name in names]
    for row in rows:
        assert float(row["ratio"]) >= 1
    for row in rows[:2] + rows[3:4]:
        assert float(row["needed"]) <= float(row["rounds"])
    for row in rows[0], rows[2], rows[3]:
        assert float(row["bound"]) < float(row["start"])
    known = dict(pair.split("=") for pair in rows[3]["constants"].split())
    assert float(known["longest"]) <= float(known["gradient"])  # as is assumed
    *table, assumed = done.stdout.splitlines()
    assert len(table) == 6 and assumed.startswith("assumptions: met in every row")


@pytest.mark.slow
def test_a_sketch_without_noise_tells_more_than_theorem_1_says():
    draws, known = leakage.count_sketch(trials=200_000)
    assert draws.bound == known.bound == pytest.approx(math.log1p(0.1638), abs=1e-3)
    assert draws.bound < draws.measured < 1  # normal numbers hide much, but less
    assert known.measured == known.start > 9  # all that so many trials can show
