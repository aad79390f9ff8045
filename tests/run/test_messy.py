"""Federations in which clients are away, late or silent, as configs have them."""

import csv

import pytest

from fl_sketch.run import build, run
from fl_sketch.sweep.sweep import sweep
from tests.run.configs import config_with

KEYS = {
    "rounds": 8,
    "eval_every": 4,
    "data__clients": 6,
    "cohort__size": 3,
    "compute__devices": 1,
}
TRACE = "client,first,last\n" + "".join(f"{c},{1 + c % 2},{3}\n" for c in range(6))


def rows_of(folder, name="metrics.csv"):
    return list(csv.DictReader((folder / name).read_text().splitlines()))


def config_of(tmp_path, **changes):
    (tmp_path / "there.csv").write_text(TRACE)
    times = "client,seconds\n" + "".join(f"{c},{1 + c}\n" for c in range(6))
    (tmp_path / "times.csv").write_text(times)
    named = {
        key: value.format(tmp_path) if isinstance(value, str) else value
        for key, value in changes.items()
    }
    return config_with(**KEYS | named)


def test_rows_say_who_was_asked_who_answered_and_how_long_it_took(tmp_path):
    config = config_of(tmp_path, cohort__times="{}/times.csv", cohort__deadline=3.5,
                       cohort__sampling="everyone")  # fmt: skip
    said = []
    summary = run(config, tmp_path / "run", say=said.append)
    assert "everyone, times" in said[2] and "late after 3.5 s" in said[2]
    assert "clients: 24 of 48 that were asked answered, in 28 simulated" in said[-2]
    for row, rounds in zip(rows_of(tmp_path / "run"), (4, 8), strict=True):
        assert int(row["asked"]) == 6 * rounds
        assert int(row["answered"]) == 3 * rounds  # those of 1, 2 and 3 seconds
        assert float(row["simulated_seconds"]) == 3.5 * rounds
    assert summary["simulated_seconds"] == 28
    table = rows_of(tmp_path / "run", "participation.csv")
    assert [int(row["answered"]) for row in table] == [8, 8, 8, 0, 0, 0]
    assert [int(row["asked"]) for row in table] == [8] * 6
    assert int(table[0]["bytes_up"]) > 0 == int(table[5]["bytes_up"])


def test_a_trace_repeats_and_points_of_a_sweep_are_their_runs(tmp_path):
    changes = {"cohort__available": "{}/there.csv", "cohort__period": 3,
               "cohort__times": "lognormal(2, 0.5)", "cohort__jitter": 0.2}  # fmt: skip
    config = config_of(tmp_path, **changes)
    over = ["seed=1,2", "cohort.dropout=0,0.3"]
    sweep(config, over, tmp_path / "sweep", say=lambda line: None)
    rows = rows_of(tmp_path / "sweep", "sweep.csv")
    config.seed, config.cohort.dropout = 2, 0.3
    run(config, tmp_path / "one", say=lambda line: None)
    own = [row for row in rows if (row["seed"], row["cohort.dropout"]) == ("2", "0.3")]
    for mine, theirs in zip(own, rows_of(tmp_path / "one"), strict=True):
        for name in ("asked", "answered", "simulated_seconds", "test_accuracy"):
            assert float(mine[name]) == pytest.approx(float(theirs[name]), rel=1e-5)
    # Rounds 1, 4 and 7 have three clients, all others six: three are asked in each.
    assert int(rows_of(tmp_path / "one")[-1]["asked"]) == 3 * 8


def test_a_message_takes_its_time(tmp_path):
    both = []
    for compression in (1.0, 20.0):
        changes = {"cohort__times": "{}/times.csv", "cohort__sending": 1000.0,
                   "sketch__compression": compression}  # fmt: skip
        folder = tmp_path / f"{compression:g}"
        run(config_of(tmp_path, **changes), folder, say=lambda line: None)
        both.append(float(rows_of(folder)[-1]["simulated_seconds"]))
    d = 650
    saved = 8 * 1000 * 4 * (d - int(d / 20)) / 1e6
    assert both[0] - both[1] == pytest.approx(saved, rel=1e-4)


def test_a_table_that_changed_is_not_gone_on_with(tmp_path):
    config = config_of(tmp_path, cohort__times="{}/times.csv")
    run(config, tmp_path / "run", say=lambda line: None)
    table = (tmp_path / "times.csv").read_text()
    (tmp_path / "times.csv").write_text(table.replace("5,6", "5,7"))
    with pytest.raises(ValueError, match="as it was when the run in"):
        run(config, tmp_path / "run", say=lambda line: None)


PRIVATE = {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0,
           "data__classes": 10}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cohort__available": "{}/none.csv"}, "available to name a csv file"),
        ({"cohort__available": "{}/times.csv"}, "columns client, first, last of numb"),
        ({"cohort__available": "{}/there.csv"}, "who is there in all 8 rounds, or per"),
        (
            {"cohort__available": "{}/there.csv", "cohort__sampling": "poisson"},
            "sampling=fixed or everyone with available",
        ),
        ({"cohort__times": "normal(1, 2)"}, "times to be lognormal"),
        ({"cohort__times": "lognormal(-1, 2)"}, "with seconds from 1e-06 to 1e"),
        ({"cohort__times": "lognormal(1, 1e30)"}, "SIGMA up to 10"),
        (
            {"cohort__times": "lognormal(1, 1)", "cohort__jitter": 1e30},
            "jitter to be a number in .0, 10.0.",
        ),
        (
            {"cohort__times": "{}/times.csv", "cohort__deadline": 0.5},
            "deadline >= 1, the seconds of the fastest",
        ),
        ({"cohort__times": "{}/there.csv"}, "columns client, seconds of numbers"),
        ({"cohort__deadline": 3.0}, "times of clients with deadline > 0"),
        ({"cohort__times": "lognormal(1, 1)", "cohort__jitter": -1.0}, "jitter"),
        (
            {"cohort__times": "{}/times.csv", "data__clients": 7},
            "of all 7 clients.*none of client 6",
        ),
        ({"cohort__times": "{}/times.csv", "data__clients": 5}, "5, 6 in row 6"),
        (
            PRIVATE | {"cohort__times": "lognormal(1, 1)"},
            "an accountant, who knows no such cohorts, got times",
        ),
        (
            PRIVATE | {"cohort__available": "{}/there.csv", "cohort__period": 3},
            "an accountant, who knows no such cohorts, got available",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line(tmp_path, changes, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        build(config_of(tmp_path, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        (
            "available",
            "client,first,last\n0,1,nan\n",
            "whole numbers.*0, 1, nan in row 1",
        ),
        ("available", "client,first,last\n0,1,inf\n", "whole numbers"),
        ("available", "client,first,last\n0,1,1e300\n", "of 31 bits"),
        ("available", "client,first,last\n", "somebody to be there"),
        ("available", b"client,first,last\n\xff,1,2\n", "columns client, first, last"),
        (
            "times",
            "client,seconds\n0,soon\n",
            "times=.*table.csv, got 0, soon in row 1",
        ),
        ("times", "client,time\n0,1\n", "got no seconds but client, time"),
        ("times", "client,seconds\n0,1\n0,2\n", "every client once.*0 again in row 2"),
        ("times", "client,seconds\n0,1e300\n", "seconds from 1e-06 to 1e"),
        ("times", "client,seconds\n0,1e-60\n", "seconds from 1e-06 to 1e"),
    ],
    ids=range(10),
)
def test_a_table_of_something_else_is_refused_by_its_row(tmp_path, key, text, words):
    path = tmp_path / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=f"config.cohort: .*{words}") as caught:
        build(config_with(**KEYS | {f"cohort__{key}": str(path)}))
    assert "\n" not in str(caught.value)
