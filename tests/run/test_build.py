"""A config becomes a run, or one line saying why not, before anything is compiled."""

import functools
import importlib
import pathlib

import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits

from configs import default
from fl_sketch.config import parse, privacy
from fl_sketch.engine.loop import initial
from fl_sketch.run import NotFinite, from_config, prepare, run
from fl_sketch.sweep import comparison, grid
from tests.run.configs import config_with, played, quiet, refused, rows_of

# A run with these numbers is one program with all others that have them.
SHORT = {"rounds": 6, "eval_every": 3}


@functools.cache
def short():
    """Returns rows of the defaults."""
    return rows_of(**SHORT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {
            "algorithm": "fedopt",
            "server__optimizer": "yogi",
            "cohort__sampling": "replacement",
            "data__partition": "classes",
        },
        {
            "sketch__operator": "srht",
            "sketch__layout": "leaves",
            "cohort__sampling": "poisson",
            "cohort__dropout": 0.2,
            "cohort__weighting": "examples",
            "data__partition": "power_law",
            "compute__chunk": 3,
        },
    ],
    ids=["fedopt", "safl"],
)
def test_configs_run_and_learn(changes):
    rows = rows_of(rounds=30, eval_every=20, **changes)
    assert [row["round"] for row in rows] == [20, 30]
    assert rows[-1]["test_accuracy"] > 0.3  # guessing: 0.1
    assert rows[-1]["train_loss"] < rows[0]["train_loss"] < 2.4


@pytest.mark.parametrize("changes", [{"algorithm": "ef21"}, {"algorithm": "scaffold"}])
def test_the_servers_mean_over_all_clients_has_their_weights(changes):
    """Some of them take part in a round, and with epochs unlike numbers of steps."""
    steps = {"client__epochs": 1} if changes["algorithm"] == "scaffold" else {}
    alike = {"cohort__weighting": "examples", "data__partition": "power_law"}
    config = config_with(rounds=3, eval_every=3, **alike, **changes, **steps)
    end, sizes = played(config).state, prepare(config).experiment.clients.sizes
    own, mean = (
        (end.clients.local, end.server.memory)
        if steps
        else (end.clients.memory[0], end.server.memory[0])
    )
    weights = sizes / sizes.sum()
    for leaf, expected in zip(*map(jax.tree.leaves, (own, mean)), strict=True):
        weighted = np.tensordot(weights, leaf, 1)
        assert np.abs(weighted).max() > 1e-4
        np.testing.assert_allclose(weighted, expected, atol=1e-5)


@pytest.mark.slow
def test_bytes_are_counted_both_ways():
    row, (d, people) = short()[1], (64 * 10 + 10, 10)
    assert row["bytes_up_total"] == 6 * people * 4 * (d // 20)
    assert row["bytes_down_total"] < 6 * people * 4 * d  # of whole models
    messages = {"cohort__sampling": "everyone", "download": "messages"}
    _, row = rows_of(**SHORT, **messages)
    assert row["bytes_down_total"] == 20 * (4 * d + 5 * 4 * 32)


def test_evaluation_counts_every_test_example_once():
    setup = prepare(config_with(**SHORT))
    params = initial(setup.experiment, setup.roots()).state.server.params
    test = np.random.default_rng(0).permutation(1797)[1797 * 4 // 5 :]
    labels = load_digits().target[test]
    measured = setup.evaluate(setup.hyperparameters, params)
    # Logistic regression from zero guesses class 0 for all.
    assert measured["test_accuracy"] == pytest.approx(np.mean(labels == 0))
    assert measured["test_loss"] == pytest.approx(np.log(10), rel=1e-5)


def test_a_run_that_diverges_stops_and_names_the_round():
    with pytest.raises(NotFinite, match="in round [0-9]+: a smaller client.rate"):
        rows_of(algorithm="fedavg", client__rate=1e38, rounds=20, eval_every=10)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"algorithm": "safll"}, "safl"),
        ({"rounds": 0}, "rounds"),
        ({"client__rate": -0.1}, "client.rate"),
        ({"server__rate": float("nan")}, "server.rate"),
        ({"server__b1": 1.0}, "server.b1"),
        ({"server__optimizer": "adamm"}, "adam"),
        ({"server__schedule": "cosin"}, "cosine"),
        ({"cohort__size": 21}, "size"),
        ({"cohort__sampling": "some"}, "sampling"),
        ({"cohort__dropout": 1.0}, "dropout"),
        ({"data__clients": 2000}, "2000"),
        ({"data__partition": "label_shards", "data__per_client": 99}, "1437"),
        ({"data__name": "digit"}, "digit"),
        ({"data__held_out": 1.0}, "held_out"),
        ({"sketch__operator": "md5"}, "operator"),
        ({"sketch__compression": 0.5}, "compression"),
        ({"model__name": "lenett"}, "lenet"),
        ({"model__init_from": "none.npz"}, "none.npz"),
        ({"compute__devices": 99}, "devices"),
        ({"checkpoint_keep": 1}, "checkpoint_keep"),
        ({"download": "post"}, "download"),
    ],
    ids=str,
)
def test_what_a_config_may_not_say_is_one_line(changes, name):
    with refused(match=name, error=(ValueError, FileNotFoundError)):
        from_config(config_with(**changes))


PLAIN = ("default", "quickstart")  # of which other files say how to run them
CONFIGS = sorted(
    path.stem
    for path in (pathlib.Path(__file__).parents[2] / "configs").glob("[a-z]*.py")
)
COMPARISONS = tuple(name for name in CONFIGS if name.startswith("compare_"))
MORE = ("safl_claims", "finetune", "finetune_minilm", "private_minilm")


@pytest.mark.parametrize("name", CONFIGS)
def test_config_files_keep_to_the_keys_of_the_defaults(name):
    module = importlib.import_module(f"configs.{name}")
    assert f"--config=configs/{name}.py" in module.__doc__ or name in PLAIN
    if not hasattr(module, "get_config"):
        assert name.startswith("compare_")
        return
    config, defaults = module.get_config(), default.get_config()
    assert set(config) == set(defaults) and config.is_locked
    for group, value in defaults.items():
        assert type(config[group]) is type(value)
        if hasattr(value, "keys"):
            assert set(config[group]) == set(value)


@pytest.mark.parametrize("name", [*COMPARISONS, *MORE])
def test_all_methods_of_a_comparison_are_legal_configs_with_legal_grids(name):
    module = importlib.import_module(f"configs.{name}")
    whole = module.get_comparison()
    for method in whole.methods.values():
        config = comparison.config_of(whole, method, [])
        lines = [f"{key}={','.join(map(str, v))}" for key, v in method.tune.items()]
        assert not lines or grid.read_axes(config, lines)
        parse.check(config)
        privacy.check(config)


@pytest.mark.slow
def test_an_operator_that_is_a_matrix_trains_on_two_devices(tmp_path):
    own = {"sketch__stored": True, "sketch__layout": "whole"}
    config = config_with(rounds=2, eval_every=2, **own)
    summary = run(config, tmp_path, say=quiet)
    assert summary["sketch_size"] == 32 and summary["rounds"] == 2


GUARDED = """
import optax
from fl_sketch import algorithms
from fl_sketch.privacy import clipping, mechanism


def mine(loss, *, client_rate, noise_multiplier):
    quiet = mechanism.central(clipping.clip(1.0), noise_multiplier=0.1, denominator=5)
    own = algorithms.fedopt(loss, client_rate=client_rate, server=optax.sgd(1.0))
    return own._replace(mechanism=quiet._replace(noise_multiplier=noise_multiplier))
"""


def test_a_mechanism_of_ones_own_is_not_replaced_in_silence(tmp_path):
    (tmp_path / "own.py").write_text(GUARDED)
    private = {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0}
    private |= {"cohort__sampling": "poisson", "data__classes": 10}
    with refused("without a mechanism", "own.py:mine", "simulate"):
        from_config(config_with(algorithm=f"{tmp_path}/own.py:mine", **private))
