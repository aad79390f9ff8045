"""The laboratory of dimension: what it trains, and what it says of that."""

import math
import sys

import numpy as np
import pytest

from fl_sketch.config.parse import flat
from fl_sketch.core import files
from fl_sketch.data import datasets
from fl_sketch.experiments import scaling
from fl_sketch.experiments.scaling import Laboratory
from fl_sketch.sweep import comparison
from fl_sketch.workdir import weights
from tests.run.configs import config_with

pytestmark = pytest.mark.slow


def small():
    base = config_with(rounds=6, eval_every=3, data__clients=3, checkpoint_every=3)
    base.cohort.sampling, base.model.name = "everyone", "mlp"
    base.compute.devices = 1
    return Laboratory(
        base,
        (4, 8),
        {"adam": (0.01, 0.03), "scalar_adam": (0.01, 0.03), "sgd": (1.0,)},
        {"1/10": {"sketch.compression": 10.0}, "b=50": {"sketch.numbers": 50}},
        shared=("1/10",),
        seeds=(0, 1),
        widen=0,
        examples=100,
        probes=2,
        lanczos=5,
        targets=(0.0, 1.0),
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scaling")
    lost = scaling.run(small(), folder, say=lambda line: None)
    return folder, lost, files.read_rows(folder / "runs.csv")


def test_every_server_has_a_twin_and_the_first_one_all_sketches():
    compared = scaling.comparison_of(small(), 8)
    assert [*compared.methods] == [
        "Adam",
        "Adam, 1/10",
        "Adam, b=50",
        "scalar Adam",
        "scalar Adam, 1/10",
        "SGD",
        "SGD, 1/10",
    ]
    assert compared.base.model.width == 8
    config = comparison.config_of(compared, compared.methods["SGD, 1/10"], ())
    found = flat(config.to_dict())
    assert found["server.optimizer"] == "sgd" and found["algorithm"] == "safl"


def test_a_row_says_what_the_model_of_its_run_does_on_all_training_data(done):
    folder, _, runs = done
    assert len(runs) == 2 * 7 * 2
    row = next(r for r in runs if r["width"] == "8" and r["method"] == "Adam, b=50")
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


def test_rounds_to_a_target_are_those_of_the_first_row_that_has_it(done):
    _, _, runs = done
    for row in runs:
        assert (row["rounds_to_0"], row["rounds_to_100"]) == ("3", "")


def test_a_second_moment_of_a_sketch_is_flatter_than_one_without(done):
    _, _, runs = done
    flatness = {(r["method"], r["width"]): r["flatness"] for r in runs}
    assert flatness["SGD", "8"] == flatness["scalar Adam", "8"] == ""
    plain, sketched = (float(flatness[m, "8"]) for m in ("Adam", "Adam, 1/10"))
    assert 0 < plain < sketched <= 1


def test_gaps_are_those_of_each_seed_against_its_twin(done):
    _, lost, runs = done
    assert len(lost) == 2 * 4
    by = {(r["width"], r["method"], r["seed"]): float(r["test_accuracy"]) for r in runs}
    own = next(r for r in lost if (r["width"], r["method"]) == (4, "SGD, 1/10"))
    each = [100 * (by["4", "SGD", s] - by["4", "SGD, 1/10", s]) for s in ("0", "1")]
    assert own["gap"] == pytest.approx(np.mean(each), abs=1e-6)
    assert own["half_width"] == pytest.approx(12.706 * abs(each[0] - each[1]) / 2, 1e-3)
    assert own["b_over_dimension"] == pytest.approx(
        int(own["b"]) / own["intrinsic_dimension"]
    )
    assert not math.isnan(own["intrinsic_dimension"])


def test_spectra_are_of_the_start_and_of_every_checkpoint(done):
    folder, _, _ = done
    rows = files.read_rows(folder / "spectra.csv")
    assert [(r["width"], r["round"]) for r in rows] == [
        (width, number) for width in ("4", "8") for number in ("0", "3", "6")
    ]


def test_the_same_again_trains_nothing_and_says_the_same(done, monkeypatch):
    folder, lost, _ = done
    pictures = [*folder.glob("*.png")]
    assert len(pictures) == 3
    monkeypatch.setattr(sys.modules["fl_sketch.run.run"], "_train", None)
    monkeypatch.setattr("fl_sketch.audit.spectrum.of_loss", None)
    again = scaling.run(small(), folder, say=lambda line: None)
    assert repr(again) == repr(lost)


def test_a_width_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="width to be one of '4', '8', got width='5'"):
        scaling.run(small(), tmp_path, widths=(5,))
