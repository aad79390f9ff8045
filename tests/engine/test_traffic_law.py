"""All that crosses between devices in a round is the sum of messages, and scalars."""

import math
import re

import jax
import optax
import pytest

from fl_sketch import algorithms, engine, sketch
from tests.meshes import mesh_of
from tests.quadratics import PARAMS, RATE, D, fetch, loss, optima

CLIENTS, WHOLE = 16, sketch.identity()
ACROSS = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-[a-z]+"
OPERATION = re.compile(rf" = (.*) (?:{ACROSS})(?:-start)?\(")
SHAPE = re.compile(r"\w\[([\d,]*)\]")


@pytest.mark.parametrize(("op", "b"), [(sketch.count_sketch(5), 5), (WHOLE, D)])
def test_a_round_of_safl_sends_one_sum_of_b_entries_and_scalars(op, b):
    algorithm = algorithms.safl(loss, sketch=op, client_rate=RATE, server=optax.sgd(1))
    one_round = engine.make_round(algorithm, fetch, mesh_of(8, "clients"))
    state, key = engine.initial_state(algorithm, PARAMS, CLIENTS), jax.random.key(0)
    cohort = engine.everyone(CLIENTS)(key)
    lowered = jax.jit(one_round).lower(state, key, cohort, optima(CLIENTS), None)
    crossing = " ".join(OPERATION.findall(lowered.compile().as_text()))
    sizes = [
        math.prod(map(int, filter(None, s.split(",")))) for s in SHAPE.findall(crossing)
    ]
    assert [size for size in sizes if size > 1] == [b]
