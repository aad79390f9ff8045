"""The study of widths: what it trains, and its rows."""

import math
import sys

import numpy as np
import pytest

from experiments import scaling
from fl_sketch.core import files
from fl_sketch.core.mappings import flat
from fl_sketch.data import datasets
from fl_sketch.sweep import comparison
from fl_sketch.workdir import weights
from tests.run.configs import config_with


def small():
    base = config_with(rounds=6, eval_every=3, data__clients=3, checkpoint_every=3)
    base.cohort.sampling, base.model.name = "everyone", "mlp"
    base.compute.devices = 1
    return scaling.Study(
        base,
        (8,),
        {"adam": (0.01,), "sgd": (1.0,)},
        {"1/10": {"sketch.compression": 10.0}, "b=50": {"sketch.numbers": 50}},
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


@pytest.mark.parametrize("task", scaling.TASKS)
def test_every_server_has_a_twin_and_the_first_one_all_sketches(task):
    study = scaling.study_of(task)
    methods = scaling.comparison_of(study, 8).methods
    twins = [name for name in methods if "," not in name]
    assert len(twins) == len(study.rates) and twins[0] == "Adam"
    own = {name.partition(", ")[2] for name in methods if name.startswith("Adam,")}
    assert own == {*study.sketches}
    for name, method in methods.items():
        config = comparison.config_of(scaling.comparison_of(study, 8), method, ())
        keys = flat(config.to_dict())
        assert keys["model.width"] == 8 and keys["data.clients"] == 5
        assert keys["algorithm"] == ("safl" if "," in name else "fedopt")


@pytest.mark.slow
def test_a_row_has_what_the_model_of_its_run_does_on_all_training_data(done):
    folder, _, runs = done
    assert len(runs) == 5 * 2
    row = next(r for r in runs if r["method"] == "Adam, b=50")
    assert (row["d"], row["b"]) == (str(64 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10), "50")
    own = folder / "width_8" / "adam_b_50" / "seeds" / row["seed"]
    params = weights.load_params(own)
    train = datasets.load("digits").train
    x = np.asarray(train.inputs, np.float32).reshape(len(train.inputs), -1)
    x = x / 255 if x.max() > 1 else x
    for name in ("dense1", "dense2"):
        x = np.maximum(x @ params[name]["kernel"] + params[name]["bias"], 0)
    guess = (x @ params["dense3"]["kernel"] + params["dense3"]["bias"]).argmax(1)
    wrong = np.mean(guess != train.targets)
    assert float(row["train_error"]) == pytest.approx(wrong, abs=2e-3)
    leaves = [leaf.ravel() for part in params.values() for leaf in part.values()]
    length = np.linalg.norm(np.concatenate(leaves))
    assert float(row["norm"]) == pytest.approx(length, rel=1e-5)
    assert {(r["rounds_to_0"], r["rounds_to_100"]) for r in runs} == {("3", "")}
    flatness = {r["method"]: r["flatness"] for r in runs}
    assert flatness["SGD"] == "" and row["width"] == "8"
    assert 0 < float(flatness["Adam"]) < float(flatness["Adam, 1/10"]) <= 1


@pytest.mark.slow
def test_gaps_are_those_of_each_seed_against_its_twin(done):
    folder, lost, runs = done
    by = {(r["method"], r["seed"]): float(r["test_accuracy"]) for r in runs}
    *_, own = lost
    assert len(lost) == 3 and own["method"] == "SGD, 1/10"
    each = [100 * (by["SGD", s] - by["SGD, 1/10", s]) for s in ("0", "1")]
    assert own["gap"] == pytest.approx(np.mean(each), abs=1e-6)
    assert own["half_width"] == pytest.approx(12.706 * abs(each[0] - each[1]) / 2, 1e-3)
    assert own["b_over_dimension"] == pytest.approx(
        int(own["b"]) / own["intrinsic_dimension"]
    )
    assert not math.isnan(own["intrinsic_dimension"])
    assert scaling.LINE.format(**own)
    rows = files.read_rows(folder / "spectra.csv")
    assert [r["round"] for r in rows] == ["0", "3", "6"]


@pytest.mark.slow
def test_the_same_again_trains_nothing_and_has_the_same_rows(done, monkeypatch):
    folder, lost, _ = done
    assert len([*folder.glob("*.png")]) == 3
    monkeypatch.setattr(sys.modules["fl_sketch.run.run"], "_train", None)
    monkeypatch.setattr("fl_sketch.audit.spectrum.of_loss", None)
    assert repr(scaling.run(small(), folder)) == repr(lost)
