"""Toy problems whose constants are known exactly, and runs of algorithms on them.

A measurement can only test a theorem if L, mu, sigma^2, G and the minimum are those of
the problem, and not estimates. All clients take part in every round.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine
from fl_sketch.core import files

TRIED = 201  # numbers between the optima of a coordinate of `Wells`


class Quadratics(NamedTuple):
    """Clients with the losses (x - o)' Q (x - o) / 2.

    Attributes:
      matrices: Q of each client, shape=(clients, d, d), its diagonal, shape=(clients,
        d), or None where it is A A'.
      optima: o of each client, shape=(clients, d).
      optimum: w*, the minimum of the mean loss, shape=(d,), where it is used.
      L: the largest eigenvalue of all Q, and of their mean.
      mu: the smallest.
      sigma2: the mean over clients of `|grad f_c(w*)|^2`.
      roots: A of each client, of low rank, shape=(clients, d, rank).
    """

    matrices: jax.Array | None
    optima: jax.Array
    optimum: jax.Array | None = None
    L: float = np.nan
    mu: float = np.nan
    sigma2: float = np.nan
    roots: jax.Array | None = None

    def loss(self, params: jax.Array, client: jax.Array) -> jax.Array:
        """Returns the loss of a client."""
        off = params - self.optima[client]
        if self.roots is not None:
            return jnp.sum((off @ self.roots[client]) ** 2) / 2
        if self.matrices.ndim == 2:
            return jnp.sum(self.matrices[client] * off**2) / 2
        return off @ self.matrices[client] @ off / 2

    def excess(self, params: jax.Array) -> jax.Array:
        """Returns f - f* at `params`, for the mean loss f of whole matrices."""
        off = params - self.optimum
        return off @ self.matrices.mean(0) @ off / 2

    @property
    def known(self) -> dict[str, float]:
        """The constants from zero on, by the letters of `fl_sketch.theory`."""
        f0 = float(self.excess(jnp.zeros_like(self.optimum)))
        r2 = float(self.optimum @ self.optimum)
        return {"L": self.L, "mu": self.mu, "r2": r2, "f0": f0, "sigma2": self.sigma2}


def quadratics(
    *, d: int, clients: int, condition: float, seed: int, apart: float = 0.0
) -> Quadratics:
    """Returns quadratics with eigenvalues from 1 / condition to 1, on the same axes.

    In between the eigenvalues of clients differ, spread as powers from 1/2 to 2 of even
    ones. So L and mu are those of each client and of f, and clients whose minima differ
    drift apart in local steps.

    Args:
      apart: about how far optima are from their common part, itself about 1 long.
    """
    random, even = np.random.default_rng(seed), np.linspace(0, 1, d)
    powers = 2.0 ** np.linspace(-1, 1, clients) if clients > 1 else np.ones(1)
    values = 1 / condition + (1 - 1 / condition) * even ** powers[:, None]
    axes = np.linalg.qr(random.normal(size=(d, d)))[0]
    matrices = np.einsum("ij,cj,kj->cik", axes, values, axes)
    shared = random.normal(size=d) / d**0.5
    optima = shared + apart * random.normal(size=(clients, d)) / d**0.5
    pulls = np.einsum("cij,cj->ci", matrices, optima)
    optimum = np.linalg.solve(matrices.sum(0), pulls.sum(0))
    gradients = np.einsum("cij,cj->ci", matrices, optimum - optima)
    return Quadratics(
        *(jnp.asarray(x, jnp.float32) for x in (matrices, optima, optimum)),
        L=1.0,
        mu=1 / condition,
        sigma2=float(np.mean(np.sum(gradients**2, axis=1))) if apart else 0.0,
    )


def alike(task: Quadratics) -> Quadratics:
    """Returns clients that all have the loss of the first."""
    matrices, optima = (jnp.broadcast_to(x[:1], x.shape) for x in task[:2])
    return Quadratics(matrices, optima, optima[0], task.L, task.mu, sigma2=0.0)


class Wells(NamedTuple):
    """Clients with the losses sum_i c_i log(1 + (x_i - o_i)^2) / 2: not convex.

    Gradients are at most sqrt(sum c_i^2) / 2 long, and Hessians diagonal with numbers
    from -c_i / 8 to c_i.

    Attributes:
      curvatures: c, the largest first, shape=(d,).
      optima: o of each client, shape=(clients, d).
    """

    curvatures: jax.Array
    optima: jax.Array

    def loss(self, params: jax.Array, client: jax.Array) -> jax.Array:
        """Returns the loss of a client."""
        off = params - self.optima[client]
        return self.curvatures @ jnp.log1p(off**2) / 2

    def mean_loss(self, params: jax.Array) -> jax.Array:
        """Returns the mean loss over clients."""
        return jnp.mean(jnp.log1p((params - self.optima) ** 2) @ self.curvatures) / 2

    @property
    def known(self) -> dict[str, float]:
        """The constants from zero on, by the letters of `fl_sketch.theory`.

        Coordinates are apart, and the best number of each is between its optima. It is
        at most half a step from one that is tried, where a second derivative of at most
        c_i allows no more than c_i step^2 / 8 above the least. So f0 is f - f*, or more
        by less than a part in 10,000.
        """
        curvatures, optima = (np.asarray(x, np.float64) for x in self)
        lowest, highest = optima.min(0), optima.max(0)
        step = (highest - lowest) / (TRIED - 1)
        tried = (lowest + number * step for number in range(TRIED))
        losses = (np.log1p((at - optima) ** 2).mean(0) / 2 for at in tried)
        least = np.maximum(functools.reduce(np.minimum, losses) - step**2 / 8, 0)
        begin = np.log1p(optima**2).mean(0) / 2
        f0, L = float(curvatures @ (begin - least)), float(self.curvatures.max())
        G = float(jnp.sqrt(jnp.sum(self.curvatures**2))) / 2
        return {"L": L, "f0": f0, "G": G, "I": float(self.curvatures.sum()) / L}


def wells(*, d: int, clients: int, decay: float, seed: int) -> Wells:
    """Returns wells with curvatures i^-decay; above 1, I is bounded for all d.

    Optima deviate by 0.3 from their common part, about 1 in every coordinate.
    """
    random = np.random.default_rng(seed)
    shared = 1 + 0.3 * random.normal(size=d)
    optima = shared + 0.3 * random.normal(size=(clients, d))
    curvatures = np.arange(1, d + 1) ** -float(decay)
    return Wells(jnp.asarray(curvatures, jnp.float32), jnp.asarray(optima, jnp.float32))


def noisy(loss: Callable) -> Callable:
    """Returns a loss of batches (client, noise), whose gradients have this noise."""
    return lambda params, batch: loss(params, batch[0]) + batch[1] @ params


def one_round(algorithm, *, steps: int, clients: int, chunk: int = 1, noise=None):
    """Returns `(state, key) -> (state, report)`, a round of all clients, not jitted.

    It runs on one device, inside of other programs. Every local step is of a client's
    whole loss: its batch is the client's number, or a pair with what `noise(key)` draws
    for all steps. `chunk` clients work at a time.
    """

    def fetch(data, client, plan, key):
        del data, plan
        numbers = jnp.full(steps, client)
        return (numbers, noise(key)) if noise else numbers

    mesh = engine.mesh_over(jax.devices()[:1])
    play = engine.make_round(algorithm, fetch, mesh, chunk=chunk)
    cohort = engine.everyone(clients)(jax.random.key(0))
    return lambda state, key: play(state, key, cohort, None, None)


def trajectory(make, start, key, rates, observe=None, *, clients: int, **options):
    """Returns the last state, and what is observed after every round, not jitted.

    Args:
      make: `(rate) -> algorithm`, for the rate of each round in `rates`.
      observe: `(state, report) -> any arrays`; by default the parameters.
      **options: what `one_round` takes.
    """
    observe = observe or (lambda state, report: state.server.params)

    def next_round(state, rate):
        play = one_round(make(rate), clients=clients, **options)
        state, report = play(state, key)
        return state, observe(state, report)

    state = engine.initial_state(make(rates[0]), start, clients)
    return jax.lax.scan(next_round, state, rates)


def trajectories(make, problem, rates: np.ndarray, seeds, **options) -> np.ndarray:
    """Returns the parameters before every round and after the last, from zero on.

    They have shape=(seeds, rounds + 1, d). The arguments are those of `trajectory`.
    """
    clients, d = problem.optima.shape

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def of_seed(key, rates):
        start = jnp.zeros(d)
        return trajectory(make, start, key, rates, clients=clients, **options)[1]

    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    later = np.asarray(of_seed(keys, jnp.asarray(rates, jnp.float32)))
    return np.concatenate([np.zeros((len(seeds), 1, d), later.dtype), later], axis=1)


def along(value: Callable, places: np.ndarray) -> np.ndarray:
    """Returns a `value` of all parameters, an array of shape=(seeds, rounds, ...)."""
    of_one = jax.jit(lambda one: jax.lax.map(value, one, batch_size=64))
    return np.stack([np.asarray(of_one(jnp.asarray(one))) for one in places])


def record(rows: Iterable[Mapping[str, Any]], path, *, hidden=()) -> list:
    """Returns rows, each printed and added to a csv file as soon as it is measured.

    Columns that are `hidden` are in the file alone.
    """
    measured = []
    for row in rows:
        measured.append(row)
        files.write_rows(path, measured)
        shown = {name: value for name, value in row.items() if name not in hidden}
        wide = [24 if isinstance(value, str) else 10 for value in shown.values()]
        if len(measured) == 1:
            print(*(f"{n:<{w}}" for n, w in zip(shown, wide, strict=True)), flush=True)
        texts = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in shown.values()]
        print(*(f"{v:<{w}}" for v, w in zip(texts, wide, strict=True)), flush=True)
    return measured
