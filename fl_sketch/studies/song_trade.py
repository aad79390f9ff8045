"""Song's trade: shorter messages in more rounds, for as many bits in all.

The problem is strongly convex with constants that are known exactly, clients take full
gradients, and the step is that of Theorem 5.1. How many rounds does it take, and so how
many bits, until f - f* is a given part of what it was, for sketches of every size?
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine, theory, validate
from fl_sketch.algorithms import catalog, iterative_sketching
from fl_sketch.protocols import Sketch
from fl_sketch.sweep.standings import half_width
from fl_sketch.wire import FLOAT_BITS

ROUNDS = 64  # in a call, between looks at the error
HEAD = (
    "operator             b    alpha        step   rounds     +-     bits up   promised"
)


class Problem(NamedTuple):
    """Clients with the losses (x - o)' Q (x - o) / 2, all with one minimum.

    Attributes:
      matrices: Q of each client, shape=(clients, d, d).
      optimum: o, shape=(d,).
      smoothness: L, the largest eigenvalue of all Q.
      convexity: mu, the smallest.
    """

    matrices: jax.Array
    optimum: jax.Array
    smoothness: float
    convexity: float

    def loss(self, params: jax.Array, client: jax.Array) -> jax.Array:
        """Returns the loss at `params` of `client`, a number that may be traced."""
        off = params - self.optimum
        return off @ self.matrices[client] @ off / 2

    def excess(self, params: jax.Array) -> jax.Array:
        """Returns `f - f*` at `params`, for the mean loss f over clients."""
        off = params - self.optimum
        return off @ self.matrices.mean(0) @ off / 2


class Row(NamedTuple):
    """One size of a message.

    Attributes:
      operator: the name of the sketch operator.
      b: the numbers of a message.
      alpha: the operator's, as Song's Theorem 4.2 has it.
      step: the largest step that Theorem 5.1 admits.
      rounds: the rounds that were needed, the mean over seeds.
      half_width: half of Student's 95% interval of that mean.
      bits: the bits that all clients sent up in them.
      promised: the bits that Corollary 5.2 says are enough.
    """

    operator: str
    b: int
    alpha: float
    step: float
    rounds: float
    half_width: float
    bits: float
    promised: int


def problem(*, d: int, clients: int, condition: float, seed: int) -> Problem:
    """Returns quadratics with eigenvalues spread evenly from 1 / condition to 1.

    Args:
      d: the number of parameters.
      clients: the number of clients, each with axes of its own.
      condition: L / mu.
      seed: the seed of the axes and of the optimum.
    """
    validate.at_least_one(d=d, clients=clients)
    random = np.random.default_rng(seed)
    values = np.linspace(1 / condition, 1, d)
    bases = np.linalg.qr(random.normal(size=(clients, d, d)))[0]
    matrices = np.einsum("cij,j,ckj->cik", bases, values, bases)
    optimum = random.normal(size=d) / d**0.5
    return Problem(
        jnp.asarray(matrices, jnp.float32),
        jnp.asarray(optimum, jnp.float32),
        1.0,
        1 / condition,
    )


def measure(
    task: Problem,
    sizes: Sequence[int],
    *,
    operator: str,
    accuracy: float,
    seeds: Sequence[int],
) -> Iterator[Row]:
    """Yields a row for each size of a message.

    Args:
      task: the problem.
      sizes: the sizes of messages, from 1 to d.
      operator: a name of `catalog.OPERATORS`.
      accuracy: the part of f(0) - f* that may be left.
      seeds: the seeds of the sketches.

    Raises:
      ValueError: for a size beyond d, or an operator that cannot have it.
    """
    clients, d = task.matrices.shape[:2]
    start = float(task.excess(jnp.zeros(d)))
    for b in sizes:
        validate.at_most(d, "the parameters", b=b)
        alpha = theory.alpha(operator, d, b)
        step = theory.largest_step(smoothness=task.smoothness, steps=1, alpha=alpha)
        op = catalog.build_sketch(
            operator, d, compression=d / b, rows=1, layout="whole"
        )
        count = _counter(task, op, step, accuracy * start)
        counts = [count(seed) for seed in seeds]
        mean = float(np.mean(counts))
        promise = theory.strongly_convex(
            target=accuracy * start,
            smoothness=task.smoothness,
            convexity=task.convexity,
            distance=float(task.optimum @ task.optimum),
            spread=0.0,
            alpha=alpha,
            clients=clients,
            b=op.size(d),
        )
        bits = FLOAT_BITS * clients * op.size(d) * mean
        yield Row(
            operator,
            op.size(d),
            alpha,
            step,
            mean,
            half_width(counts),
            bits,
            promise.bits,
        )


def line(row: Row) -> str:
    """Returns `row` as text, below `HEAD`."""
    return "{:16} {:5} {:8.4g} {:11.4g} {:8.1f} {:6.1f} {:11.4g} {:10.4g}".format(*row)


def _counter(
    task: Problem, op: Sketch, step: float, target: float
) -> Callable[[int], int]:
    """Returns `(seed) -> rounds` after which the error is below the target."""
    clients, d = task.matrices.shape[:2]
    algorithm = iterative_sketching(task.loss, sketch=op, client_rate=step)
    one_round = engine.with_everyone(
        algorithm, lambda data, client, plan, key: client[None], clients
    )

    @functools.partial(jax.jit, donate_argnums=0)
    def several(state, key):
        def one(state, _):
            state, _ = one_round(state, key)
            return state, task.excess(state.server.params)

        return jax.lax.scan(one, state, length=ROUNDS)

    def count(seed):
        state, done = engine.initial_state(algorithm, jnp.zeros(d), clients), 0
        while True:
            state, errors = several(state, jax.random.key(seed))
            reached = np.flatnonzero(np.asarray(errors) <= target)
            if reached.size:
                return done + int(reached[0]) + 1
            done += ROUNDS

    return count
