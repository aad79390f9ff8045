"""Federations in which clients are away, late or silent, as configs have them."""

import pytest

from fl_sketch.run import run, task_of
from fl_sketch.sweep.sweep import sweep
from tests.run.configs import config_with, quiet, refused, table_in

KEYS = {
    "rounds": 8,
    "eval_every": 4,
    "data__clients": 6,
    "cohort__size": 3,
    "compute__devices": 1,
}
TRACE = "client,first,last\n" + "".join(f"{c},{1 + c % 2},{3}\n" for c in range(6))
TIMES = "client,seconds\n" + "".join(f"{c},{1 + c}\n" for c in range(6))
PRIVATE = {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0,
           "data__classes": 10}  # fmt: skip
slow = pytest.mark.slow


def config_of(tmp_path, **changes):
    (tmp_path / "there.csv").write_text(TRACE)
    (tmp_path / "times.csv").write_text(TIMES)
    named = {
        key: value.format(tmp_path) if isinstance(value, str) else value
        for key, value in changes.items()
    }
    return config_with(**KEYS | named)


@slow
@pytest.mark.parametrize("mark", ["", "simulator_only_"])
def test_rows_say_who_was_asked_who_answered_and_how_long_it_took(tmp_path, mark):
    late = {"cohort__times": "{}/times.csv", "cohort__deadline": 3.5}
    private = PRIVATE | {"privacy__relation": "replace_one"}
    # No accountant knows clients who are late, but some who never answer.
    own = private | {"cohort__dropout": 0.5} if mark else late
    config = config_of(tmp_path, cohort__sampling="everyone", **own)
    said = []
    summary = run(config, tmp_path / "run", say=said.append)
    folder = tmp_path / "run"
    rows = table_in(folder)
    assert (folder / "participation.csv").exists() == (not mark)
    table = table_in(folder, f"{mark}participation.csv")
    answered = [int(row["answered"]) for row in table]
    assert [int(row["asked"]) for row in table] == [8] * 6
    assert int(rows[-1][f"{mark}answered"]) == sum(answered)
    assert int(rows[-1][f"{mark}asked"]) == 48
    assert any(f"{sum(answered)} of 48" in line for line in said)
    if mark:
        assert "answered" not in rows[0] and 0 < sum(answered) < 48
        return
    assert "deadline 3.5 s" in said[3]
    for row, rounds in zip(rows, (4, 8), strict=True):
        assert int(row["answered"]) == 3 * rounds  # those of 1, 2 and 3 seconds
        assert float(row["simulated_seconds"]) == 3.5 * rounds
    assert summary["simulated_seconds"] == 28 and answered == [8, 8, 8, 0, 0, 0]
    assert int(table[0]["bytes_up"]) > 0 == int(table[5]["bytes_up"])
    # The same table must be there when the run is asked for again.
    text = (tmp_path / "times.csv").read_text()
    (tmp_path / "times.csv").write_text(text.replace("5,6", "5,7"))
    with refused("times.csv", folder):
        run(config, folder, say=quiet)


@slow
def test_a_trace_repeats_and_points_of_a_sweep_are_their_runs(tmp_path):
    changes = {"cohort__available": "{}/there.csv", "cohort__period": 3,
               "cohort__times": "lognormal(2, 0.5)", "cohort__jitter": 0.2}  # fmt: skip
    config = config_of(tmp_path, **changes)
    over = ["seed=1,2", "cohort.dropout=0,0.3"]
    sweep(config, over, tmp_path / "sweep", say=quiet)
    rows = table_in(tmp_path / "sweep", "sweep.csv")
    config.seed, config.cohort.dropout = 2, 0.3
    run(config, tmp_path / "one", say=quiet)
    own = [row for row in rows if (row["seed"], row["cohort.dropout"]) == ("2", "0.3")]
    for ours, theirs in zip(own, table_in(tmp_path / "one"), strict=True):
        for name in ("asked", "answered", "simulated_seconds", "test_accuracy"):
            assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=1e-5)
    # Rounds 1, 4 and 7 have three clients, all others six: three are asked in each.
    assert int(own[-1]["asked"]) == 3 * 8


@slow
def test_a_message_takes_its_time(tmp_path):
    seconds = []
    for compression in (1.0, 20.0):
        changes = {"cohort__times": "{}/times.csv", "cohort__sending": 1000.0,
                   "sketch__compression": compression}  # fmt: skip
        task = task_of(config_of(tmp_path, **changes))
        seconds.append(task.known.clock(8))
    saved = 8 * 1000 * 4 * (650 - int(650 / 20)) / 1e6
    assert seconds[0] - seconds[1] == pytest.approx(saved, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cohort__available": "{}/none.csv"}, ["available", "none.csv"]),
        ({"cohort__available": "{}/times.csv"}, ["client, first, last", "times.csv"]),
        ({"cohort__available": "{}/there.csv"}, ["all 8 rounds", "period", "3 rounds"]),
        (
            {"cohort__available": "{}/there.csv", "cohort__sampling": "poisson"},
            ["sampling=fixed", "available", "'poisson'"],
        ),
        ({"cohort__times": "normal(1, 2)"}, ["lognormal", "normal(1, 2)"]),
        ({"cohort__times": "lognormal(-1, 2)"}, ["1e-06", "lognormal(-1, 2)"]),
        ({"cohort__times": "lognormal(1, 1e30)"}, ["SIGMA", "1e30"]),
        (
            {"cohort__times": "lognormal(1, 1)", "cohort__jitter": 1e30},
            ["jitter", "10.0"],
        ),
        (
            {"cohort__times": "{}/times.csv", "cohort__deadline": 0.5},
            ["deadline >= 1", "deadline=0.5"],
        ),
        ({"cohort__times": "{}/there.csv"}, ["client, seconds", "there.csv"]),
        ({"cohort__deadline": 3.0}, ["deadline > 0", "times=''"]),
        ({"cohort__times": "lognormal(1, 1)", "cohort__jitter": -1.0}, ["jitter"]),
        (
            {"cohort__times": "{}/times.csv", "data__clients": 7},
            ["7 clients", "client 6"],
        ),
        ({"cohort__times": "{}/times.csv", "data__clients": 5}, ["5, 6", "row 6"]),
        (PRIVATE | {"cohort__times": "lognormal(1, 1)"}, ["accountant", "times="]),
        (
            PRIVATE | {"cohort__available": "{}/there.csv", "cohort__period": 3},
            ["accountant", "available="],
        ),
    ],
    ids=range(16),
)
def test_what_cannot_be_is_said_in_one_line(tmp_path, changes, words):
    with refused(*words, error=(ValueError, FileNotFoundError)):
        task_of(config_of(tmp_path, **changes))


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("available", "client,first,last\n0,1,nan\n", ["0, 1, nan", "row 1"]),
        ("available", "client,first,last\n0,1,inf\n", ["integers", "inf"]),
        ("available", "client,first,last\n0,1,1e300\n", ["2^31", "1e+300"]),
        ("available", "client,first,last\n", ["rows, got none"]),
        ("available", "client,first,last\n\xff,1,2\n", ["client, first, last"]),
        ("times", "client,seconds\n0,soon\n", ["0, soon", "row 1"]),
        ("times", "client,time\n0,1\n", ["no seconds", "client, time"]),
        ("times", "client,seconds\n0,1\n0,2\n", ["once", "0 again", "row 2"]),
        ("times", "client,seconds\n0,1e300\n", ["1e-06", "1e+300"]),
        ("times", "client,seconds\n0,1e-60\n", ["1e-06", "1e-60"]),
    ],
    ids=range(10),
)
def test_a_table_of_something_else_is_refused_by_its_row(tmp_path, key, text, words):
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode("latin-1"))
    with refused("config.cohort: ", path, *words):
        task_of(config_with(**KEYS | {f"cohort__{key}": str(path)}))
