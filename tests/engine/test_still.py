"""What should train and does not move is named at the first evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, data, engine, sketch
from fl_sketch.core.protocols import Server
from fl_sketch.engine import still
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.transforms import local
from tests.refusals import refused

KEY = jax.random.key(0)
PARAMS = {
    "first": {"kernel": jnp.ones((3, 4)), "bias": jnp.zeros(4)},
    "beside": {"kernel": jnp.ones((4, 4)), "bias": jnp.zeros(4)},
    "norm": {"scale": jnp.ones(4), "bias": jnp.zeros(4)},
    "head": {"kernel": jnp.ones((4, 2)), "bias": jnp.zeros(2)},
}
CLIENTS = data.clients(np.eye(12, 3, dtype="float32"), np.arange(12) % 4)


def loss(params, x):
    x = jnp.tanh(x @ params["first"]["kernel"])  # and its bias has no effect
    x = x + 0 * params["beside"]["kernel"].sum()
    return ((x * params["norm"]["scale"]) @ params["head"]["kernel"] - 1).var() + (
        params["head"]["bias"] ** 2
    ).sum()


def standing(trains, optimizer=optax.sgd(0.1), steps=1):  # noqa: B008
    of_part, start, _ = local.only(loss, PARAMS, trains)
    names = still.of_work(
        local.sgd_steps(of_part, optimizer), CLIENTS.examples, steps=steps, batch=5
    )
    return names(Server(start, (), (), jnp.int32(0)))


@pytest.mark.parametrize(
    ("trains", "found"),
    [
        ("first|norm", []),  # a bias counts with its layer
        ("first/bias|norm", ["first/bias"]),
        ("beside|head", ["beside/bias", "beside/kernel"]),
        ("lora(rank=2, on=first|head)", []),  # one step moves one of its factors
        ("lora(rank=2, on=first|beside)+head", [
            "beside/kernel/lora_a", "beside/kernel/lora_b"]),
    ],
)  # fmt: skip
def test_parts_are_named_that_no_step_moves(trains, found):
    assert standing(trains) == found


def test_what_an_optimizer_leaves_out_is_named():
    labels = {"first": {"kernel": "skip"}, "head": {"kernel": "train", "bias": "train"}}
    parts = {"train": optax.sgd(0.1), "skip": optax.set_to_zero()}
    tx = optax.multi_transform(parts, labels)
    assert standing("first/kernel|head", tx) == ["first/kernel"]


def test_work_of_another_kind_says_nothing():
    of_part, start, _ = local.only(loss, PARAMS, "beside")
    pair = local.gradient_pair(of_part, lambda server: server.params)
    names = still.of_work(pair, CLIENTS.examples, steps=1, batch=5)
    assert names(Server(start, (), (), jnp.int32(0))) == []


def simulated(trains, mechanism=None, **more):
    of_part, start, _ = local.only(loss, PARAMS, trains)
    algorithm = algorithms.safl(
        of_part, sketch=sketch.count_sketch(4), client_rate=0.1, server=optax.adam(0.1)
    )._replace(mechanism=mechanism)
    work = {"key": KEY, "rounds": 5, "every": 2} | more
    return engine.simulate(algorithm, start, CLIENTS, **work)


@pytest.mark.slow
def test_a_simulation_ends_with_the_name(tmp_path):
    for more in ({}, {"workdir": tmp_path}, {"workdir": tmp_path}):
        rows = []
        with refused("beside/kernel", "round 2", error=engine.StandsStill):
            simulated("beside|head", on_row=rows.append, **more)
        assert [row["round"] for row in rows] == [2]
    assert len(simulated("norm|head").history) == 3


@pytest.mark.slow
def test_a_private_simulation_does_not_look_at_its_clients():
    noise = mechanism.central(
        clipping.clip(1.0), noise_multiplier=1.0, denominator=CLIENTS.population
    )
    run = simulated("beside|head", noise, relation="replace_one")
    assert run.history[-1]["round"] == 5
