"""Song's trade: shorter messages in more rounds, for as many bits in all.

The problem is strongly convex with constants that are known exactly, and clients take
full gradients. How many rounds does it take, and so how many bits, until f - f* is and
stays a given part of what it was, for sketches of every size? The step of the theorem
shrinks with the message, so that rounds grow whatever a sketch does to gradients. The
control is gradient descent without a sketch, at the same step. So each size has also
the step that is best for it, and gradient descent the one that is best for that.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine, theory
from fl_sketch.algorithms import iterative_sketching
from fl_sketch.core import validate
from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.experiments.measurements import Column, Table
from fl_sketch.experiments.verify import walks
from fl_sketch.experiments.verify.known_problems import Quadratics
from fl_sketch.workdir.tables import half_width

ROUNDS = 64  # in a call, in all of which the error is to be small enough
LANES = (7, 21)  # runs at a time: few that may take long, or many that race
TUNING = (1000, 1001, 1002)  # seeds by which steps are chosen, apart from those counted
OCTAVE = 4  # steps that are tried between one and twice it
FURTHEST = 30 * OCTAVE
CONTROL = "none"


class Row(NamedTuple):
    """One size of a message, with one of two steps.

    Attributes:
      operator: the name of the sketch operator, or "none" for gradient descent without
        a sketch.
      b: the numbers of a message.
      local_steps: K, the local steps of a round.
      spread: sigma^2, the mean over clients of `|grad f_c(w*)|^2`.
      chosen: the origin of the step, "theorem" or "tuned".
      step: the step of the clients.
      rounds: the rounds that were needed, the mean over seeds.
      half_width: half of Student's 95% interval of that mean.
      control: the rounds that the same step needs without a sketch; infinite: several
        times as many were not enough.
      bits: the bits that all clients uploaded in these rounds.
      promised: the bits that are enough by the theorem, with its step.
    """

    operator: Annotated[str, Column("15")]
    b: Annotated[int, Column("3d")]
    local_steps: Annotated[int, Column("2d", "K")]
    spread: Annotated[float, Column("8.3g", "sigma^2")]
    chosen: Annotated[str, Column("7", "step")]
    step: Annotated[float, Column("11.4g", "size")]
    rounds: Annotated[float, Column("8.1f")]
    half_width: Annotated[float, Column("6.1f", "+-")]
    control: Annotated[float, Column("10.5g", "no sketch")]
    bits: Annotated[float, Column("11.4g", "bits up")]
    promised: Annotated[int, Column("10.4g")]


TABLE = Table.of(Row)


class Count(NamedTuple):
    """How rounds are counted until the error is small enough, and stays so.

    Attributes:
      task: the problem.
      steps: K, the number of local steps.
      accuracy: the part of f(0) - f* that may be left.
    """

    task: Quadratics
    steps: int
    accuracy: float
    seeds: Sequence[int]

    @property
    def target(self) -> float:
        """The error that may be left."""
        return self.accuracy * self.task.constants.start

    def promised(self, operator: str, b: int) -> theory.Bound:
        """Returns the bound of Song et al., for a sketch of b numbers."""
        run = {"operator": operator, "b": b, "steps": self.steps}
        constants = replace(self.task.constants, **run)
        return theory.iterative_sketching(constants, "strongly_convex", self.target)


def measure(count: Count, messages: Sequence[tuple[str, int]]) -> Iterator[Row]:
    """Yields two rows for each message, with the theorem's step and with its own.

    The first two are those of gradient descent without a sketch. A message is the name
    of a sketch operator, as configs have it, and its size b.

    Raises:
      ValueError: for a size beyond d, or an operator that cannot have it.
    """
    d = count.task.optimum.size
    for _, b in messages:
        validate.at_most(d, "the parameters", b=b)
    plain, known = Runs(count, "identity", d), {}

    def without_sketch(step: float, most: int) -> float:
        if not math.isfinite(known.get(step, math.inf)):
            known[step] = float(plain([step], (0,), most)[0, 0])
        return known[step]

    yield from _rows(plain)
    for operator, b in messages:
        yield from _rows(Runs(count, operator, b), without_sketch)


def _rows(
    runs: "Runs", control: Callable[[float, int], float] | None = None
) -> Iterator[Row]:
    """Yields the rows of one sketch: at the theorem's step, and at the best.

    A control is `(step, most) -> rounds`, at most so many, that a step needs without a
    sketch; None: the runs are without one.
    """
    count, promised = runs.count, runs.count.promised(runs.operator, runs.b)
    slowest = runs([promised.step], count.seeds, 2 * promised.rounds)[0]
    most = int(min(2 * promised.rounds, 2 * slowest.max()))

    def race(steps: Sequence[float]) -> np.ndarray:
        return runs(steps, TUNING, most, race=True).mean(axis=1)

    tuned = best_step(race, promised.step)
    for chosen, step in (("theorem", promised.step), ("tuned", tuned)):
        needed = slowest if chosen == "theorem" else runs([step], count.seeds, most)[0]
        mean = float(needed.mean())
        yield Row(
            operator=runs.operator if control else CONTROL,
            b=runs.b,
            local_steps=count.steps,
            spread=count.task.spread,
            chosen=chosen,
            step=step,
            rounds=mean,
            half_width=half_width(list(needed)),
            control=control(step, 2 * most) if control else mean,
            bits=FLOAT_BITS * promised.constants.clients * runs.b * mean,
            promised=promised.bits,
        )


def best_step(race: Callable[[Sequence[float]], np.ndarray], first: float) -> float:
    """Returns the shortest step that needs the fewest rounds.

    Steps are tried an octave apart, further and further in the direction that is
    better, until the best has neighbours on both sides, and then `OCTAVE` times as
    densely between these.

    Args:
      race: `(steps) -> rounds`, the mean for each step; infinite for those that are far
        behind the first.

    Raises:
      ValueError: for steps that get better and better, or of which none gets there.
    """
    rounds: dict[int, float] = {}

    def look(exponents):
        new = [exponent for exponent in exponents if exponent not in rounds]
        steps = [first * 2 ** (exponent / OCTAVE) for exponent in new]
        rounds.update(zip(new, race(steps), strict=True))
        return min(rounds, key=lambda exponent: (rounds[exponent], exponent))

    best = look(range(0, 5 * OCTAVE, OCTAVE))
    while best in (min(rounds), max(rounds)):
        onward = OCTAVE if best == max(rounds) else -OCTAVE
        if not math.isfinite(rounds[best]) or abs(best) >= FURTHEST:
            msg = f"Expected a best step near {first:g}, got none with both neighbours."
            raise ValueError(msg)
        best = look(best + onward * k for k in range(1, 5))
    best = look(range(best - OCTAVE + 1, best + OCTAVE))
    return first * 2 ** (best / OCTAVE)


class Runs:
    """Counts the rounds that steps need with a sketch, several runs in one program."""

    def __init__(self, count: Count, operator: str, b: int):
        """Takes the problem, and the name and the size of the sketch."""
        self.count, self.operator = count, operator
        self._sketch = walks.sketch_of(operator, count.task.optimum.size, b)
        self.b = self._sketch.size(count.task.optimum.size)
        self._several = jax.jit(self._rounds, donate_argnums=0)

    def __call__(
        self,
        steps: Sequence[float],
        seeds: Sequence[int],
        most: int,
        *,
        race: bool = False,
    ) -> np.ndarray:
        """Returns the rounds that are needed, shape=(steps, seeds); infinite: too many.

        Args:
          most: the number of rounds after which all are given up.
          race: whether only those steps count that get there in the same call as the
            fastest.
        """
        pairs = [(step, seed) for step in steps for seed in seeds]
        groups = [pairs[i : i + LANES[-1]] for i in range(0, len(pairs), LANES[-1])]
        needed = [self._count(group, len(seeds), most, race) for group in groups]
        return np.concatenate(needed).reshape(len(steps), len(seeds))

    def _count(self, pairs, seeds: int, most: int, race: bool) -> np.ndarray:
        lanes = next(lanes for lanes in LANES if len(pairs) <= lanes)
        filled = [*pairs, *[pairs[0]] * (lanes - len(pairs))]
        rates = jnp.asarray([step for step, _ in filled], jnp.float32)
        keys = jnp.stack([jax.random.key(seed) for _, seed in filled])
        clients, d = self.count.task.optima.shape
        algorithm = self._algorithm(self.count.task, 1.0)
        state = engine.initial_state(algorithm, jnp.zeros(d), clients)
        states = jax.tree.map(lambda x: jnp.broadcast_to(x, (lanes, *x.shape)), state)
        done, above, needed = 0, np.zeros(lanes), np.full(lanes, np.inf)
        while done < most + ROUNDS and not np.isfinite(needed[: len(pairs)]).all():
            states, errors = self._several(states, self.count.task, rates, keys)
            small = np.asarray(errors) <= self.count.target
            stays = small.all(1) & ~np.isfinite(needed)
            needed[stays] = above[stays] + 1
            # The last round, counted from 1 on, after which the error was too large.
            last = done + ROUNDS - np.argmin(small[:, ::-1], axis=1)
            above, done = np.where(small.all(1), above, last), done + ROUNDS
            of_steps = np.isfinite(needed[: len(pairs)]).reshape(-1, seeds)
            if race and of_steps.all(1).any():
                break
        return needed[: len(pairs)]

    def _algorithm(self, task: Quadratics, rate):
        return iterative_sketching(task.loss, sketch=self._sketch, client_rate=rate)

    def _rounds(self, states, task: Quadratics, rates, keys):
        """Returns the states after some rounds, and the errors after each."""
        steps, clients = self.count.steps, task.optima.shape[0]

        def lane(state, rate, key):
            algorithm = self._algorithm(task, rate)
            one_round = walks.round_of(algorithm, steps=steps, clients=clients)

            def step(state, _):
                state, _ = one_round(state, key)
                return state, task.excess(state.server.params)

            return jax.lax.scan(step, state, length=ROUNDS)

        return jax.vmap(lane)(states, rates, keys)
