"""The study of widths: what it trains, and its rows."""

import sys

import jax
import numpy as np
import pytest

from experiments import scaling
from fl_sketch.core import files
from fl_sketch.data import datasets
from fl_sketch.run import load_trained, predict
from tests.run.configs import config_with


def small():
    base = config_with(rounds=6, eval_every=3, data__clients=3, checkpoint_every=3)
    base.cohort.sampling, base.model.name = "everyone", "mlp"
    base.compute.devices = 1
    return scaling.Study(
        base,
        (8,),
        {"adam": (0.01,), "sgd": (1.0,)},
        {"1/10": {"sketch.compression": 10.0}, "b=50": {"sketch.size": 50}},
        shared=("1/10",),
        seeds=(0, 1),
        widen=0,
        lanczos=(100, 2, 5),
        targets=(0.0, 1.0),
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scaling")
    lost = scaling.run(small(), folder)
    return folder, lost, files.read_rows(folder / "runs.csv")


@pytest.mark.slow
def test_a_row_has_what_the_model_of_its_run_does_on_all_training_data(done):
    folder, _, runs = done
    assert len(runs) == 5 * 2
    row = next(r for r in runs if r["method"] == "Adam, b=50")
    assert (row["d"], row["b"]) == (str(64 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10), "50")
    trained = load_trained(folder / "width_8/adam_b_50/seeds" / row["seed"])
    train = datasets.load("digits").train
    wrong = np.mean(predict(trained, train.inputs).argmax(1) != train.targets)
    assert float(row["train_error"]) == pytest.approx(wrong, abs=2e-3)
    leaves = [leaf.ravel() for leaf in jax.tree.leaves(trained.params)]
    length = np.linalg.norm(np.concatenate(leaves))
    assert float(row["norm"]) == pytest.approx(length, rel=1e-5)
    assert {(r["rounds_to_0"], r["rounds_to_100"]) for r in runs} == {("3", "")}
    flatness = {r["method"]: r["flatness"] for r in runs}
    assert flatness["SGD"] == ""
    assert 0 < float(flatness["Adam"]) < float(flatness["Adam, 1/10"]) <= 1


@pytest.mark.slow
def test_the_same_again_trains_nothing_and_has_the_same_rows(done, monkeypatch):
    folder, lost, _ = done
    assert len([*folder.glob("*.png")]) == 3
    monkeypatch.setattr(sys.modules["fl_sketch.run.run"], "Signals", None)
    monkeypatch.setattr("fl_sketch.audit.spectrum.of_loss", None)
    assert repr(scaling.run(small(), folder)) == repr(lost)
