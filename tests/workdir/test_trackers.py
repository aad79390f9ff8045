"""Rows for wandb and mlflow, tried with stand-ins that keep what they are told."""

import sys
import types

import pytest

from fl_sketch.core import files
from fl_sketch.run import run
from fl_sketch.workdir import trackers
from tests.run.configs import config_with

ROW = {"round": 2, "test_accuracy": 0.5, "simulator_only_train_loss": 1.0, "how": "x"}


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


@pytest.mark.slow
@pytest.mark.parametrize("said", ["wandb"], indirect=True)
def test_wandb_and_a_function_are_told_of_the_config_and_every_row(said, tmp_path):
    rows, config = [], config_with(rounds=4, eval_every=2, compute__devices=1)
    arguments = {"tracker": "wandb", "on_row": rows.append, "say": lambda line: None}
    run(config, tmp_path / "one", **arguments)
    first, *logs, last = said
    assert first[0] == "init" and last[0] == "finish"
    assert first[2]["config"]["client.rate"] == 0.1 and first[2]["name"] == "one"
    assert first[2]["settings"] == {"console": "off"}
    assert [named["step"] for _, _, named in logs] == [row["round"] for row in rows]
    written = files.read_rows(tmp_path / "one" / "metrics.csv")
    for row, (name, (values,), _) in zip(written, logs, strict=True):
        assert name == "log"
        for column in ("test_accuracy", "bytes_up_total"):
            assert values[column] == float(row[column])


@pytest.mark.parametrize("said", ["mlflow"], indirect=True)
def test_mlflow_keeps_its_own_folder_unless_it_is_told_of_another(
    said, tmp_path, monkeypatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with trackers.tracking("mlflow", tmp_path / "one", {"rounds": 4}) as write:
        write(ROW)
    names = [name for name, *_ in said]
    assert names == ["set_tracking_uri", "set_experiment", "start_run", "enter",
                     "log_params", "log_metrics", "exit"]  # fmt: skip
    assert said[0][1][0] == (tmp_path / "one" / "mlflow").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    said.clear()
    with trackers.tracking("mlflow", tmp_path / "two", {}):
        assert said[0][0] == "set_experiment"


@pytest.mark.parametrize(
    ("said", "name"), [("wandb", "log"), ("mlflow", "log_metrics")], indirect=["said"]
)
def test_only_numbers_that_all_may_see_are_sent(said, name, tmp_path):
    tracker = "wandb" if name == "log" else "mlflow"
    with trackers.tracking(tracker, tmp_path, {}) as write:
        write(ROW)
    (sent,) = [(args, named) for called, args, named in said if called == name]
    assert sent == (({"round": 2.0, "test_accuracy": 0.5},), {"step": 2})


def test_a_tracker_that_is_not_there_is_said_in_one_line():
    with pytest.raises(ValueError, match="'wandb', 'mlflow', got tracker='x'"):
        trackers.require_installed("x")
    if "wandb" not in sys.modules:
        with pytest.raises(ValueError, match="wandb to be installed"):
            trackers.require_installed("wandb")
