"""A run becomes a longer one, begins with weights, and is taken away."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from fl_sketch import models
from fl_sketch.data import datasets
from fl_sketch.models import params_io
from fl_sketch.run import load_params, run, task_of
from fl_sketch.workdir import weights
from tests.run.configs import (
    config_with,
    quiet,
    read_json,
    refused,
    untimed,
)

pytestmark = pytest.mark.slow

KEYS = {"eval_every": 5, "checkpoint_every": 3, "compute__devices": 1}


def ran(folder, extend=False, **changes):
    config = config_with(**KEYS | {"cohort__sampling": "poisson"} | changes)
    return run(config, folder, extend=extend, say=quiet)


def begun_params(**changes):
    """Returns the parameters that a run begins with."""
    task = task_of(config_with(**KEYS | changes))
    return jax.device_get(task.start(task.roots(task.secret))).server.params


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("longer")
    return folder, ran(folder, rounds=14)


def test_an_extended_run_is_the_longer_one_bit_for_bit(longer, tmp_path):
    (folder, summary), first = longer, 7
    ran(tmp_path, rounds=first)
    found = ran(tmp_path, rounds=14, extend=True)
    assert untimed(tmp_path) == untimed(folder)
    for name in ("checkpoints/round_00000014.npz", "params.safetensors"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
    ours, theirs = (read_json(at / "config.json") for at in (tmp_path, folder))
    assert ours == theirs | {"extended_from": [first]}
    again = {k: v for k, v in found.items() if k in summary and "second" not in k}
    assert all(summary[k] == v for k, v in again.items() if k != "peak_rss_mb")
    assert ran(tmp_path, rounds=14) == found  # done, whichever way one asks


NOISY = {"privacy__bound": "clip", "data__classes": 10, "privacy__randomness": "seed"}


@pytest.mark.parametrize(
    ("changes", "more", "words"),
    [
        ({}, {"rounds": 3}, "extend=3"),
        ({"server__schedule": "cosine"}, {}, "server.schedule=cosine"),
        (NOISY | {"privacy__noise_multiplier": 1.0}, {}, "privacy.randomness=seed"),
        ({}, {"server__rate": 0.5}, "server.rate=0.5"),
    ],
    ids=range(4),
)
def test_a_length_that_would_change_what_was_played_is_refused(
    tmp_path, changes, more, words
):
    ran(tmp_path, **{"rounds": 4, **changes})
    with refused(words):
        ran(tmp_path, extend=True, **{"rounds": 8, **changes, **more})
    assert (tmp_path / "summary.json").exists()


def test_the_model_is_taken_away_with_what_one_must_know(longer):
    folder, summary = longer
    params = load_params(folder)
    images = datasets.load("digits").test.inputs
    logits = images.reshape(len(images), -1) @ params["dense"]["kernel"].T
    model = models.build("logistic", 10)
    np.testing.assert_allclose(
        logits + params["dense"]["bias"],
        model.apply({"params": params}, images),
        rtol=1e-4,
        atol=1e-5,
    )
    saved = load_file(folder / "params.safetensors")
    np.testing.assert_array_equal(saved["dense/kernel"], params["dense"]["kernel"])
    about = read_json(folder / "params.json")
    assert about["model"] == "logistic" and about["outputs"] == 10
    assert about["inputs"] == {"shape": [8, 8, 1], "dtype": "float32", "divided_by": 1}
    assert about["arrays"] == {"dense/bias": [10], "dense/kernel": [10, 64]}
    assert about["round"] == summary["rounds"] == 14


@pytest.mark.parametrize("form", ["folder", "npz"])
def test_a_run_begins_with_the_weights_of_another(longer, tmp_path, form):
    source = longer[0]
    if form != "folder":
        source = tmp_path / f"weights.{form}"
        params_io.save(source, weights.in_run(longer[0]))
    params = begun_params(model__init_from=str(source))
    jax.tree.map(np.testing.assert_array_equal, params, load_params(longer[0]))


def test_what_is_fresh_begins_anew(longer):
    fresh = {"model__fresh": "dense/bias"}
    params = begun_params(model__init_from=str(longer[0]), **fresh)
    assert not params["dense"]["bias"].any() and params["dense"]["kernel"].any()


def test_weights_that_do_not_fit_get_one_line(longer, tmp_path):
    np.savez(tmp_path / "few.npz", **{"dense/bias": np.zeros(10)})
    np.savez(
        tmp_path / "wide.npz",
        **{"dense/bias": np.zeros(9), "dense/kernel": np.zeros((10, 64))},
    )
    np.savez(tmp_path / "more.npz", **weights.in_run(longer[0]), other=np.zeros(3))
    whole = weights.in_run(longer[0])
    for name, cast in {
        "nan": lambda x: x * np.nan,
        "complex": lambda x: x.astype(complex),
    }.items():
        np.savez(tmp_path / f"{name}.npz", **{k: cast(v) for k, v in whole.items()})
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    wrong = {
        "few.npz": "dense/kernel",
        "wide.npz": "dense/bias",
        "more.npz": "other",
        "bad.npz": "bad.npz",
        "none.npz": "none.npz",
        "nan.npz": "dense/",
        "complex.npz": "complex128",
    }
    for name, said in wrong.items():
        with refused(said, error=(ValueError, FileNotFoundError)):
            task_of(config_with(model__init_from=str(tmp_path / name)))
    with refused("'dense/bias'"):
        task_of(config_with(model__init_from=str(longer[0]), model__fresh="dense/bia"))
