"""Rounds as a plain loop over clients, following the papers' lines in numpy.

Random matrices are those of the library's operators, read off unit vectors; all else
is arithmetic on the toy losses |x - o_i|^2 / 2, whose gradient is x - o_i.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import sketch
from fl_sketch.core.keys import round_keys
from tests.quadratics import COUNT, RATE, STEPS, D


def run(name, optima, rounds, key):
    """Returns x after the rounds of the algorithm of that name in CATALOGUE."""
    server = {
        "fedavg": fedavg, "fedadam": fedadam, "safl": safl, "heaprix": heaprix,
        "ef21": ef21, "sadl": sadl, "fedcams": fedcams,
    }[name]  # fmt: skip
    return server(optima, rounds, key)


def local_sgd(x, optimum):
    """K steps from x; returns x_0 - x_K."""
    start = x
    for _ in range(STEPS):
        x = x - RATE * (x - optimum)
    return start - x


def fedavg(optima, rounds, key):
    """McMahan et al., Algorithm 1, with heavy-ball momentum of 0.5."""
    del key
    x, velocity = np.zeros(D), np.zeros(D)
    for _ in range(rounds):
        mean = np.mean([local_sgd(x, o) for o in optima], axis=0)
        velocity = 0.5 * velocity + mean
        x = x - velocity
    return x


def fedadam(optima, rounds, key):
    """Reddi et al., Algorithm 2, with Adam's bias correction."""
    del key
    x, m, v = np.zeros(D), np.zeros(D), np.zeros(D)
    for t in range(1, rounds + 1):
        g = np.mean([local_sgd(x, o) for o in optima], axis=0)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        corrected = m / (1 - 0.9**t), v / (1 - 0.999**t)
        x = x - 0.05 * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
    return x


def matrix(op, key):
    """Returns R of one round, of shape (numbers, D)."""
    columns = jax.vmap(lambda e: op.apply(key, e).ravel())(jnp.eye(D))
    return np.asarray(columns.T, np.float64)


def heavy_coordinates(key, table, m):
    """Returns the library's choice: which fill up the heavy ones is its own draw."""
    message = jnp.asarray(table / len(table) ** 0.5, jnp.float32)
    return np.asarray(_HEAVY(key, message, m))


_HEAVY = jax.jit(
    lambda key, message, m: sketch.heavy_coordinates(COUNT, key, message, D, m),
    static_argnums=2,
)


def safl(optima, rounds, key):
    """SAFL, Algorithms 1 and 2: AMSGrad on R^T of the mean of R delta."""
    x, m, v, largest = (np.zeros(D) for _ in range(4))
    for t in range(rounds):
        r = matrix(sketch.gaussian(8), round_keys(key, t, 0).shared)
        messages = [r @ local_sgd(x, o) for o in optima]
        g = r.T @ np.mean(messages, axis=0)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        largest = np.maximum(largest, v)
        x = x - 0.02 * m / (np.sqrt(largest) + 1e-8)
    return x


def sadl(optima, rounds, key):
    """SADL, Algorithm 2: m of one half of the mean sketch, v of the other."""
    x, m, v, largest = (np.zeros(D) for _ in range(4))
    for t in range(rounds):
        halves = jax.random.split(round_keys(key, t, 0).shared)
        r_m, r_v = (matrix(sketch.srht(4), half) for half in halves)
        mean = np.mean([local_sgd(x, o) for o in optima], axis=0)
        m = 0.9 * m + 0.1 * r_m.T @ (r_m @ mean)
        v = 0.999 * v + 0.001 * (r_v.T @ (r_v @ mean)) ** 2
        largest = np.maximum(largest, v)
        x = x - 0.02 * m / (np.sqrt(largest) + 1e-8)
    return x


def fedcams(optima, rounds, key):
    """Wang, Lin and Chen (2022), Algorithm 2 with top-3; the floor of 0.01 is in v."""
    del key
    x, m, v, largest = (np.zeros(D) for _ in range(4))
    error = np.zeros((len(optima), D))
    for _ in range(rounds):
        sent = np.zeros_like(error)
        for i, o in enumerate(optima):
            error[i] += local_sgd(x, o)
            top = np.argsort(-np.abs(error[i]), kind="stable")[:3]
            sent[i, top] = error[i, top]
        error -= sent
        m = 0.9 * m + 0.1 * sent.mean(axis=0)
        v = 0.99 * v + 0.01 * sent.mean(axis=0) ** 2
        largest = np.maximum(np.maximum(largest, v), 0.01)
        x = x - 0.1 * m / np.sqrt(largest)
    return x


def heaprix(optima, rounds, key):
    """FedSKETCH, Algorithm 5 with HEAPRIX: heavy values exactly, the rest by median."""
    rows, k, x = 3, 4, np.zeros(D)
    for t in range(rounds):
        shared = round_keys(key, t, 0).shared
        r = matrix(COUNT, shared).reshape(rows, -1, D) * rows**0.5
        updates = [local_sgd(x, o) for o in optima]
        table = np.mean([r @ u for u in updates], axis=0)
        index = heavy_coordinates(shared, table, k)
        heavy = np.zeros(D)
        heavy[index] = np.mean([u[index] for u in updates], axis=0)
        rest = table - r @ heavy
        median = np.median([r[j].T @ rest[j] for j in range(rows)], axis=0)
        x = x - 0.5 * (heavy + median)
    return x


def ef21(optima, rounds, key):
    """Richtarik et al. (2021), Algorithm 2: top-k of the change of each gradient."""
    del key
    x, own = np.zeros(D), np.zeros((len(optima), D))
    for _ in range(rounds):
        for i, o in enumerate(optima):
            change = (x - o) - own[i]
            top = np.argsort(-np.abs(change), kind="stable")[:4]
            own[i, top] += change[top]
        x = x - 0.1 * own.mean(axis=0)
    return x
