"""A run becomes a longer one, begins with weights, and is taken away."""

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
from fl_sketch.run import from_config, load_params, prepare, run
from fl_sketch.workdir import weights
from tests.models import own
from tests.run.configs import (
    Killed,
    begun,
    config_with,
    killed_at,
    quiet,
    read_json,
    refused,
    table,
    table_in,
    untimed,
)

pytestmark = pytest.mark.slow

KEYS = {"eval_every": 5, "checkpoint_every": 3, "compute__devices": 1}


def ran(folder, **changes):
    config = config_with(**KEYS | {"cohort__sampling": "poisson"} | changes)
    return run(config, folder, say=quiet)


def begun_params(**changes):
    """Returns the parameters that a run begins with."""
    return jax.device_get(begun(config_with(**KEYS | changes))).server.params


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("longer")
    return folder, ran(folder, rounds=14)


def test_an_extended_run_is_the_longer_one_bit_for_bit(longer, tmp_path):
    folder, summary = longer
    for rounds in (7, 10, 14):  # between two rows, at one, and the end
        found = ran(tmp_path, rounds=rounds)
    assert untimed(tmp_path) == untimed(folder)
    for name in ("checkpoints/round_00000014.npz", "params.safetensors"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
    ours, theirs = (read_json(at / "config.json") for at in (tmp_path, folder))
    assert ours == theirs
    again = {k: v for k, v in found.items() if k in summary and "second" not in k}
    assert all(summary[k] == v for k, v in again.items() if k != "peak_rss_mb")
    assert ran(tmp_path, rounds=14) == found  # done, whichever way one asks


def test_a_run_that_was_stopped_while_it_became_longer_is_begun_again(longer, tmp_path):
    ran(tmp_path, rounds=7)
    (tmp_path / "summary.json").unlink()  # as far as a kill may let it come
    ran(tmp_path, rounds=14)
    assert untimed(tmp_path) == untimed(longer[0])


NOISY = {"privacy__bound": "clip", "data__classes": 10, "privacy__randomness": "seed"}


@pytest.mark.parametrize(
    ("changes", "more", "words"),
    [
        ({}, {"rounds": 3}, "rounds=3"),
        ({"server__schedule": "cosine"}, {}, "server.schedule=cosine"),
        (
            {"algorithm": "onebit_adam", "server__warmup": 0.5},
            {},
            "server.warmup=0.5",
        ),
        (NOISY | {"privacy__noise_multiplier": 1.0}, {}, "privacy.randomness=seed"),
        ({}, {"server__rate": 0.5}, "server.rate=0.5"),
        (
            NOISY | {"privacy__randomness": "system", "privacy__noise_multiplier": 1.0},
            {},
            "the end of a private run",
        ),
    ],
    ids=range(6),
)
def test_a_length_that_would_change_what_was_played_is_refused(
    longer, tmp_path, changes, more, words
):
    folder = tmp_path if changes else longer[0]
    if changes:
        ran(folder, **{"rounds": 4, **changes})
    with refused(words):
        ran(folder, **{"rounds": 28, **changes, **more})
    assert (folder / "summary.json").exists()


def test_a_longer_private_run_needs_the_noise_that_it_began_with(tmp_path):
    private = NOISY | {"privacy__randomness": "system", "eval_every": 1}
    private |= {"cohort__sampling": "poisson"}
    for name, noise in {"target_epsilon": 20.0, "noise_multiplier": 1.0}.items():
        keys, folder = private | {f"privacy__{name}": noise}, tmp_path / name
        killed_at(1, config_with(**KEYS | keys, rounds=3), folder)
        if name == "target_epsilon":
            with refused("privacy.target_epsilon", "rounds=3"):
                run(config_with(**KEYS | keys, rounds=6), folder, say=quiet)
            continue
        summary = run(config_with(**KEYS | keys, rounds=6), folder, say=quiet)
        assert summary["rounds"] == 6 and len(table_in(folder)) == 6


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


@pytest.mark.parametrize("form", ["folder", "npz", "safetensors"])
def test_a_run_begins_with_the_weights_of_another(longer, tmp_path, form):
    source = longer[0]
    if form != "folder":
        source = tmp_path / f"weights.{form}"
        params_io.save(source, weights.read(str(longer[0])))
    params = begun_params(model__init_from=str(source))
    jax.tree.map(np.testing.assert_array_equal, params, load_params(longer[0]))


def test_what_is_fresh_begins_anew(longer):
    fresh = {"model__fresh": "dense/bias"}
    params = begun_params(model__init_from=str(longer[0]), **fresh)
    assert not params["dense"]["bias"].any() and params["dense"]["kernel"].any()


def test_statistics_are_taken_along(tmp_path):
    name = f"{own.__file__}:normed"
    ran(tmp_path / "one", rounds=2, model__name=name)
    found = load_params(tmp_path / "one")
    assert (
        isinstance(found, Stateful) and found.state["batch_stats"]["norm"]["var"].any()
    )
    params = begun_params(model__name=name, model__init_from=str(tmp_path / "one"))
    jax.tree.map(np.testing.assert_array_equal, params, found)


def test_weights_that_do_not_fit_get_one_line(longer, tmp_path):
    np.savez(tmp_path / "few.npz", **{"dense/bias": np.zeros(10)})
    np.savez(
        tmp_path / "wide.npz",
        **{"dense/bias": np.zeros(9), "dense/kernel": np.zeros((10, 64))},
    )
    np.savez(tmp_path / "more.npz", **weights.read(str(longer[0])), other=np.zeros(3))
    whole = weights.read(str(longer[0]))
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
        "few.npz": ["dense/kernel", "dense/bias", "model.fresh=dense"],
        "wide.npz": ["(10,)", "(9,)", "model.fresh=dense"],
        "more.npz": ["other"],
        "bad.npz": ["bad.npz"],
        "w.txt": ["init_from", "'safetensors', 'npz'"],
        "none.npz": ["none.npz"],
        "nan.npz": ["finite", "float32", "dense/"],
        "large.npz": ["finite", "float32", "dense/"],
        "complex.npz": ["complex128"],
        "words.npz": ["<U"],
    }
    for name, words in wrong.items():
        with refused(*words, error=(ValueError, FileNotFoundError)):
            from_config(config_with(model__init_from=str(tmp_path / name)))
    with refused("'dense/bias'"):
        from_config(
            config_with(model__init_from=str(longer[0]), model__fresh="dense/bia")
        )


def test_weights_that_changed_are_not_gone_on_with(longer, tmp_path):
    source, found = tmp_path / "w.npz", weights.read(str(longer[0]))
    params_io.save(source, found)
    changes = {"model__init_from": str(source), "rounds": 2}
    ran(tmp_path / "run", **changes)
    params_io.save(source, {name: array + 1 for name, array in found.items()})
    with refused(source, tmp_path / "run"):
        ran(tmp_path / "run", **changes)


def test_a_private_run_refuses_weights_that_saw_its_data(longer, tmp_path):
    """By the names of data sets, which are inherited."""
    private = {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0}
    private |= {"data__classes": 10, "cohort__sampling": "poisson"}
    table(tmp_path / "own.npz", 0)
    begun = {"data__name": "npz/own", "data__clients": 6, "cohort__size": 3,
             "data__classes": 3, "model__init_from": "", "rounds": 2}  # fmt: skip
    run(config_with(**KEYS | begun), tmp_path / "run", str(tmp_path), say=quiet)
    for source in (longer[0], longer[0] / "params.safetensors"):
        with refused("'digits'", source, "data.public"):
            from_config(config_with(**private, model__init_from=str(source)))
    public = private | {"data__public": True, "model__init_from": str(longer[0])}
    assert prepare(config_with(**public)).identity.trained_on == ("digits",)
    other = private | begun | {"model__init_from": str(tmp_path / "run")}
    with refused("'own'"):
        from_config(config_with(**other), str(tmp_path))
    shutil.copy(tmp_path / "own.npz", tmp_path / "new.npz")
    other |= {"data__name": "npz/new"}  # which no name tells
    seen = prepare(config_with(**other), str(tmp_path)).identity.trained_on
    assert {*seen} == {"own", "new"}


def test_a_longer_private_run_may_not_be_fetched_in_another_way(tmp_path):
    private = {"privacy__bound": "clip", "privacy__noise_multiplier": 2.0,
               "privacy__relation": "replace_one",
               "data__classes": 10, "data__clients": 20, "cohort__size": 10,
               "sketch__compression": 2.0, "checkpoint_every": 1}  # fmt: skip
    # First visits cost missed messages too, which later visits make up for.
    killed_at(1, config_with(**private, rounds=3, eval_every=1), tmp_path)
    longer = config_with(**private, rounds=8, eval_every=1)
    with refused("download=cheapest", "rounds=8"):
        run(longer, tmp_path, say=quiet)


@pytest.mark.parametrize("at", ["config.json", "summary.json"])
def test_a_kill_between_two_files_of_a_longer_run_loses_nothing(
    longer, tmp_path, monkeypatch, at
):
    short = ran(tmp_path, rounds=7)

    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        if at == "config.json":
            patched.setattr(files, "write_text", killed)
        else:
            patched.setattr(type(tmp_path), "unlink", killed)
        ran(tmp_path, rounds=14)
    if at == "config.json":
        assert ran(tmp_path, rounds=7)["test_loss"] == short["test_loss"]
    ran(tmp_path, rounds=14)
    assert untimed(tmp_path) == untimed(longer[0])


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
