"""Song's trade: shorter messages in more rounds, for as many bits in all.

The problem is strongly convex with constants that are known exactly, and clients take
full gradients. How many rounds does it take, and so how many bits, until f - f* is and
stays a given part of what it was, for sketches of every size? The step of the theorem
shrinks with the message, so that rounds grow whatever a sketch does to gradients. The
control is gradient descent without a sketch, at the same step. So each size has also
the step that is best for it, and gradient descent the one that is best for that.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine, sketch, theory
from fl_sketch.algorithms import catalog, iterative_sketching
from fl_sketch.core import validate
from fl_sketch.core.protocols import Sketch
from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.experiments.verify.known_problems import Quadratics
from fl_sketch.workdir.tables import half_width

ROUNDS = 64  # in a call, in all of which the error is to be small enough
LANES = (7, 21)  # runs at a time: few that may take long, or many that race
TUNING = (1000, 1001, 1002)  # seeds by which steps are chosen, apart from those counted
OCTAVE = 4  # steps that are tried between one and twice it
FURTHEST = 30 * OCTAVE
CONTROL = "none"
HEAD = (
    "operator          b  K  sigma^2 step of        step   rounds     +-  no sketch"
    "     bits up   promised"
)


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
      control: the rounds that the same step needs without a sketch; infinite: it does
        not get there in several times as many.
      bits: the bits that all clients sent up in the rounds that were needed.
      promised: the bits that the theorem says are enough, with its step.
    """

    operator: str
    b: int
    local_steps: int
    spread: float
    chosen: str
    step: float
    rounds: float
    half_width: float
    control: float
    bits: float
    promised: int


class Count(NamedTuple):
    """How rounds are counted until the error is small enough, and stays so.

    Attributes:
      task: the problem.
      steps: K, the number of local steps.
      accuracy: the part of f(0) - f* that may be left.
      seeds: the seeds of the sketches.
    """

    task: Quadratics
    steps: int
    accuracy: float
    seeds: Sequence[int]


def line(row: Row) -> str:
    """Returns `row` as text, below `HEAD`."""
    text = "{:15} {:3} {:2} {:8.3g} {:7} {:11.4g} {:8.1f} {:6.1f} {:10.5g} {:11.4g}"
    return f"{text} {{:10.4g}}".format(*row)


def measure(
    count: Count, operator: str, sizes: Sequence[int], control: "Control"
) -> list[Row]:
    """Returns two rows for each size of a message, with the theorem's step and its own.

    Args:
      count: the problem, and the manner of counting.
      operator: a name of `catalog.OPERATORS`.
      sizes: the sizes of messages, from 1 to d.
      control: gradient descent on the same problem, as `Control` makes it.

    Raises:
      ValueError: for a size beyond d, or an operator that cannot have it.
    """
    d = count.task.optimum.size
    for b in sizes:
        validate.at_most(d, "the parameters", b=b)
    rows = []
    for b in sizes:
        op = catalog.build_sketch(
            operator, d, compression=d / b, rows=1, layout="whole"
        )
        runs = Runs(op, count)
        rows += _rows(operator, runs, theory.alpha(operator, d, b), control.after)
    return rows


class Control:
    """Gradient descent without a sketch, on one problem.

    `rows` has its rows, with the theorem's step for alpha = 0 and with its own.
    """

    def __init__(self, count: Count):
        """Measures its rows.

        Args:
          count: the problem, and the manner of counting.
        """
        self._runs = Runs(sketch.identity(), count)
        self._known: dict[float, float] = {}
        self.rows = _rows(CONTROL, self._runs, 0.0, None)

    def after(self, step: float, most: int) -> float:
        """Returns the rounds that a step needs without a sketch.

        Args:
          step: the step.
          most: the number of rounds after which it is given up.
        """
        if not math.isfinite(self._known.get(step, math.inf)):
            self._known[step] = float(self._runs([step], (0,), most)[0, 0])
        return self._known[step]


def _rows(
    name: str,
    runs: "Runs",
    alpha: float,
    control: Callable[[float, int], float] | None,
) -> list[Row]:
    """Returns the rows of one sketch: at the theorem's step, and at the best."""
    count, b = runs.count, runs.op.size(runs.d)
    promise, rows = promised(count, alpha, b), []
    most = 2 * promise.rounds
    slowest = runs([promise.step], count.seeds, most)[0]
    most = int(min(most, 2 * slowest.max()))
    tuned = best_step(lambda steps: runs.race(steps, most), promise.step)
    for chosen, step in (("theorem", promise.step), ("tuned", tuned)):
        needed = slowest if chosen == "theorem" else runs([step], count.seeds, most)[0]
        mean = float(needed.mean())
        clients = count.task.matrices.shape[0]
        rows.append(
            Row(
                *(name, b, count.steps, count.task.spread, chosen, step),
                *(mean, half_width(list(needed))),
                control(step, 2 * most) if control else mean,
                FLOAT_BITS * clients * b * mean,
                promise.bits,
            )
        )
    return rows


def promised(count: Count, alpha: float, b: int) -> theory.Bound:
    """Returns what Song et al. promise: Theorem E.1 for one local step, or 5.1.

    Args:
      count: the problem, and the manner of counting.
      alpha: the number alpha of the operator; 0 without a sketch.
      b: the number of numbers in a message.
    """
    task = count.task
    given = {
        "target": count.accuracy * task.start,
        "smoothness": task.smoothness,
        "convexity": task.convexity,
        "alpha": alpha,
        "clients": task.matrices.shape[0],
        "b": b,
    }
    if count.steps == 1:
        return theory.one_step_strongly_convex(start=task.start, **given)
    known = {"distance": task.distance, "spread": task.spread}
    return theory.strongly_convex(steps=count.steps, **known, **given)


def best_step(race: Callable[[Sequence[float]], np.ndarray], first: float) -> float:
    """Returns the step that needs the fewest rounds, with none faster beside it.

    Of several that need as few it is the shortest.

    Steps are tried an octave apart, further and further in the direction that is
    better, until the best has neighbours on both sides, and then `OCTAVE` times as
    densely between these.

    Args:
      race: `(steps) -> rounds`, the mean for each step; infinite for those that are far
        behind the first.
      first: the step at which to begin.

    Raises:
      ValueError: for steps that get better and better, or of which none gets there.
    """
    found: dict[int, float] = {}

    def look(exponents):
        new = [exponent for exponent in exponents if exponent not in found]
        steps = [first * 2 ** (exponent / OCTAVE) for exponent in new]
        found.update(zip(new, race(steps), strict=True))
        return min(found, key=lambda exponent: (found[exponent], exponent))

    best = look(range(0, 5 * OCTAVE, OCTAVE))
    while best in (min(found), max(found)):
        onward = OCTAVE if best == max(found) else -OCTAVE
        if not math.isfinite(found[best]) or abs(best) >= FURTHEST:
            msg = f"Expected a best step near {first:g}, got none with both neighbours."
            raise ValueError(msg)
        best = look(best + onward * k for k in range(1, 5))
    best = look(range(best - OCTAVE + 1, best + OCTAVE))
    return first * 2 ** (best / OCTAVE)


class Runs:
    """Counts the rounds that steps need, several runs in one program.

    Attributes:
      op: the sketch.
      count: the problem, and the manner of counting.
      d: the number of parameters.
    """

    def __init__(self, op: Sketch, count: Count):
        """Compiles nothing yet.

        Args:
          op: the sketch.
          count: the problem, and the manner of counting.
        """
        self.op, self.count, self.d = op, count, count.task.optimum.size
        self._several = jax.jit(
            functools.partial(_several, op, count.steps), donate_argnums=0
        )

    def race(self, steps: Sequence[float], most: int) -> np.ndarray:
        """Returns the mean rounds of each step, by the seeds of `TUNING`.

        Args:
          steps: the steps, of which those count that get there in the same call as the
            fastest; the others are infinite.
          most: the number of rounds after which all are given up.
        """
        return self(steps, TUNING, most, race=True).mean(axis=1)

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
          steps: the steps of the clients.
          seeds: the seeds of the sketches.
          most: the number of rounds after which all are given up.
          race: whether the rest are given up when one step has got there.
        """
        pairs = [(step, seed) for step in steps for seed in seeds]
        needed = np.full(len(pairs), np.inf)
        for begin in range(0, len(pairs), LANES[-1]):
            group = slice(begin, begin + LANES[-1])
            needed[group] = self._count(pairs[group], len(seeds), most, race)
        return needed.reshape(len(steps), len(seeds))

    def _count(self, pairs, seeds: int, most: int, race: bool) -> np.ndarray:
        lanes = next(lanes for lanes in LANES if len(pairs) <= lanes)
        filled = [*pairs, *[pairs[0]] * (lanes - len(pairs))]
        rates = jnp.asarray([step for step, _ in filled], jnp.float32)
        keys = jnp.stack([jax.random.key(seed) for _, seed in filled])
        task, states, done = self.count.task, self._initial(lanes), 0
        target, above = self.count.accuracy * task.start, np.zeros(lanes)
        needed = np.full(lanes, np.inf)
        while done < most + ROUNDS and not np.isfinite(needed[: len(pairs)]).all():
            states, errors = self._several(states, task, rates, keys)
            small = np.asarray(errors) <= target
            stays = small.all(1) & ~np.isfinite(needed)
            needed[stays] = above[stays] + 1
            # The last round, counted from 1 on, after which the error was too large.
            last = done + ROUNDS - np.argmin(small[:, ::-1], axis=1)
            above, done = np.where(small.all(1), above, last), done + ROUNDS
            of_steps = np.isfinite(needed[: len(pairs)]).reshape(-1, seeds)
            if race and of_steps.all(1).any():
                break
        return needed[: len(pairs)]

    def _initial(self, lanes: int):
        clients = self.count.task.optima.shape[0]
        algorithm = _algorithm(self.count.task, self.op, 1.0)
        state = engine.initial_state(algorithm, jnp.zeros(self.d), clients)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (lanes, *x.shape)), state)


def _algorithm(task, op: Sketch, rate):
    return iterative_sketching(task.loss, sketch=op, client_rate=rate)


def _several(op: Sketch, steps: int, states, task: Quadratics, rates, keys):
    """Returns the states after some rounds, and the errors after each."""
    clients = task.optima.shape[0]

    def lane(state, rate, key):
        one_round = engine.with_everyone(
            _algorithm(task, op, rate),
            lambda data, client, plan, key: jnp.full(steps, client),
            clients,
        )

        def one(state, _):
            state, _ = one_round(state, key)
            return state, task.excess(state.server.params)

        return jax.lax.scan(one, state, length=ROUNDS)

    return jax.vmap(lane)(states, rates, keys)
