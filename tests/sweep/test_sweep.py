"""A sweep's points are the runs they stand for, and one command's worth of them."""

import csv
import itertools
import json
import math
import re
import signal

import chex
import jax
import numpy as np
import pytest
from fl_sketch.run.loop import NotFinite, Watch

from configs import default
from fl_sketch.core import free_memory
from fl_sketch.run import Stopped, begin, build, prepare, train
from fl_sketch.sweep import grid, heatmap, programs, ranking
from fl_sketch.sweep.sweep import outline, run, sweep

pytestmark = pytest.mark.slow

SMALL = {
    "compute.devices": 2,
    "model.name": "logistic",
    "rounds": 5,
    "eval_every": 3,
    "cohort.size": 4,
    "client.steps": 2,
}


def config_of(**changes):
    config = default.get_config()
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    config.update_from_flattened_dict(SMALL | dotted)
    return config


def quiet(line):
    del line


def swept(group, how):
    """Returns the last states and all rows of a program's points."""
    points = programs.compile_points(prepare(group.config), group, how)
    rows = []
    states, _ = run(
        outline(group, None),
        points,
        rows=rows.extend,
        rounds=lambda more: None,
        stop=lambda: False,
    )
    return states, rows


def alone(config):
    """Returns the last state and all rows of a run of its own."""
    built, rows = build(config), []
    progress = train(
        built,
        built.compile(),
        begin(built, config.eval_every),
        rounds=config.rounds,
        checkpoint_every=100,
        watch=Watch(row=rows.append),
    )
    return progress.state, rows


# A key of one value is an argument of the program too.
GRIDS = {
    "fedprox": (
        {
            "algorithm": "fedavg",
            "cohort__sampling": "poisson",
            "cohort__dropout": 0.3,
            "data__partition": "classes",
        },
        ["client.rate=0.05,0.2", "client.proximal=0,0.5", "server.rate=1"],
    ),
    "safl": (
        {
            "data__partition": "power_law",
            "cohort__weighting": "examples",
            "cohort__sampling": "poisson",
        },
        ["client.rate=0.05,0.2", "model.weight_decay=0.01", "server.eps=1e-8,1e-3"]
        + ["server.rate=0.1", "server.b1=0.5,0.9", "server.b2=0.9"],
    ),
    # Points share the images of clients that work at once.
    "convolutions": (
        {"model__name": "cnn", "model__width": 4, "compute__chunk": 2},
        ["client.rate=0.05,0.2"],
    ),
}


@pytest.mark.parametrize("name", GRIDS)
def test_points_are_the_runs_of_their_configs(name):
    changes, over = GRIDS[name]
    config = config_of(**changes)
    axes = grid.read_axes(config, [*over, "seed=3,0"])
    (group,) = grid.programs(config, axes)
    found = {how: swept(group, how) for how in programs.MAPS}
    last = len(group.points) - 1  # neither of the first seed nor of the first values
    own = config.copy_and_resolve_references()
    own.update_from_flattened_dict(group.points[last])
    state, expected = alone(own)
    for states, rows in found.values():
        jax.tree.map(
            lambda ours, theirs: np.testing.assert_allclose(
                ours[-1, -1], theirs, rtol=1e-5, atol=1e-5
            ),
            states.server.params,
            state.server.params,
        )
        mine = [row for row in rows if row["point"] == last]
        for row, single in zip(mine, expected, strict=True):
            assert row.items() >= group.points[last].items()
            assert row["epsilon"] is single["epsilon"] is None
            shared = {key: single[key] for key in single.keys() & row.keys()}
            del shared["epsilon"]
            assert len(shared) >= 6
            assert {key: row[key] for key in shared} == pytest.approx(shared, rel=1e-5)


def test_as_many_points_run_at_once_as_the_memory_allows(monkeypatch):
    config, over = config_of(), ["client.rate=0.05,0.1,0.2,0.4", "seed=3,0"]
    (group,) = grid.programs(config, grid.read_axes(config, over))
    program = prepare(config)

    def points(*free):
        there = iter(free)
        monkeypatch.setattr(programs.free_memory, "free", lambda devices: next(there))
        return programs.compile_points(program, group, "vmap")

    def after_two(points):
        states, _ = points.advance(points.states, 0, 2)
        return states.server.params

    whole, part, least = points(1e9), points(0, 0, 1e9), points(*4 * [0])
    assert [whole.at_once, part.at_once, least.at_once] == [8, 2, 1]
    whole, part, least = map(after_two, (whole, part, least))
    chex.assert_trees_all_close(whole, part, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(whole, least, rtol=1e-5, atol=1e-6)


def test_points_whose_states_fit_nowhere_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(free_memory, "free", lambda devices: 10_000)
    monkeypatch.setattr(programs, "compile_points", pytest.fail)
    with pytest.raises(ValueError, match="2 points to take at most 1e-05 GB"):
        sweep(config_of(), ["seed=0,1"], tmp_path / "new", say=quiet)


def test_each_seed_has_its_own_partition_of_the_same_examples():
    program = prepare(config_of())
    seeded, data = programs._data(program, (0, 1, 2))
    assert len(data.examples.targets) * 3 == len(data.indices)
    for place, seed in enumerate((0, 1, 2)):
        own = program.data(seed)
        starts = seeded.starts[place]
        mine = data.indices[starts[3] : starts[4]]
        assert mine.tolist() == own.indices[own.starts[3] : own.starts[4]].tolist()


def table_of(folder):
    return list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))


def test_a_point_that_diverges_does_not_stop_the_others(tmp_path):
    changes = {"algorithm": "fedavg", "model__name": "mlp", "server__rate": 1.0}
    config, said = config_of(**changes), []
    summary = sweep(config, ["client.rate=0.1,1e20"], tmp_path, say=said.append)
    good, bad = ([row for row in table_of(tmp_path) if row["point"] == p] for p in "01")
    assert [row["round"] for row in bad] == ["3", "5"]
    assert all(math.isfinite(float(row["test_loss"])) for row in good)
    assert {bad[1][k] for k in ("train_loss", "test_loss", "test_accuracy")} == {"nan"}
    assert not good[1]["diverged"]
    number = bad[1]["diverged"]
    assert f"diverged in round {number}" in said[-3]
    assert summary["best"]["point"] == 0 and summary["diverged"] == 1
    json.loads((tmp_path / "sweep.json").read_text(), parse_constant=pytest.fail)
    with pytest.raises(NotFinite, match=f"round {number}[: ]"):
        alone(config_of(**changes, client__rate=1e20))


def test_programs_that_are_done_are_kept(tmp_path, monkeypatch):
    config, over = config_of(), ["sketch.compression=10,20", "server.rate=0.01,0.1"]
    compiled, original = [], programs.compile_points

    def counted(program, group, how):
        compiled.append(group.config.sketch.compression)
        return original(program, group, how)

    monkeypatch.setattr(programs, "compile_points", counted)

    def stop(line):
        if "program 2 of 2, round 3" in line:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped, match="round 3"):
        sweep(config, over, tmp_path, say=stop)
    before = table_of(tmp_path)
    assert len(before) == 2 * 2 + 2
    with open(tmp_path / "sweep.csv", "a") as file:
        file.write("3,0.1")  # a torn line
    said, again = [], over[::-1]  # the same grid, written down in another order
    first = sweep(config, again, tmp_path, say=said.append)
    assert compiled == [10, 20, 20]
    rows = table_of(tmp_path)
    assert rows[:6] == before and len(rows) == 8
    assert "keeping the rows of 1 of 2 programs" in said

    assert sweep(config, over, tmp_path, say=said.append) == first
    assert len(compiled) == 3
    assert any("holds this sweep already" in line for line in said)
    with pytest.raises(ValueError, match="over.server.rate=.*another workdir"):
        sweep(config, ["server.rate=0.01"], tmp_path, say=quiet)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ([], "at least one --over"),
        (["client.rat=1"], "Did you mean 'client.rate'"),
        (["client=1"], "Did you mean 'client.rate'"),
        (["client.rate"], "client.rate=value,value, got no values"),
        (["client.rate="], "float values"),
        (["client.rate=0.1,,0.2"], "float values"),
        (["client.rate=fast"], "float values.*client.rate=fast"),
        (["client.steps=2.5"], "int values"),
        (["algorithm=safl,"], "str values"),
        (["client.rate=-0.1"], "client.rate > 0.*client.rate=-0.1"),
        (["client.rate=nan"], "client.rate=nan"),
        (["server.b1=1.5"], "< 1.*server.b1=1.5"),
        (["client.rate=0.1,0.10"], "different values"),
        (["seed=0", "seed=1"], "once.*seed 2 times"),
        (["seed=-1"], "seed=-1"),
        (["client.steps=1,0"], "steps=0"),
        (["sketch.compression=10,0.5"], "compression=0.5"),
        (["algorithm=safl,fedavgg"], "Did you mean 'fedavg'"),
        (["cohort.size=4,21"], "size=21"),
        ([f"seed={','.join(map(str, range(101)))}"] * 1 + [
            f"client.rate={','.join(f'{i}' for i in range(1, 101))}"
        ], "100 x 101 = 10100"),
    ],
)  # fmt: skip
def test_what_is_no_grid_is_one_line_before_anything_is_compiled(
    tmp_path, monkeypatch, over, words
):
    monkeypatch.setattr(programs, "compile_points", pytest.fail)
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        sweep(config_of(), over, tmp_path / "new", say=quiet)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_continuous_keys_and_seeds_share_a_program():
    config = config_of()
    axes = grid.read_axes(
        config,
        ["seed=5,6", "sketch.rows=1,2,3", "client.rate=0.1,0.2", "server.b1=0.5"],
    )
    groups = grid.programs(config, axes)
    assert [group.config.sketch.rows for group in groups] == [1, 2, 3]
    assert [group.first for group in groups] == [0, 4, 8]
    keys = ("client.rate", "server.b1", "sketch.rows", "seed")
    assert [tuple(point) for group in groups for point in group.points] == [keys] * 12
    assert [tuple(point.values()) for point in groups[1].points] == [
        (rate, 0.5, 2, seed) for seed, rate in itertools.product((5, 6), (0.1, 0.2))
    ]
    assert config.seed == 0 and config.sketch.rows == 1


def rows_of(axes, accuracy):
    """Returns one row for each point, as sweep.csv has it: strings."""
    rows = []
    for point in itertools.product(*(axis.values for axis in axes)):
        named = dict(zip((axis.key for axis in axes), point, strict=True))
        value = accuracy(named)
        rows.append({"point": len(rows), **named, "round": 9, "train_loss": 1.0}
            | {"test_loss": 1 - value, "test_accuracy": value, "bytes_up_total": 1}
            | {"bytes_down_total": 2, "diverged": 4 if math.isnan(value) else ""}
        )  # fmt: skip
    return [{key: str(value) for key, value in row.items()} for row in rows]


RATE = grid.Axis("client.rate", (0.1, 0.2))
ROWS = grid.Axis("sketch.rows", (1, 3))
SEEDS = grid.Axis("seed", (0, 1))


def test_the_best_stand_first_and_what_diverged_last():
    axes = (RATE, ROWS, SEEDS)

    def accuracy(p):
        if p["client.rate"] == 0.2 and p["sketch.rows"] == 3 and p["seed"]:
            return math.nan
        return p["client.rate"] + 0.1 * p["sketch.rows"] + 0.02 * p["seed"]

    last = ranking.ranked(rows_of(axes, accuracy), axes)
    assert [row["point"] for row in last] == [6, 3, 2, 5, 4, 1, 0, 7]
    means = ranking.over_seeds(last, axes)
    assert [row["client.rate"] for row in means] == [0.1, 0.2, 0.1, 0.2]
    assert means[0]["mean"] == pytest.approx(0.41)
    assert means[0]["deviation"] == pytest.approx(0.02 / math.sqrt(2))
    assert means[3]["diverged"] == 1 and math.isnan(means[3]["mean"])
    lines = ranking.table(last, axes)
    assert len(lines) == 1 + 8 + 1 + 4
    assert re.search(r"0\.2 +3 +1 diverged in round 4$", lines[8])
    assert re.search(r"0\.1 +3 +0\.4100 \+- 0\.0141$", lines[10])
    assert lines[13].endswith("diverged with 1 of 2 seeds")
    assert ranking.markdown(last, axes) == [
        "| client.rate | sketch.rows | test accuracy, +- deviation over seeds |",
        "| --- | --- | --- |",
        "| 0.1 | 3 | 41.00 +- 1.41 |",
        "| 0.2 | 1 | 31.00 +- 1.41 |",
        "| 0.1 | 1 | 21.00 +- 1.41 |",
        "| 0.2 | 3 | diverged |",
    ]


@pytest.mark.parametrize(
    ("axes", "cells"),
    [
        ((RATE, ROWS, SEEDS), {(0, 0): [0.1, 0.2], (0, 1): [0.3, 0.4]}),
        ((RATE, grid.Axis("sketch.rows", (1,)), SEEDS), {(0,): [0.1, 0.2]}),
        ((SEEDS,), {(0,): [0.1], (1,): [0.2]}),
        ((grid.Axis("client.rate", (0.1,)),), {(0,): [0.1]}),
        ((grid.Axis("client.rate", (0.2,)),), {}),  # all diverged
        ((grid.Axis("client.rate", (0.2,)), ROWS), {}),
    ],
)
def test_a_picture_shows_one_axis_or_two(tmp_path, axes, cells):
    def accuracy(p):
        if p.get("client.rate") == 0.2:
            return math.nan
        return 0.1 * (p.get("sketch.rows", 1) + p.get("seed", 0))

    rows = rows_of(axes, accuracy)
    drawn = [axis for axis in axes if len(axis.values) > 1 and axis.key != "seed"]
    found = heatmap._cells(drawn or axes, axes, rows)
    for place, values in cells.items():
        assert sorted(found[place]) == pytest.approx(values)
    heatmap.draw(axes, rows, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes()[1:4] == b"PNG"
