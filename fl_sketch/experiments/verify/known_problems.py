"""Small problems whose constants are known exactly, and walks of algorithms on them.

A theorem can be told from what is measured only where L, mu, sigma^2, G and the minimum
are those of the problem, and not estimates.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine
from fl_sketch.core import validate
from fl_sketch.core.protocols import Algorithm

TRIED = 201  # numbers between the optima of a coordinate


class Problem(Protocol):
    """Losses of clients, known by their number."""

    def loss(self, params: jax.Array, client: jax.Array) -> jax.Array:
        """Returns the loss at `params` of `client`, a number that may be traced."""
        ...


class Quadratics(NamedTuple):
    """Clients with the losses (x - o)' Q (x - o) / 2.

    Attributes:
      matrices: Q of each client, symmetric, shape=(clients, d, d).
      optima: o of each client, shape=(clients, d).
      optimum: w*, the minimum of the mean loss, shape=(d,).
      smoothness: L, the largest eigenvalue of all Q, and of their mean.
      convexity: mu, the smallest.
      spread: sigma^2, the mean over clients of `|grad f_c(w*)|^2`.
    """

    matrices: jax.Array
    optima: jax.Array
    optimum: jax.Array
    smoothness: float
    convexity: float
    spread: float

    def loss(self, params: jax.Array, client: jax.Array) -> jax.Array:
        """Returns the loss at `params` of `client`, a number that may be traced."""
        off = params - self.optima[client]
        return off @ self.matrices[client] @ off / 2

    def excess(self, params: jax.Array) -> jax.Array:
        """Returns `f - f*` at `params`, for the mean loss f over clients."""
        off = params - self.optimum
        return off @ self.matrices.mean(0) @ off / 2

    @property
    def distance(self) -> float:
        """The squared distance `|w0 - w*|^2` from zero, where all walks start."""
        return float(self.optimum @ self.optimum)

    @property
    def start(self) -> float:
        """The excess f - f* at zero."""
        return float(self.excess(jnp.zeros_like(self.optimum)))


def quadratics(
    *, d: int, clients: int, condition: float, seed: int, apart: float = 0.0
) -> Quadratics:
    """Returns quadratics with eigenvalues from 1 / condition to 1, on the same axes.

    In between the eigenvalues of clients differ, spread as powers from 1/2 to 2 of even
    ones. So L and mu are those of each client and of f, and clients whose minima differ
    drift apart in local steps.

    Args:
      d: the number of parameters.
      clients: the number of clients.
      condition: L / mu.
      seed: the seed of the axes and of the optima.
      apart: the distance of a client's optimum from their common part, about, whose own
        length is about 1; 0: all have one minimum.
    """
    validate.at_least_one(d=d, clients=clients)
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
        smoothness=1.0,
        convexity=1 / condition,
        spread=float(np.mean(np.sum(gradients**2, axis=1))) if apart else 0.0,
    )


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
        """Returns the loss at `params` of `client`, a number that may be traced."""
        off = params - self.optima[client]
        return self.curvatures @ jnp.log1p(off**2) / 2

    def mean_loss(self, params: jax.Array) -> jax.Array:
        """Returns the mean loss over clients at `params`."""
        return jnp.mean(jnp.log1p((params - self.optima) ** 2) @ self.curvatures) / 2

    @property
    def smoothness(self) -> float:
        """L."""
        return float(self.curvatures.max())

    @property
    def intrinsic(self) -> float:
        """I, for which no sum of a Hessian's eigenvalues exceeds I L."""
        return float(self.curvatures.sum()) / self.smoothness

    @property
    def gradient(self) -> float:
        """G."""
        return float(jnp.sqrt(jnp.sum(self.curvatures**2))) / 2

    @property
    def start(self) -> float:
        """f(w0) - f* for w0 = 0, or more by less than a part in 10,000.

        Coordinates are apart, and the best number of each is between its optima. It is
        at most half a step from one that is tried, where a second derivative of at most
        c_i allows no more than c_i step^2 / 8 above the least.
        """
        optima = np.asarray(self.optima, np.float64)
        lowest, highest = optima.min(0), optima.max(0)
        step = (highest - lowest) / (TRIED - 1)
        least = np.full_like(lowest, np.inf)
        for number in range(TRIED):
            off = lowest + number * step - optima
            least = np.minimum(least, np.log1p(off**2).mean(0) / 2)
        least = np.maximum(least - step**2 / 8, 0)
        begin = np.log1p(optima**2).mean(0) / 2
        return float(np.asarray(self.curvatures, np.float64) @ (begin - least))


def wells(
    *, d: int, clients: int, decay: float, seed: int, apart: float = 0.3
) -> Wells:
    """Returns wells with curvatures i^-decay.

    Args:
      d: the number of parameters.
      clients: the number of clients.
      decay: the power by which curvatures fall; above 1 the intrinsic dimension stays
        bounded, whatever d.
      seed: the seed of the optima.
      apart: the deviation of a client's optima from their common part, which is about 1
        in every coordinate.
    """
    validate.at_least_one(d=d, clients=clients)
    random = np.random.default_rng(seed)
    shared = 1 + 0.3 * random.normal(size=d)
    optima = shared + apart * random.normal(size=(clients, d))
    curvatures = np.arange(1, d + 1) ** -float(decay)
    return Wells(jnp.asarray(curvatures, jnp.float32), jnp.asarray(optima, jnp.float32))


def walk(
    make: Callable[[jax.Array], Algorithm],
    rates: np.ndarray,
    *,
    steps: int,
    clients: int,
    d: int,
    seeds: Sequence[int],
    batch: Callable | None = None,
) -> np.ndarray:
    """Returns the parameters before every round and after the last, from zero on.

    Args:
      make: `(rate) -> algorithm`, with the clients' rate of a round.
      rates: these rates, one for each round.
      steps: the number of local steps.
      clients: the number of clients, all of which take part.
      d: the number of parameters.
      seeds: the seeds of all that is drawn.
      batch: `(client, key) -> batches`, one for each step; by default the number of the
        client, which makes each step one of its whole loss.

    Returns:
      The parameters, of shape (seeds, rounds + 1, d).
    """
    batch = batch or (lambda client, key: jnp.full(steps, client))

    def fetch(data, client, plan, key):
        del data, plan
        return batch(client, key)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def walked(key, rates):
        def one(state, rate):
            one_round = engine.with_everyone(make(rate), fetch, clients)
            state, _ = one_round(state, key)
            return state, state.server.params

        state = engine.initial_state(make(rates[0]), jnp.zeros(d), clients)
        return jax.lax.scan(one, state, rates)[1]

    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    later = np.asarray(walked(keys, jnp.asarray(rates, jnp.float32)))
    return np.concatenate([np.zeros((len(seeds), 1, d), later.dtype), later], axis=1)


def steps_of_clients(
    task: Problem, params: jax.Array, *, rate: float, steps: int, clients: int
) -> jax.Array:
    """Returns where each client is before each of its steps, and after the last.

    Args:
      task: the problem.
      params: the parameters at which the round begins, shape=(d,).
      rate: the step size.
      steps: the number K of steps.
      clients: the number of clients.

    Returns:
      Parameters of shape (clients, steps + 1, d).
    """

    def client_steps(client):
        def one(x, _):
            x_next = x - rate * jax.grad(task.loss)(x, client)
            return x_next, x_next

        return jax.lax.scan(one, params, length=steps)[1]

    later = jax.vmap(client_steps)(jnp.arange(clients))
    first = jnp.broadcast_to(params, (clients, 1, params.size))
    return jnp.concatenate([first, later], axis=1)


def averages_of_rounds(
    task: Problem, walked: np.ndarray, *, rate: float, steps: int, clients: int
) -> np.ndarray:
    """Returns the averages of all clients' parameters before each step of a round.

    Their mean over rounds is the average of Song et al.'s Theorem 5.3, of all clients'
    parameters over all steps, for walks whose clients take full gradient steps.

    Args:
      task: the problem.
      walked: the parameters before every round and after the last, as of `walk`.
      rate: the clients' step size.
      steps: the number K of local steps.
      clients: the number of clients.

    Returns:
      An average for each round of each walk, of shape (seeds, rounds, d).
    """

    def mean(params):
        places = steps_of_clients(task, params, rate=rate, steps=steps, clients=clients)
        return places[:, :-1].mean((0, 1))

    before = jnp.asarray(walked[:, :-1])
    of_walk = jax.jit(lambda walk: jax.lax.map(mean, walk, batch_size=64))
    return np.stack([np.asarray(of_walk(walk)) for walk in before])
