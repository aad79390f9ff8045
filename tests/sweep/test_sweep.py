"""A sweep's points are the runs they stand for, and one command's worth of them."""

import json
import math
import signal
import sys

import chex
import pytest

from configs import default
from fl_sketch import engine
from fl_sketch.core import files, free_memory
from fl_sketch.engine.loop import Callback, NotFinite, Stopped
from fl_sketch.run import prepare
from fl_sketch.run.continued import Continued
from fl_sketch.sweep import grid, points
from fl_sketch.sweep.dry_run import program_of
from fl_sketch.sweep.sweep import rows_of, run_program, sweep
from fl_sketch.workdir import odometer
from tests.run import configs
from tests.run.configs import quiet

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
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return grid.changed(default.get_config(), SMALL | dotted)


def stop_at(text):
    """Returns a function that is told lines, and stops the sweep at one with a text."""

    def say(line):
        if text in line:
            signal.raise_signal(signal.SIGTERM)

    return say


def swept(group, how):
    """Returns the last states and all rows of a program's points."""
    one, rows = program_of(group, None), []

    class Rows(Callback):
        def on_rows(self, made, progress):
            rows.extend(rows_of(one, made, progress.recorders))

    return run_program(one, how, [Rows()]), rows


def alone(config):
    """Returns the last state and all rows of a run of its own."""
    played = configs.played(config)
    return played.params, played.history


# A key of one value is an argument of the program too.
GRIDS = {
    "fedprox": (
        {"algorithm": "fedavg", "cohort__dropout": 0.3, "data__partition": "classes"},
        ["client.rate=0.05,0.2", "client.proximal=0,0.5", "server.rate=1"],
    ),
    "scaffold": (
        {"algorithm": "scaffold", "client__epochs": 2, "data__partition": "dirichlet"},
        ["client.rate=0.05,0.2", "server.rate=1"],
    ),
    # Points share the images of clients that work at once.
    "safl": (
        {"data__partition": "power_law", "cohort__weighting": "examples"}
        | {"server__schedule": "cosine", "compute__chunk": 2}
        | {"model__name": "cnn", "model__width": 4},
        ["client.rate=0.05,0.2", "model.weight_decay=0.01", "server.eps=1e-3"]
        + ["server.rate=0.1", "server.floor=0,0.05", "server.b1=0.5", "server.b2=0.9"],
    ),
}


@pytest.mark.parametrize("name", GRIDS)
def test_points_are_the_runs_of_their_configs(name):
    changes, over = GRIDS[name]
    config = config_of(cohort__sampling="poisson", **changes)
    (group,) = grid.programs(config, grid.read_axes(config, [*over, "seed=3,0"]))
    found = {how: swept(group, how) for how in points.MAPS}
    last = len(group.points) - 1  # neither of the first seed nor of the first values
    params, expected = alone(grid.changed(config, group.points[last]))
    for results, rows in found.values():
        chex.assert_trees_all_close(results[-1].params, params, rtol=1e-5, atol=1e-5)
        mine = [row for row in rows if row["point"] == last]
        for row, single in zip(mine, expected, strict=True):
            assert row.items() >= group.points[last].items()
            assert row["epsilon"] is single["epsilon"] is None
            shared = {key: single[key] for key in single.keys() & row.keys()}
            del shared["epsilon"]
            assert len(shared) >= 6
            assert {key: row[key] for key in shared} == pytest.approx(shared, rel=1e-5)
        # Every axis, the floor of a schedule too, changes where a point ends.
        losses = [row["test_loss"] for row in rows if row["round"] == config.rounds]
        assert len({*losses}) == len(group.points)


def test_a_seed_with_a_client_larger_than_a_batch_of_all_is_refused():
    keys = {"client__epochs": 1, "client__batch": 0, "data__partition": "dirichlet"}
    config = config_of(**keys)
    largest = {
        seed: int(prepare(config).partition(seed)[0].sizes.max()) for seed in (0, 1)
    }
    first = min(largest, key=largest.get)
    config.seed = first
    (group,) = grid.programs(config, grid.read_axes(config, ["seed=0,1"]))
    with configs.refused("examples", str(largest[1 - first])):
        run_program(program_of(group, None))


def test_a_point_goes_on_as_a_run_of_its_own():
    config = config_of()
    (group,) = grid.programs(config, grid.read_axes(config, ["server.rate=0.01,0.1"]))
    point = run_program(program_of(group, None))[-1]
    longer = grid.changed(config, group.points[-1] | {"rounds": config.rounds + 3})
    setup = prepare(longer)
    experiment, roots = setup.experiment, setup.roots()
    on = [Continued(experiment, roots, point.state, 0.0)]
    run, whole = engine.run(experiment, key=roots, callbacks=on), configs.played(longer)
    chex.assert_trees_all_close(run.params, whole.params, rtol=1e-5, atol=1e-5)
    for name in ("round", "bytes_up_total", "bytes_down_total"):
        assert run.history[-1][name] == whole.history[-1][name]


def test_a_point_that_diverges_does_not_stop_the_others(tmp_path):
    changes = {"algorithm": "fedavg", "model__name": "mlp", "server__rate": 1.0}
    config, said = config_of(**changes), []
    summary = sweep(config, ["client.rate=0.1,1e20"], tmp_path, say=said.append)
    rows = files.read_rows(tmp_path / "sweep.csv")
    good, bad = ([row for row in rows if row["point"] == point] for point in "01")
    assert [row["round"] for row in bad] == ["3", "5"]
    assert all(math.isfinite(float(row["test_loss"])) for row in good)
    assert {bad[1][k] for k in ("train_loss", "test_loss", "test_accuracy")} == {"nan"}
    assert not good[1]["diverged"]
    number = bad[1]["diverged"]
    assert f"diverged in round {number}" in said[-2]
    assert summary["best"]["point"] == 0 and summary["diverged"] == 1
    json.loads((tmp_path / "sweep.json").read_text(), parse_constant=pytest.fail)
    with pytest.raises(NotFinite, match=f"round {number}[: ]"):
        alone(config_of(**changes, client__rate=1e20))


def test_programs_that_are_done_are_kept(tmp_path, monkeypatch):
    config, over = config_of(), ["sketch.compression=10,20", "server.rate=0.01,0.1"]
    compiled = []

    def counted(one, *options):
        compiled.append(one.group.config.sketch.compression)
        return run_program(one, *options)

    monkeypatch.setattr(sys.modules[sweep.__module__], "run_program", counted)
    with pytest.raises(Stopped, match="round 3"):
        sweep(config, over, tmp_path, say=stop_at("program 2 of 2, round 3"))
    before = files.read_rows(tmp_path / "sweep.csv")
    assert len(before) == 2 * 2 + 2
    with open(tmp_path / "sweep.csv", "a") as file:
        file.write("3,0.1")  # a torn line
    said, again = [], over[::-1]  # the same grid, written down in another order
    first = sweep(config, again, tmp_path, say=said.append)
    assert compiled == [10, 20, 20]
    rows = files.read_rows(tmp_path / "sweep.csv")
    assert rows[:6] == before and len(rows) == 8
    assert "resuming: 1 of 2 programs are finished" in said

    assert sweep(config, over, tmp_path, say=said.append) == first
    assert len(compiled) == 3
    assert any("already has this sweep" in line for line in said)
    with pytest.raises(ValueError, match="over.server.rate=.*another workdir"):
        sweep(config, ["server.rate=0.01"], tmp_path, say=quiet)


def test_a_private_program_that_was_interrupted_is_counted_once_more(
    tmp_path,
):
    changes = {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0}
    changes |= {"privacy__relation": "replace_one", "data__classes": 10}
    config, over = config_of(**changes, compute__devices=1), ["client.rate=0.1,0.2"]
    with pytest.raises(Stopped):
        sweep(config, over, tmp_path, say=stop_at("round 3"))
    found = sweep(config, over, tmp_path, say=quiet)
    entries = odometer.read(tmp_path)
    assert [entry.plan.steps for entry in entries.values()] == [3, 3, 5, 5]
    assert found["epsilon_of_all"] == odometer.total(entries).epsilon
    done = dict([*entries.items()][2:])
    assert found["epsilon_of_all"] > odometer.total(done).epsilon


@pytest.mark.parametrize(
    ("over", "name"),
    [
        (["client.steps=1,0"], "steps"),
        (["algorithm=safl,fedavgg"], "fedavg"),
        (["cohort.size=4,21"], "size"),
        (["compute.model_devices=1,2"], "model_devices"),
        (["model.metrics=accuracy,perplexity"], "perplexity"),
        (["compute.data=streamed"], "compute.data"),
        (["seed=0,1"], "GB"),  # whose states fit nowhere
    ],
)
def test_what_is_no_sweep_is_one_line_before_anything_is_compiled(
    tmp_path, monkeypatch, over, name
):
    monkeypatch.setattr(points, "sweep", pytest.fail)
    if over == ["seed=0,1"]:
        monkeypatch.setattr(free_memory, "free", lambda devices: 10_000)
    with configs.refused(match=name, error=(ValueError, TypeError)):
        sweep(config_of(), over, tmp_path / "new", say=quiet)
    assert not (tmp_path / "new").exists()
