"""Walks of algorithms on small problems, and what is measured along them.

A walk is the parameters before every round and after the last, shape=(rounds + 1, d);
those of several seeds are stacked. All clients take part in every round.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine
from fl_sketch.algorithms import catalog
from fl_sketch.core.protocols import Algorithm, Sketch
from fl_sketch.experiments.verify.known_problems import Problem
from fl_sketch.theory import Constants


def round_of(
    algorithm: Algorithm,
    *,
    steps: int,
    clients: int,
    chunk: int = 1,
    batch: Callable | None = None,
) -> Callable:
    """Returns `(state, key) -> (state, report)`, a round of all clients, not jitted.

    `chunk` of them work at a time. A `batch` is `(client, key) -> batches`, one for
    each step; by default it is the number of the client, of whose whole loss each step
    then is.
    """

    def fetch(data, client, plan, key):
        del data, plan
        return batch(client, key) if batch else jnp.full(steps, client)

    return engine.with_everyone(algorithm, fetch, clients, chunk=chunk)


def walk(
    make: Callable[[jax.Array], Algorithm],
    constants: Constants,
    seeds: Sequence[int],
    *,
    rates: np.ndarray | None = None,
    batch: Callable | None = None,
) -> np.ndarray:
    """Returns walks from zero on, shape=(seeds, rounds + 1, d).

    Args:
      make: `(rate) -> algorithm`, with the clients' rate of a round.
      constants: the sizes, the step and the rounds.
      rates: a rate for each round, in place of the step.
      batch: what `round_of` takes.
    """
    c, clients = constants, int(constants.clients)
    rates = np.full(c.rounds, c.step) if rates is None else rates

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def walked(key, rates):
        def next_round(state, rate):
            options = {"steps": c.steps, "clients": clients, "batch": batch}
            state, _ = round_of(make(rate), **options)(state, key)
            return state, state.server.params

        state = engine.initial_state(make(rates[0]), jnp.zeros(c.d), clients)
        return jax.lax.scan(next_round, state, rates)[1]

    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    later = np.asarray(walked(keys, jnp.asarray(rates, jnp.float32)))
    return np.concatenate([np.zeros((len(seeds), 1, c.d), later.dtype), later], axis=1)


def steps_of_clients(
    task: Problem, params: jax.Array, constants: Constants
) -> jax.Array:
    """Returns where clients are before each full gradient step, and after the last.

    The round begins at `params`, and the shape is (clients, steps + 1, d).
    """
    c, clients = constants, int(constants.clients)

    def client_steps(client):
        def step(x, _):
            x_next = x - c.step * jax.grad(task.loss)(x, client)
            return x_next, x_next

        return jax.lax.scan(step, params, length=c.steps)[1]

    later = jax.vmap(client_steps)(jnp.arange(clients))
    first = jnp.broadcast_to(params, (clients, 1, params.size))
    return jnp.concatenate([first, later], axis=1)


def averages_of_rounds(
    task: Problem, walked: np.ndarray, constants: Constants
) -> np.ndarray:
    """Returns the average over clients and steps of every round of walks.

    Their mean over rounds is the average of Song et al.'s Theorem 5.3, if clients take
    full gradient steps.
    """

    def mean(params):
        return steps_of_clients(task, params, constants)[:, :-1].mean((0, 1))

    return over_walks(mean, walked[:, :-1])


def over_walks(value: Callable, walked: np.ndarray) -> np.ndarray:
    """Returns a `value` of all parameters of walks, shape=(walks, places, ...)."""
    of_walk = jax.jit(lambda walk: jax.lax.map(value, walk, batch_size=64))
    return np.stack([np.asarray(of_walk(jnp.asarray(walk))) for walk in walked])


def squares(gradient: Callable, walked: np.ndarray) -> np.ndarray:
    """Returns `|grad f|^2` of all parameters of walks, shape=(walks, places)."""
    return over_walks(lambda x: jnp.sum(gradient(x) ** 2), walked)


def running_mean(values: np.ndarray) -> np.ndarray:
    """Returns the means of all places up to each, along the second axis of `values`."""
    counts = np.arange(1, values.shape[1] + 1).reshape(-1, *[1] * (values.ndim - 2))
    return np.cumsum(values, axis=1, dtype=np.float64) / counts


def sketch_of(operator: str, d: int, b: int) -> Sketch:
    """Returns the operator, by its name in configs, that sends b numbers of d."""
    return catalog.build_sketch(
        operator, d, compression=1.0, rows=1, layout="whole", numbers=min(b, d)
    )
