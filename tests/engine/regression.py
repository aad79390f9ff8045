"""Linear regression of nine clients, by `simulate`: what its laws are tested on.

Of three rounds or more all runs of an algorithm are one program, compiled once.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, data, engine, sketch
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.run import simulate

COUNT, POPULATION = 90, 9
INPUTS = np.asarray(jax.random.normal(jax.random.key(3), (COUNT, 4)))
TARGETS = (INPUTS @ np.array([1.0, -2.0, 0.5, 0.0])).astype(np.float32)
OWNERS = np.arange(COUNT) % POPULATION
CLIENTS = data.clients((INPUTS, TARGETS), OWNERS)
PARAMS = {"w": np.zeros(4, np.float32)}
KEY = jax.random.key(0)
WORK = {
    "key": KEY,
    "cohort": 4,
    "steps": 2,
    "batch": 5,
    "every": 3,
    "bar": False,
    "devices": jax.devices()[:1],
}


def loss(params, batch):
    inputs, targets = batch
    return jnp.mean((inputs @ params["w"] - targets) ** 2)


SAFL = algorithms.safl(
    loss, sketch=sketch.count_sketch(2), client_rate=0.05, server=optax.adam(0.05)
)
EF21 = algorithms.sketched_sgd(  # with a state of each client
    loss, sketch=sketch.count_sketch(1, rows=3), server_rate=0.05, heavy=1
)
FEDAVG = algorithms.fedavg(loss, client_rate=0.05)
POISSON = engine.poisson(POPULATION, 4)


def private(noise_multiplier=2.0):
    """Returns SAFL with noise."""
    return SAFL._replace(
        mechanism=mechanism.central(
            clipping.clip(1.0), noise_multiplier=noise_multiplier, denominator=4
        )
    )


PRIVATE = private()


def simulated(algorithm=SAFL, *, params=PARAMS, clients=CLIENTS, rounds=7, **change):
    """Returns a run, by `WORK` with some changes."""
    return simulate(algorithm, params, clients, rounds=rounds, **WORK | change)


#: Runs that several tests ask for.
ran = functools.cache(simulated)


def same(one, other):
    """Returns whether two trees are equal to the bit."""
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def error(params, example):
    inputs, target = example
    return {"error": jnp.abs(inputs @ params["w"] - target)}


NOISY = {"algorithm": PRIVATE, "cohort": POISSON}
OFTEN = {"every": 2, "checkpoint_every": 3, "rounds": 7}


class Killed(Exception):
    """Ends a run in the middle."""


def played(folder, **change):
    """Returns a run in a folder, of a few rounds."""
    return simulated(workdir=folder, **OFTEN | change)


def killed(folder, at, **change):
    """Plays up to the row of a round."""

    def kill(row):
        if row["round"] == at:
            raise Killed

    with pytest.raises(Killed):
        played(folder, on_row=kill, **change)
