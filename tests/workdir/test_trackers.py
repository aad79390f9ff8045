"""Rows for wandb and TensorBoard, with stand-ins that keep what they are given."""

import sys
import types

import pytest

from fl_sketch.workdir import trackers

ROW = {"round": 2, "test_accuracy": 0.5, "train_loss": 1.0, "how": "x"}


class Calls(list):
    """A stand-in for a module: everything that is called of it is written down."""

    def __getattr__(self, name):
        def called(*args, **named):
            self.append((name, args, named))
            return self

        return called


@pytest.fixture
def calls(monkeypatch, request):
    one, module = Calls(), types.ModuleType(request.param)
    module.__getattr__ = one.__getattr__
    monkeypatch.setitem(sys.modules, request.param, module)
    return one


@pytest.mark.parametrize("calls", [trackers.WANDB], indirect=True)
def test_wandb_gets_what_may_be_published_under_an_id_of_the_folder(calls, tmp_path):
    for private in (True, False):
        with trackers.wandb(tmp_path, {"client.rate": 0.1}, private) as write:
            write(ROW)
    (_, _, first), (_, (hidden,), at), _, (_, _, again), (_, (whole,), _), _ = calls
    assert hidden == {"test_accuracy": 0.5} and at == {"step": 2}
    assert whole == {"test_accuracy": 0.5, "train_loss": 1.0}
    assert first["id"] == again["id"] and first["config"] == {"client.rate": 0.1}
    with trackers.wandb(tmp_path.parent, {}, False):
        assert calls[-1][2]["id"] != first["id"]


@pytest.mark.parametrize("calls", [trackers.TENSORBOARD], indirect=True)
def test_tensorboard_gets_what_may_be_published(calls, tmp_path):
    with trackers.tensorboard(tmp_path, 4, True) as write:
        write(ROW)
    assert calls[0][2] == {"purge_step": 5}
    assert [args for name, args, _ in calls if name == "add_scalar"] == [
        ("test_accuracy", 0.5, 2)
    ]


def test_a_tracker_that_is_not_there_is_one_line():
    with pytest.raises(ValueError, match="pip install no_such"):
        trackers.require_installed("no_such")
