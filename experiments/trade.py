"""Measures the bits that iterative sketching needs, by size of the message.

python -m experiments.trade --workdir=/tmp/trade

Song's trade: shorter messages in more rounds, for as many bits in all. The problem is
strongly convex with constants that are known exactly, and clients take full gradients.
How many rounds does it take, and so how many bits, until f - f* is and stays a given
part of what it was, for sketches of every size? The step of the theorem shrinks with
the message, so that rounds grow whatever a sketch does to gradients. The control is
gradient descent without a sketch, at the same step. So each size has also the step that
is best for it, and gradient descent the one that is best for that.

Rows are in trade.csv for one local step, and in local_steps.csv for four: `spread` is
sigma^2 of Song et al., `half_width` half of Student's 95% interval of the mean of
`rounds` over seeds, `control` the rounds without a sketch, and `promised` the bits that
are enough by the theorem. best_steps.csv has one to eight local steps of clients whose
minima differ, each at the step that is best for it, with a sketch and without.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import toy
from fl_sketch import engine
from fl_sketch.algorithms import catalog, iterative_sketching
from fl_sketch.core import files
from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.theory import song
from fl_sketch.workdir.tables import half_width

MINUTES = 35

ROUNDS = 64  # in a call, in all of which the error is to be small enough
LANES = (7, 21)  # runs at a time: few that may take long, or many that race
TUNING = (1000, 1001, 1002)  # seeds by which steps are chosen, apart from those counted
OCTAVE = 4  # steps that are tried between one and twice it
FURTHEST = 30 * OCTAVE
MOST = 4000  # rounds of a run at a step near the best
SIZES = (64, 32, 16, 8, 4)


def measure(
    task: toy.Quadratics,
    K: int,
    messages: Sequence[tuple[str, int]],
    *,
    accuracy: float = 1e-4,
    seeds: Sequence[int] = range(5),
) -> Iterator[dict]:
    """Yields two rows for each message, with the theorem's step and with the best.

    The first two are those of gradient descent without a sketch. A message is the name
    of a sketch operator, as configs have it, and its size b. `accuracy` is the part of
    f(0) - f* that may be left.
    """
    (clients, d), known, controls = task.optima.shape, task.known, {}
    target = accuracy * known["f0"]
    plain = runs_of(task, K, target, "identity", d)
    for operator, b in [("identity", d), *messages]:
        sketched = operator != "identity"
        runs = runs_of(task, K, target, operator, b) if sketched else plain
        letters = {"L": task.L, "mu": task.mu, "alpha": song.alpha(operator, d, b)}
        if K == 1:
            step, rounds = song.rounds_e1(target, f0=known["f0"], **letters)
        else:
            drift = {"r2": known["r2"], "sigma2": task.sigma2, "K": K}
            step, rounds = song.corollary_5_2(target, **drift, **letters)
        slowest = runs([step], seeds, 2 * rounds)[0]
        most = int(min(2 * rounds, 2 * slowest.max()))

        def race(steps, runs=runs, most=most):
            return runs(steps, TUNING, most, race=True).mean(axis=1)

        tuned = best_step(race, step)
        for chosen, own in (("theorem", step), ("tuned", tuned)):
            needed = slowest if chosen == "theorem" else runs([own], seeds, most)[0]
            mean = float(needed.mean())
            if sketched and not math.isfinite(controls.get(own, math.inf)):
                controls[own] = float(plain([own], (0,), 2 * most)[0, 0])
            yield {
                "operator": operator if sketched else "none",
                "b": b,
                "local_steps": K,
                "spread": task.sigma2,
                "chosen": chosen,
                "step": own,
                "rounds": mean,
                "half_width": half_width(list(needed)),
                "control": controls[own] if sketched else mean,
                "bits": FLOAT_BITS * clients * b * mean,
                "promised": FLOAT_BITS * clients * b * rounds,
            }


def measure_best(
    task: toy.Quadratics,
    numbers: Sequence[int],
    messages: Sequence[tuple[str, int]],
    *,
    accuracy: float = 1e-4,
    seeds: Sequence[int] = range(5),
) -> Iterator[dict]:
    """Yields a row for each message and number of local steps, with the best step.

    Other arguments are those of `measure`.
    """
    (clients, d), target = task.optima.shape, accuracy * task.known["f0"]
    for (operator, b), K in itertools.product(messages, numbers):
        runs = runs_of(task, K, target, operator, b)

        def race(steps, runs=runs):
            return runs(steps, TUNING, MOST, race=True).mean(axis=1)

        short = 0.1 / (task.L * K * (1 + song.alpha(operator, d, b)))
        step = best_step(race, short)
        needed = runs([step], seeds, MOST)[0]
        yield {
            "operator": "none" if operator == "identity" else operator,
            "b": b,
            "local_steps": K,
            "spread": task.sigma2,
            "step": step,
            "rounds": float(needed.mean()),
            "half_width": half_width(list(needed)),
            "bits": FLOAT_BITS * clients * b * float(needed.mean()),
        }


def best_step(race: Callable[[Sequence[float]], np.ndarray], first: float) -> float:
    """Returns the shortest step that needs the fewest rounds.

    Steps are tried an octave apart, further and further in the direction that is
    better, until the best has neighbours on both sides, and then `OCTAVE` times as
    densely between these.

    Args:
      race: `(steps) -> rounds`, the mean for each step; infinite for those that are far
        behind the first.
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
            msg = f"No step near {first:g} has slower ones on both sides."
            raise ValueError(msg)
        best = look(best + onward * k for k in range(1, 5))
    best = look(range(best - OCTAVE + 1, best + OCTAVE))
    return first * 2 ** (best / OCTAVE)


def runs_of(
    task: toy.Quadratics, K: int, target: float, operator: str, b: int
) -> Callable:
    """Returns `(steps, seeds, most) -> rounds`, several runs in one program.

    Rounds have shape=(steps, seeds), and are infinite for runs that are given up after
    `most`. In a race only those steps count that get there as soon as the fastest.
    """
    (clients, d), op = task.optima.shape, catalog.OPERATORS[operator](b, 1)

    def make(rate, task=task):
        return iterative_sketching(task.loss, sketch=op, client_rate=rate)

    @functools.partial(jax.jit, donate_argnums=0)
    def several(states, task, rates, keys):
        """Returns the states after some rounds, and the errors after each."""

        def lane(state, rate, key):
            play = toy.one_round(make(rate, task), steps=K, clients=clients)

            def step(state, _):
                state, _ = play(state, key)
                return state, task.excess(state.server.params)

            return jax.lax.scan(step, state, length=ROUNDS)

        return jax.vmap(lane)(states, rates, keys)

    def runs(steps, seeds, most: int, *, race: bool = False) -> np.ndarray:
        pairs = [(step, seed) for step in steps for seed in seeds]
        lanes = next(lanes for lanes in LANES if len(pairs) <= lanes)
        filled = [*pairs, *[pairs[0]] * (lanes - len(pairs))]
        rates = jnp.asarray([step for step, _ in filled], jnp.float32)
        keys = jnp.stack([jax.random.key(seed) for _, seed in filled])
        state = engine.initial_state(make(1.0), jnp.zeros(d), clients)
        states = jax.tree.map(lambda x: jnp.broadcast_to(x, (lanes, *x.shape)), state)
        done, above, needed = 0, np.zeros(lanes), np.full(lanes, np.inf)
        while done < most + ROUNDS and not np.isfinite(needed[: len(pairs)]).all():
            states, errors = several(states, task, rates, keys)
            small = np.asarray(errors) <= target
            stays = small.all(1) & ~np.isfinite(needed)
            needed[stays] = above[stays] + 1
            # The last round, counted from 1 on, after which the error was too large.
            last = done + ROUNDS - np.argmin(small[:, ::-1], axis=1)
            above, done = np.where(small.all(1), above, last), done + ROUNDS
            of_steps = needed[: len(pairs)].reshape(len(steps), len(seeds))
            if race and np.isfinite(of_steps).all(1).any():
                break
        return of_steps

    return runs


def main(workdir: str, only: str):
    """Measures 128 parameters of 5 clients whose minima agree, and do not."""
    folder = files.writable_folder(workdir)
    alike, unlike = (
        toy.quadratics(d=128, clients=5, condition=10.0, seed=0, apart=apart)
        for apart in (0.0, 1.0)
    )

    def messages(*operators):
        return [(operator, b) for operator in operators for b in SIZES]

    of_one = messages("count_sketch", "srht", "gaussian")
    of_four = messages("count_sketch", "srht")
    of_best = [("identity", 128), *messages("count_sketch")]
    tables = {
        "trade": [measure(task, 1, of_one) for task in (alike, unlike)],
        "local_steps": [measure(task, 4, of_four) for task in (alike, unlike)],
        "best_steps": [measure_best(unlike, (1, 2, 4, 8), of_best)],
    }
    for name in [only] if only else tables:
        toy.record(itertools.chain(*tables[name]), folder / f"{name}.csv")


if __name__ == "__main__":
    from launch import command

    WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the csv files.")
    NAMES = ["trade", "local_steps", "best_steps"]
    ONLY = flags.DEFINE_enum("only", "", ["", *NAMES], "The one table to make.")
    flags.mark_flag_as_required("workdir")
    command.run(lambda: main(WORKDIR.value, ONLY.value))
