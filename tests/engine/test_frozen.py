"""A run warns of arrays that move although no client trains them."""

import warnings

import jax
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, sketch
from fl_sketch.core.trees import Stateful
from fl_sketch.run import run
from tests.engine.regression import POISSON, private, simulated
from tests.run.configs import config_with

PARAMS = {"head": {"w": np.zeros(4, np.float32)}, "trunk": np.ones(3, np.float32)}
OPERATOR = sketch.count_sketch(3)


def value(params, batch):
    inputs, targets = batch
    read = jax.lax.stop_gradient(params["trunk"]).sum()
    return (((inputs @ params["head"]["w"]) - targets + read - 3) ** 2).mean()


def everything(params, batch):
    inputs, targets = batch
    scale = params["trunk"].sum() / 3
    return ((scale * (inputs @ params["head"]["w"]) - targets) ** 2).mean()


def masked(rate):
    labels = {"head": "on", "trunk": "off"}
    return optax.multi_transform(
        {"on": optax.sgd(rate), "off": optax.set_to_zero()}, labels
    )


def safl(loss, **options):
    server = optax.adam(0.05)
    return algorithms.safl(
        loss, sketch=OPERATOR, client_rate=0.05, server=server, **options
    )


def played(algorithm, **options):
    """Returns the lines of the warnings of a run."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = simulated(algorithm, params=PARAMS, rounds=4, every=2, **options)
    moved = bool((run.params["trunk"] != PARAMS["trunk"]).any())
    return [str(warning.message) for warning in caught], moved


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (safl(value), {}),
        (safl(everything, client_optimizer=masked), {}),
        (private()._replace(local=safl(value).local), {"cohort": POISSON}),
        (algorithms.sign_sgd(value, server_rate=0.01), {}),
    ],
    ids=["stop_gradient", "masked", "private", "signs"],
)
def test_an_array_that_moves_without_a_gradient_is_named_once(algorithm, options):
    (line,), moved = played(algorithm, **options)
    assert moved and "(trunk)" in line and "mask" in line and "\n" not in line


@pytest.mark.parametrize(
    ("algorithm", "moves"),
    [
        (algorithms.fedavg(value, client_rate=0.05), False),
        (
            algorithms.fedopt(value, client_rate=0.05, server=optax.adam(0.05)),
            False,
        ),
        (safl(everything), True),
    ],
    ids=["fedavg", "fedadam", "trained"],
)
def test_what_stays_and_what_is_trained_are_not_named(algorithm, moves):
    assert played(algorithm) == ([], moves)


def test_models_with_statistics_are_looked_at_without_them():
    algorithm = safl(lambda model, batch: (value(model.params, batch), model.state))
    whole = algorithms.with_statistics(algorithm, Stateful(PARAMS, np.zeros(2)))
    with pytest.warns(UserWarning, match=r"1 array .*\(trunk\)"):
        simulated(
            whole,
            params=Stateful(PARAMS, np.zeros(2, np.float32)),
            rounds=2,
            every=2,
        )


FREEZING = """
import jax
import optax

def bias_only(rate):
    def label(path, leaf):
        return "off" if "kernel" in jax.tree_util.keystr(path) else "on"

    return optax.multi_transform(
        {"off": optax.set_to_zero(), "on": optax.sgd(rate)},
        lambda params: jax.tree_util.tree_map_with_path(label, params),
    )
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "moves"), [("safl", True), ("fedopt", False)])
def test_a_run_of_a_config_says_so_after_its_first_rounds(name, moves, tmp_path):
    file, lines = tmp_path / "own.py", []
    file.write_text(FREEZING)
    config = config_with(algorithm=name, rounds=4, eval_every=2)
    config.client.optimizer = f"{file}:bias_only"
    run(config, tmp_path / "run", say=lines.append)
    named = [line for line in lines if "mask" in line]
    assert len(named) == moves and all("(dense/kernel)" in line for line in named)
