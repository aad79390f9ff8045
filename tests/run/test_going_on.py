"""A run becomes a longer one, begins with weights, and is taken away."""

import csv
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from fl_sketch import models
from fl_sketch.core import files
from fl_sketch.core.trees import Stateful
from fl_sketch.data import datasets
from fl_sketch.models import params_io
from fl_sketch.run import build, load_params, run
from fl_sketch.sweep.sweep import sweep
from fl_sketch.workdir import folder, weights
from fl_sketch.workdir.folder import TIMES
from tests.models import own
from tests.run.configs import config_with

pytestmark = pytest.mark.slow

KEYS = {"eval_every": 5, "checkpoint_every": 3, "compute__devices": 1}


def ran(folder, extend=False, **changes):
    config = config_with(**KEYS | {"cohort__sampling": "poisson"} | changes)
    return run(config, folder, extend=extend, say=lambda line: None)


def rows_of(folder):
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("longer")
    return folder, ran(folder, rounds=14)


@pytest.mark.parametrize("first", [7, 10])  # between two rows, and at one
def test_an_extended_run_is_the_longer_one_bit_for_bit(longer, tmp_path, first):
    folder, summary = longer
    ran(tmp_path, rounds=first)
    found = ran(tmp_path, rounds=14, extend=True)
    assert rows_of(tmp_path) == rows_of(folder)
    for name in ("checkpoints/round_00000014.npz", "params.safetensors"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
    kept, theirs = (
        json.loads((f / "config.json").read_text()) for f in (tmp_path, folder)
    )
    assert kept == theirs | {"extended_from": [first]}
    again = {k: v for k, v in found.items() if k in summary and "second" not in k}
    assert all(summary[k] == v for k, v in again.items() if k != "peak_rss_mb")
    assert ran(tmp_path, rounds=14) == found  # done, whichever way one asks


def test_a_run_that_was_stopped_while_it_became_longer_is_begun_again(longer, tmp_path):
    ran(tmp_path, rounds=7)
    (tmp_path / "summary.json").unlink()  # as far as a kill may let it come
    ran(tmp_path, rounds=14, extend=True)
    assert rows_of(tmp_path) == rows_of(longer[0])


NOISY = {"privacy__bound": "clip", "data__classes": 10, "privacy__randomness": "seed"}


@pytest.mark.parametrize(
    ("changes", "more", "words"),
    [
        ({}, {"rounds": 3}, "extend >= 4, the rounds of the run, got extend=3"),
        ({"server__schedule": "cosine"}, {}, "server.schedule=cosine, which is a part"),
        (
            {"algorithm": "onebit_adam", "server__warmup": 0.5},
            {},
            "server.warmup=0.5, which is a part of all 4 rounds",
        ),
        (NOISY | {"privacy__noise_multiplier": 1.0}, {}, "got privacy.randomness=seed"),
        ({}, {"server__rate": 0.5}, "server.rate=0.5.*take another workdir"),
    ],
)
def test_a_length_that_would_change_what_was_played_is_refused(
    tmp_path, changes, more, words
):
    ran(tmp_path, **{"rounds": 4, **changes})
    with pytest.raises(ValueError, match=words) as caught:
        ran(tmp_path, extend=True, **{"rounds": 8, **changes, **more})
    assert "\n" not in str(caught.value)
    assert (tmp_path / "summary.json").exists()


def test_a_longer_private_run_needs_noise_that_was_planned_for_it(tmp_path):
    private = {"privacy__bound": "clip", "data__classes": 10, "rounds": 4}
    private |= {"privacy__target_epsilon": 20.0}
    ran(tmp_path / "one", **private)
    with pytest.raises(ValueError, match="privacy.planned_rounds says beforehand"):
        ran(tmp_path / "one", extend=True, **private | {"rounds": 8})
    planned = private | {"privacy__planned_rounds": 8}
    ran(tmp_path / "two", **planned)  # its secret is gone, and so are its rounds
    with pytest.raises(ValueError, match="the secret of the run.*is gone"):
        ran(tmp_path / "two", extend=True, **planned | {"rounds": 8})


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
    about = json.loads((folder / "params.json").read_text())
    assert about["model"] == "logistic" and about["outputs"] == 10
    assert about["inputs"] == {"shape": [8, 8, 1], "dtype": "float32", "divided_by": 1}
    assert about["arrays"] == {"dense/bias": [10], "dense/kernel": [10, 64]}
    assert about["round"] == summary["rounds"] == 14


@pytest.mark.parametrize("form", ["folder", "npz", "safetensors"])
def test_a_run_begins_with_the_weights_of_another(longer, tmp_path, form):
    source = longer[0]
    if form != "folder":
        source = tmp_path / f"weights.{form}"
        params_io.save(source, weights.in_run(longer[0]))
    built = build(config_with(model__init_from=str(source), **KEYS))
    params = jax.device_get(built.start()).server.params
    jax.tree.map(np.testing.assert_array_equal, params, load_params(longer[0]))


def test_what_is_fresh_begins_anew(longer):
    changes = {"model__init_from": str(longer[0]), "model__fresh": "dense/bias"}
    params = jax.device_get(build(config_with(**KEYS, **changes)).start()).server.params
    assert not params["dense"]["bias"].any() and params["dense"]["kernel"].any()


def test_statistics_are_taken_along(tmp_path):
    name = f"{own.__file__}:normed"
    ran(tmp_path / "one", rounds=2, model__name=name)
    found = load_params(tmp_path / "one")
    assert (
        isinstance(found, Stateful) and found.state["batch_stats"]["norm"]["var"].any()
    )
    changes = {"model__name": name, "model__init_from": str(tmp_path / "one")}
    state = jax.device_get(build(config_with(**KEYS, **changes)).start())
    jax.tree.map(np.testing.assert_array_equal, state.server.params, found)


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
        "large": lambda x: x.astype(float) + 1e300,
        "complex": lambda x: x.astype(complex),
        "words": lambda x: x.astype(str),
    }.items():
        np.savez(tmp_path / f"{name}.npz", **{k: cast(v) for k, v in whole.items()})
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    (tmp_path / "w.txt").write_text("")
    wrong = {
        "few.npz": "init_from to have dense/kernel, got dense/bias",
        "wide.npz": r"of shape \(10,\), got \(9,\): fresh=dense begins it anew",
        "more.npz": "arrays of the model alone, got other",
        "bad.npz": "to hold arrays by name",
        "w.txt": "ending of init_from to be one of 'safetensors', 'npz'",
        "none.npz": "a run's folder or a file",
        "nan.npz": "finite numbers of float32 in dense/",
        "large.npz": "finite numbers of float32 in dense/",
        "complex.npz": "of numbers, got complex128",
        "words.npz": "of numbers, got <U",
    }
    for name, words in wrong.items():
        with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
            build(config_with(model__init_from=str(tmp_path / name)))
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="Did you mean 'dense/bias'"):
        build(config_with(model__init_from=str(longer[0]), model__fresh="dense/bia"))


def test_weights_that_changed_are_not_gone_on_with(longer, tmp_path):
    source, found = tmp_path / "w.npz", weights.in_run(longer[0])
    params_io.save(source, found)
    changes = {"model__init_from": str(source), "rounds": 2}
    ran(tmp_path / "run", **changes)
    params_io.save(source, {name: array + 1 for name, array in found.items()})
    with pytest.raises(ValueError, match="as it was when the run"):
        ran(tmp_path / "run", **changes)


def test_the_best_point_of_a_sweep_goes_on_as_its_own_run(tmp_path):
    config = config_with(**KEYS, rounds=7)
    over = ["client.rate=0.001,0.1", "seed=1,2", "sketch.compression=10,20"]
    found = sweep(config, over, tmp_path / "sweep", say=lambda line: None)
    best = {k: found["best"][k] for k in ("client.rate", "seed", "sketch.compression")}
    assert files.read_rows(tmp_path / "sweep/best/metrics.csv")[-1]["round"] == "7"
    config.update_from_flattened_dict(best)
    config.rounds = 14
    run(config, tmp_path / "alone", say=lambda line: None)
    run(config, tmp_path / "sweep/best", extend=True, say=lambda line: None)
    assert rows_of(tmp_path / "sweep/best") == rows_of(tmp_path / "alone")
    one, other = (
        tmp_path / name / "checkpoints/round_00000014.npz"
        for name in ("sweep/best", "alone")
    )
    assert one.read_bytes() == other.read_bytes()


def test_the_best_point_of_a_sweep_is_taken_away(tmp_path):
    config = config_with(**KEYS, rounds=4)
    sweep(config, ["client.rate=0.01,0.1"], tmp_path, say=lambda line: None)
    about = json.loads((tmp_path / "best/params.json").read_text())
    assert about["round"] == 4 and about["outputs"] == 10
    params = params_io.tree_of(params_io.load(tmp_path / "best/params.safetensors"))
    jax.tree.map(np.testing.assert_array_equal, params, load_params(tmp_path / "best"))
    with pytest.raises(ValueError, match="of a sweep: .*best is its best run"):
        load_params(tmp_path)


def test_a_longer_private_run_may_not_be_fetched_in_another_way(tmp_path):
    private = {"privacy__bound": "clip", "privacy__noise_multiplier": 2.0,
               "privacy__planned_rounds": 8, "privacy__relation": "replace_one",
               "data__classes": 10, "data__clients": 20, "cohort__size": 10,
               "server__optimizer": "sgd", "checkpoint_every": 1}  # fmt: skip

    def stop(_):
        raise KeyboardInterrupt

    config = config_with(**private, rounds=3, eval_every=1)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, on_row=stop, say=lambda line: None)
    longer = config_with(**private, rounds=8, eval_every=1)
    with pytest.raises(ValueError, match="fetch the same way in both lengths"):
        run(longer, tmp_path, extend=True, say=lambda line: None)


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_run_that_is_refused_more_rounds_is_as_it_was(tmp_path):
    private = {"privacy__bound": "clip", "data__classes": 10, "rounds": 4}
    private |= {"privacy__target_epsilon": 20.0, "privacy__planned_rounds": 8}
    summary = ran(tmp_path, **private)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="the secret of the run.*is gone"):
        ran(tmp_path, extend=True, **private | {"rounds": 8})
    assert contents(tmp_path) == before and ran(tmp_path, **private) == summary


@pytest.mark.parametrize("at", ["config.json", "summary.json"])
def test_a_kill_between_two_files_of_a_longer_run_loses_nothing(
    longer, tmp_path, monkeypatch, at
):
    short = ran(tmp_path, rounds=7)

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        if at == "config.json":
            patched.setattr(folder, "write_text", killed)
        else:
            patched.setattr(type(tmp_path), "unlink", killed)
        ran(tmp_path, rounds=14, extend=True)
    if at == "config.json":
        assert ran(tmp_path, rounds=7) == short
    ran(tmp_path, rounds=14, extend=True)
    assert rows_of(tmp_path) == rows_of(longer[0])


def test_a_longer_run_looked_at_its_clients_as_often(tmp_path):
    looked = {"data__held_out": 0.2, "clients_every": 10}
    ran(tmp_path / "one", rounds=15, **looked)
    ran(tmp_path / "one", rounds=20, extend=True, **looked)
    ran(tmp_path / "two", rounds=20, **looked)
    found = [(tmp_path / name / "clients.csv").read_bytes() for name in ("one", "two")]
    assert found[0] == found[1]


HALF = """
import flax.linen as nn
import jax.numpy as jnp


class Half(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x):
        x = x.reshape(len(x), -1)
        return nn.Dense(self.classes, param_dtype=jnp.bfloat16, name="last")(x)


def half(classes):
    return Half(classes)
"""


def test_parameters_of_16_bits_are_kept_and_taken_away_as_such(tmp_path):
    (tmp_path / "half.py").write_text(HALF)
    ran(tmp_path / "run", rounds=2, model__name=f"{tmp_path}/half.py:half")
    params = load_params(tmp_path / "run")["last"]
    again = params_io.load(tmp_path / "run" / "params.safetensors")
    assert params["kernel"].dtype == again["last/kernel"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(params["kernel"], again["last/kernel"])


def test_a_run_that_was_killed_at_its_end_leaves_its_parameters(longer, tmp_path):
    shutil.copytree(longer[0], tmp_path / "run")
    for name in ("params.safetensors", "params.json", "summary.json"):
        (tmp_path / "run" / name).unlink()
    ran(tmp_path / "run", rounds=14)
    for name in ("params.safetensors", "params.json"):
        ours, theirs = (at / name for at in (tmp_path / "run", longer[0]))
        assert ours.read_bytes() == theirs.read_bytes()


def test_weights_of_the_same_people_are_not_public(longer, tmp_path):
    private = {"privacy__bound": "clip", "data__classes": 10, "rounds": 4,
               "cohort__sampling": "poisson"}  # fmt: skip
    private |= {"privacy__target_epsilon": 20.0}
    for source in (longer[0], longer[0] / "params.safetensors"):
        with pytest.raises(ValueError, match="weights of public data in a private run"):
            build(config_with(**private, model__init_from=str(source)))
    shutil.copy(longer[0] / "params.safetensors", tmp_path / "known.safetensors")
    named = str(tmp_path / "known.safetensors")
    assert build(config_with(**private, model__init_from=named)).private
