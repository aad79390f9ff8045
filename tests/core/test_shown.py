"""What a newcomer prints takes one line."""

import jax
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, data, engine, sketch
from fl_sketch.core.shown import short
from fl_sketch.data import datasets
from fl_sketch.sketch import compressors

pytestmark = pytest.mark.fast
LONGEST = 300
MANY = 2000


def loss(params, batch):
    return ((batch[0] @ params["w"] - batch[1]) ** 2).mean()


def with_everything():
    inputs = np.ones((MANY, 3), np.float32)
    clients = data.clients((inputs, inputs.sum(1)), np.arange(MANY) % 500)
    algorithm = algorithms.safl(
        loss, sketch=sketch.count_sketch(2), client_rate=0.1, server=optax.adam(0.1)
    )
    start, key = {"w": np.zeros(3, np.float32)}, jax.random.key(0)
    run = engine.simulate(algorithm, start, clients, key=key, rounds=2, cohort=4)
    downlink = algorithms.cd_adam(
        loss, compressor=compressors.top_k(2), server_rate=0.1
    )
    return {
        "clients": clients,
        "partition": clients.partition,
        "algorithm": algorithm,
        "with a downlink": downlink,
        "run": run,
        "state": run.state,
        "server": run.state.server,
        "ledger": run.state.ledger,
        "examples": datasets.load("digits").train,
        "splits": datasets.load("digits"),
    }


def test_every_value_prints_in_one_short_line():
    for name, value in with_everything().items():
        line = repr(value)
        assert "\n" not in line and len(line) < LONGEST, name
        assert " at 0x" not in line, name


def test_lines_say_what_one_asks_for():
    values = with_everything()
    assert "500 clients" in repr(values["clients"])
    assert "float32[2000,3]" in repr(values["clients"])
    assert "2 rounds" in repr(values["run"])
    assert "bytes_up_total" in repr(values["run"])
    assert "uplink=sketched" in repr(values["algorithm"])


def test_a_function_is_the_public_one_that_made_it():
    assert short(compressors.top_k(3).fields) == "top_k"
    assert short(jax.jit(loss)) == "loss"
