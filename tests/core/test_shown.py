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


def loss(params, batch):
    return ((batch[0] @ params["w"] - batch[1]) ** 2).mean()


def test_every_value_prints_in_one_short_line_that_says_what_one_asks_for():
    inputs = np.ones((2000, 3), np.float32)
    clients = data.clients((inputs, inputs.sum(1)), np.arange(2000) % 500)
    algorithm = algorithms.safl(
        loss, sketch=sketch.count_sketch(2), client_rate=0.1, server=optax.adam(0.1)
    )
    start, key = {"w": np.zeros(3, np.float32)}, jax.random.key(0)
    run = engine.simulate(algorithm, start, clients, key=key, rounds=2, cohort=4)
    for value, words in (
        (clients, ["500 clients", "float32[2000,3]"]),
        (clients.partition, []),
        (algorithm, ["uplink=sketched"]),
        (run, ["2 rounds", "bytes_up_total"]),
        (run.state, []),
        (run.state.ledger, []),
        (datasets.load("digits"), []),
    ):
        line = repr(value)
        assert "\n" not in line and len(line) < 300 and " at 0x" not in line, line
        assert all(word in line for word in words), line


def test_a_function_is_the_public_one_that_made_it():
    assert short(compressors.top_k(3).fields) == "top_k"
    assert short(jax.jit(loss)) == "loss"
