"""A config becomes a run, or one line saying why not, before anything is compiled."""

import functools
import gc
import importlib
import pathlib
import weakref

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits

from configs import default
from fl_sketch.config import parse, privacy
from fl_sketch.core import free_memory
from fl_sketch.run import NotFinite, prepare, run, task_of
from fl_sketch.sweep import comparison, grid
from tests.run.configs import begun, config_with, quiet, refused, rows_of

# A run with these numbers is one program with all others that have them.
SHORT = {"rounds": 6, "eval_every": 3}


@functools.cache
def short():
    """Returns rows of the defaults."""
    return rows_of(**SHORT)


def test_large_arrays_of_an_earlier_run_are_let_go(monkeypatch):
    gc.disable()
    try:
        left = {"array": jnp.ones(2**20)}
        left["itself"] = left
        array = weakref.ref(left["array"])
        del left
        monkeypatch.setattr(free_memory, "LARGE", 2**40)
        prepare(config_with(**SHORT))
        assert array() is not None
        monkeypatch.setattr(free_memory, "LARGE", 2**22)
        prepare(config_with(**SHORT))
        assert array() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "changes",
    [
        {
            "algorithm": "fedavg",
            "server__rate": 1.0,
            "client__proximal": 0.1,
            "cohort__sampling": "everyone",
            "data__partition": "dirichlet",
        },
        {
            "algorithm": "fedopt",
            "server__optimizer": "yogi",
            "cohort__sampling": "replacement",
            "data__partition": "classes",
        },
        {
            "algorithm": "safl",
            "server__optimizer": "paper_amsgrad",
            "data__partition": "label_shards",
            "compute__chunk": 3,
        },
        {
            "sketch__operator": "srht",
            "sketch__layout": "leaves",
            "cohort__sampling": "poisson",
            "cohort__dropout": 0.2,
            "data__partition": "power_law",
            "model__label_smoothing": 0.1,
        },
    ],
    ids=lambda changes: ",".join(f"{k}={v}" for k, v in changes.items()),
)
def test_configs_run_and_learn(changes):
    rows = rows_of(rounds=30, eval_every=20, **changes)
    assert [row["round"] for row in rows] == [20, 30]
    assert rows[-1]["test_accuracy"] > 0.3  # guessing: 0.1
    assert rows[-1]["train_loss"] < rows[0]["train_loss"] < 2.4


def test_bytes_are_counted_both_ways():
    row, (d, people) = short()[1], (64 * 10 + 10, 10)
    assert row["bytes_up_total"] == 6 * people * 4 * (d // 20)
    assert row["bytes_down_total"] < 6 * people * 4 * d  # of whole models
    messages = {"cohort__sampling": "everyone", "download": "messages"}
    _, row = rows_of(**SHORT, **messages)
    assert row["bytes_down_total"] == 20 * (4 * d + 5 * 4 * 32)


def test_the_same_seed_gives_the_same_rows():
    def timeless(rows):
        return [{k: v for k, v in row.items() if "second" not in k} for row in rows]

    once, twice, another = short(), rows_of(**SHORT), rows_of(seed=1, **SHORT)
    assert timeless(once) == timeless(twice) != timeless(another)


def test_evaluation_counts_every_test_example_once():
    state, compiled = begun(task_of(config_with(**SHORT)))
    test = np.random.default_rng(0).permutation(1797)[1797 * 4 // 5 :]
    labels = load_digits().target[test]
    measured = compiled.evaluate(state)
    # Logistic regression from zero guesses class 0 for all.
    assert measured["test_accuracy"] == pytest.approx(np.mean(labels == 0))
    assert measured["test_loss"] == pytest.approx(np.log(10), rel=1e-5)


def test_a_run_that_diverges_stops_and_names_the_round():
    with pytest.raises(NotFinite, match="in round [0-9]+: a smaller client.rate"):
        rows_of(algorithm="fedavg", client__rate=1e38, rounds=20, eval_every=10)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": "safll"}, "'safll'.*'safl'"),
        ({"rounds": 0}, "rounds=0"),
        ({"client__rate": -0.1}, "client.rate=-0.1"),
        ({"server__rate": float("nan")}, "server.rate=nan"),
        ({"cohort__size": 21}, "<= 20.*size=21"),
        ({"cohort__sampling": "some"}, "sampling='some'"),
        ({"data__clients": 2000}, "2000"),
        ({"data__partition": "label_shards", "data__per_client": 99}, "1437"),
        ({"data__partition_seed": -2}, "partition_seed"),
        ({"data__name": "digit"}, "digit"),
        ({"sketch__operator": "md5"}, "operator='md5'"),
        ({"sketch__layout": "rows"}, "layout='rows'"),
        ({"sketch__compression": 0.5}, "compression=0.5"),
        ({"server__optimizer": "adamm"}, "'adam'"),
        ({"model__name": "lenett"}, "'lenet'"),
        ({"compute__devices": 99}, "devices=99"),
        ({"compute__devices": -1}, "devices=-1"),
        ({"cohort__weighting": "size"}, "weighting='size'"),
        ({"cohort__weighting": "examples", "algorithm": "ef21"}, "ef21 needs"),
        ({"cohort__dropout": 1.0}, "dropout=1.0"),
        ({"checkpoint_every": 0}, "checkpoint_every=0"),
        ({"checkpoint_keep": 1}, "checkpoint_keep=1"),
        ({"server__b1": 1.5}, "server.b1=1.5"),
        ({"client__proximal": -1.0}, "client.proximal=-1.0"),
        ({"download": "post"}, "download='post'"),
    ],
    ids=str,
)
def test_what_a_config_may_not_say_is_one_line(changes, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        task_of(config_with(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["round", "client", "sketch.compresion"])
def test_keys_that_are_not_in_the_defaults_are_refused(key):
    config = default.get_config()
    with pytest.raises((AttributeError, KeyError, TypeError)):
        config.update_from_flattened_dict({key: 3})
    with pytest.raises(TypeError):
        config.rounds = "many"


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


def test_clients_may_count_by_their_examples():
    keys = {"rounds": 3, "eval_every": 3, "data__partition": "power_law"}
    (equal,), (sized,) = (
        rows_of(**keys, cohort__weighting=how) for how in ("equal", "examples")
    )
    assert equal["test_loss"] != sized["test_loss"]
    assert equal["bytes_up_total"] == sized["bytes_up_total"]


def test_the_facts_say_what_is_held_in_memory():
    fewer = task_of(config_with(sketch__compression=10.0)).facts
    assert fewer["sketch_size"] == 65 and fewer["bytes_up_planned"] == 4 * 65
    facts = task_of(config_with()).facts
    assert facts["kept_updates"] == "a chunk" and facts["exchanges"] == 1
    assert facts["sketch_size"] == 32 and facts["bytes_up_planned"] == 4 * 32


@pytest.mark.parametrize("layout", ["whole", "leaves"])
def test_an_operator_that_is_a_matrix_trains_on_two_devices(tmp_path, layout):
    own = {"sketch__stored": True, "sketch__layout": layout}
    config = config_with(rounds=2, eval_every=2, **own)
    summary = run(config, tmp_path, say=quiet)
    assert summary["sketch_size"] == 32 and summary["rounds"] == 2


DIAGNOSTICS = """
import jax.numpy as jnp
import optax
from fl_sketch import channels
from fl_sketch.core.protocols import Algorithm
from fl_sketch.transforms import local


def measured(loss, *, client_rate, server):
    work = local.sgd_steps(loss, optax.sgd(client_rate))

    def run(*arguments):
        result = work.run(*arguments)
        own = {"loss": result.diagnostics["loss"], "gradient_norm": jnp.float32(2.5)}
        return result._replace(diagnostics=own)

    return Algorithm(work._replace(run=run), channels.exact(), server)
"""


@pytest.mark.parametrize("private", [False, True])
def test_every_diagnostic_of_clients_is_a_column(tmp_path, private):
    (tmp_path / "own.py").write_text(DIAGNOSTICS)
    noise = {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0}
    noise |= {"cohort__sampling": "poisson", "data__classes": 10}
    own = {"algorithm": f"{tmp_path}/own.py:measured", "compute__devices": 1, **SHORT}
    rows = rows_of(**own, **(noise if private else {}))
    names = [name for name in rows[0] if "train_" in name]
    assert names == ["train_loss", "train_gradient_norm"]
    assert {row["train_gradient_norm"] for row in rows} == {2.5}


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
    with refused("without a mechanism", "own.py:mine", "engine.simulate"):
        task_of(config_with(algorithm=f"{tmp_path}/own.py:mine", **private))


def test_targets_of_what_does_not_exist_are_files_that_are_missing():
    with refused("none.npz", error=FileNotFoundError):
        task_of(config_with(model__init_from="none.npz"))
