"""What should train and does not move is named at the first evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, data, engine, sketch
from fl_sketch.core.protocols import Server
from fl_sketch.engine import first_row
from fl_sketch.run import simulate
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


def unmoved(trains, optimizer=optax.sgd(0.1), steps=1):  # noqa: B008
    of_part, start, _ = local.only(loss, PARAMS, trains)
    work, server = local.sgd_steps(of_part, optimizer), Server(start, (), (), 0)
    sizes = {"steps": steps, "batch": 5}
    return first_row.unmoved(work, server, CLIENTS.examples, **sizes)


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
    assert unmoved(trains) == found


def simulated(trains, **more):
    of_part, start, _ = local.only(loss, PARAMS, trains)
    algorithm = algorithms.safl(
        of_part, sketch=sketch.count_sketch(4), client_rate=0.1, server=optax.adam(0.1)
    )
    work = {"key": KEY, "rounds": 5, "every": 2} | more
    return simulate(algorithm, start, CLIENTS, **work)


@pytest.mark.slow
def test_a_simulation_ends_with_the_name(tmp_path):
    for more in ({}, {"workdir": tmp_path}, {"workdir": tmp_path}):
        rows = []
        with refused("beside/kernel", "round 2", error=engine.StandsStill):
            simulated("beside|head", on_row=rows.append, **more)
        assert [row["round"] for row in rows] == [2]
    assert len(simulated("norm|head").history) == 3
