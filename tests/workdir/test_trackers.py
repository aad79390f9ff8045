"""Rows for wandb and mlflow, tried with stand-ins that keep what they are told."""

import sys
import types

import pytest

from fl_sketch.run import run
from fl_sketch.workdir import trackers
from tests.run.configs import NOISY, config_with, quiet, refused, table_in

KEYS = {"rounds": 4, "eval_every": 2, "compute__devices": 1}


class Said(list):
    """A stand-in for a module: everything that is called of it is written down."""

    def __getattr__(self, name):
        def called(*args, **named):
            self.append((name, args, named))
            return self

        return called

    def __enter__(self):
        self.append(("enter", (), {}))
        return self

    def __exit__(self, *error):
        self.append(("exit", (), {}))


@pytest.fixture
def said(monkeypatch, request):
    one, module = Said(), types.ModuleType(request.param)
    module.__getattr__ = one.__getattr__
    module.__spec__ = types.SimpleNamespace(name=request.param)
    monkeypatch.setitem(sys.modules, request.param, module)
    return one


def ran(folder, name, **changes):
    config = config_with(**KEYS | changes)
    run(config, folder, tracker=name, say=quiet)
    return table_in(folder)


@pytest.mark.parametrize("said", ["wandb"], indirect=True)
def test_wandb_is_told_of_the_config_and_every_row(said, tmp_path):
    rows = ran(tmp_path / "one", "wandb")
    first, *logs, last = said
    assert first[0] == "init" and last[0] == "finish"
    assert first[2]["config"]["client.rate"] == 0.1 and first[2]["name"] == "one"
    assert first[2]["settings"] == {"console": "off"}
    assert [named["step"] for _, _, named in logs] == [2, 4]
    for row, (name, (values,), _) in zip(rows, logs, strict=True):
        assert name == "log"
        assert values["test_accuracy"] == float(row["test_accuracy"])
        assert values["bytes_up_total"] == float(row["bytes_up_total"])


@pytest.mark.parametrize("said", ["mlflow"], indirect=True)
def test_mlflow_keeps_its_own_folder_unless_it_is_told_of_another(
    said, tmp_path, monkeypatch
):
    ran(tmp_path / "one", "mlflow")
    names = [name for name, *_ in said]
    assert names == ["set_tracking_uri", "set_experiment", "start_run", "enter",
                     "log_params", "log_metrics", "log_metrics", "exit"]  # fmt: skip
    assert said[0][1][0] == (tmp_path / "one" / "mlflow").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    said.clear()
    ran(tmp_path / "two", "mlflow")
    assert said[0][0] == "set_experiment"


@pytest.mark.parametrize("said", ["wandb"], indirect=True)
def test_what_only_the_simulator_may_see_is_not_sent(said, tmp_path):
    rows = ran(tmp_path / "one", "wandb", **NOISY)
    sent = {name for _, (values,), _ in said[1:-1] for name in values}
    assert "epsilon" in sent and "test_accuracy" in sent
    assert any("simulator_only" in name for name in rows[0])
    assert not any("simulator_only" in name or "bytes" in name for name in sent)


def test_a_function_of_ones_own_is_told_of_every_row(tmp_path):
    rows = []
    run(config_with(**KEYS), tmp_path, on_row=rows.append, say=quiet)
    assert [row["round"] for row in rows] == [2, 4]


def test_a_tracker_that_is_not_there_is_said_in_one_line(tmp_path):
    with refused("'wandb', 'mlflow'", "tracker='x'"):
        trackers.require_installed("x")
    if "wandb" not in sys.modules:
        with refused("wandb", "pip install"):
            ran(tmp_path / "new", "wandb")
        assert not (tmp_path / "new").exists()
