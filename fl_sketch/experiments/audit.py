"""An audit of a config: the epsilon that attacks find, and the one that is claimed.

Two attacks. The distinguishing game repeats a few rounds of the config's mechanism with
few clients, and counts the claim for these rounds. The other runs the config as it is,
with canaries among its clients.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from fl_sketch import engine, models
from fl_sketch.audit import canaries, game, one_run
from fl_sketch.config import arguments, build, cohorts, parse, privacy
from fl_sketch.config.guarantee import claimed
from fl_sketch.core import validate
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.mappings import flat
from fl_sketch.core.protocols import Algorithm, Roots, Tree
from fl_sketch.engine import cohort
from fl_sketch.privacy import accounting
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.workdir import secrets

UPDATE, SKETCHED = 8, 2.0  # numbers of an update that is bounded before its sketch
GUESSES = 10  # of so many canaries one is guessed to be in, and one to be out
HEAD = "{:<66} {:>8} {:>8} {:>8} {:>5} {:>8} {:>7}".format(
    "", "claimed", "found", "at most", "sure", "trials", "seconds"
)


class Audit(NamedTuple):
    """The effort of an audit.

    Attributes:
      trials: games in each world.
      rounds: rounds of a game.
      canaries: canaries among the clients of a run; 0: no such run.
    """

    trials: int = 1_000_000
    rounds: int = 3
    canaries: int = 1000
    repetitions: int = 1
    confidence: float = 0.95


class Row(NamedTuple):
    """What an audit of `what` found in `seconds`, beside the claim at `delta`.

    `found_epsilon` is a lower bound, with this `confidence`, on the true epsilon, of
    which `claimed_epsilon` is said. `most_epsilon` is what so many `trials` could show.
    """

    what: str
    claimed_epsilon: float
    delta: float
    found_epsilon: float
    confidence: float
    trials: int
    most_epsilon: float
    seconds: float

    @property
    def broken(self) -> bool:
        """Whether the claim is shown to be wrong."""
        return self.found_epsilon > self.claimed_epsilon


def check(audit: Audit) -> None:
    """Raises a ValueError, in one line, for an `audit` that cannot be made."""
    validate.at_least_one(
        trials=audit.trials, rounds=audit.rounds, repetitions=audit.repetitions
    )
    if audit.canaries and audit.canaries < 2 * GUESSES:
        msg = (
            f"Expected canaries to be 0 or at least {2 * GUESSES}, "
            f"got canaries={audit.canaries}."
        )
        raise ValueError(msg)
    if not 0 < audit.confidence < 1:
        msg = f"Expected 0 < confidence < 1, got confidence={audit.confidence}."
        raise ValueError(msg)


def run(
    config: ConfigDict, audit: Audit, data_dir: str | None = None
) -> Iterator[Row | str]:
    """Yields what each audit found, or a line that says why there is none.

    Args:
      config: a config as `configs/default.py` has it.
      audit: the numbers of runs, rounds and canaries that are tried.
      data_dir: the folder of raw data sets.

    Raises:
      ValueError: in one line, for a config that claims nothing.
    """
    check(audit)
    setup = prepare(config, data_dir)
    config = setup.config
    claimed(config, setup.guarantee)
    yield _timed(lambda: play(config, setup, audit))
    if not audit.canaries:
        return
    why = _unfit(config, setup)
    if why:
        yield f"no run with canaries: {why}"
    else:
        yield _timed(lambda: with_canaries(config, setup, audit))


def line(row: Row) -> str:
    """Returns `row` as text, below `HEAD`."""
    return (
        f"{row.what:<66} {row.claimed_epsilon:8.4f} {row.found_epsilon:8.4f} "
        f"{row.most_epsilon:8.4f} {row.confidence:5.0%} {row.trials:8d} "
        f"{row.seconds:7.1f}"
    )


def verdict(row: Row) -> str:
    """Returns what is said of a `row` whose claim is broken."""
    return (
        f"{row.what}: epsilon is at least {row.found_epsilon:.4g}, with "
        f"{row.confidence:.0%} confidence, and {row.claimed_epsilon:.4g} is claimed at "
        f"delta {row.delta:g}"
    )


def play(config: ConfigDict, setup: Setup, audit: Audit) -> Row:
    """Returns what the distinguishing game finds.

    It has as many exchanges as the engine makes, whatever was claimed of them.

    Args:
      config: the config, checked.
      setup: the config's setup.
      audit: the numbers of runs, rounds and canaries that are tried.
    """
    guarantee = claimed(config, setup.guarantee)
    local = privacy.local_noise(config)
    plan = canaries.few(guarantee.plan)._replace(steps=audit.rounds)
    near = canaries.neighbours(plan.sampling, plan.relation)
    if local:
        observe, plan = _among_examples(config, guarantee.noise_multiplier, plan, near)
    else:
        observe, plan = _among_clients(config, setup, plan, near)
    found = game.play(
        observe,
        delta=guarantee.delta,
        trials=audit.trials,
        key=_roots(config, 0),
        rate=plan.rate,
        mirrored=near.mirrored,
        confidence=audit.confidence,
    )
    what = (
        f"game: {_some(plan.steps, 'step' if local else 'round')}, "
        f"{_some(plan.releases, 'release')} each, {plan.sampling} {plan.sample:.4g} of "
        f"{plan.population}, {plan.relation}"
    )
    if not math.isclose(plan.rate, guarantee.plan.rate):
        what += f", for a rate of {guarantee.plan.rate:.4g}"
    return _row(what, plan, guarantee, found)


def _among_clients(config: ConfigDict, setup: Setup, plan: accounting.Plan, near):
    """Returns what is seen of a game among clients, and its plan.

    Clients that drop out get no credit, and here there are none.
    """
    numbers, few = parse.numbers_of(config), _few(config, plan)
    z = claimed(config, setup.guarantee).noise_multiplier
    exchanges = _talk(config, setup).exchanges
    like, options, read = canaries.NUMBERS, {}, {}
    drawn = exchanges * canaries.NUMBERS
    if config.privacy.form == "update":
        like = drawn = UPDATE
        op = arguments.sketch_of(few, like)
        options["spread"], read["read"] = canaries.before_a_sketch(op, like)
    local = canaries.shouting(
        near,
        exchanges=exchanges,
        limit=numbers["privacy.threshold"],
        watched=build.WATCHED if config.privacy.watch else (),
        **options,
    )
    bare = Algorithm(local, canaries.exchanges(exchanges), optax.sgd(1.0))
    guarded = privacy.guarded(few, lambda *_: bare, z, numbers, like)
    observe = canaries.observer(
        guarded.local,
        guarded.uplink,
        guarded.mechanism,
        canaries.sampler(plan.sampling, plan.population, plan.sample),
        away=near.away,
        population=plan.population,
        rounds=plan.steps,
        shape=(exchanges, canaries.NUMBERS),
        **read,
    )
    watched = guarded.mechanism.watched if guarded.mechanism else ()
    beside = len(watched) + (privacy.bound_of(config) == "adaptive")
    shares = int(plan.sample) if plan.shares > 1 else 1
    return observe, plan._replace(coordinates=drawn + beside, shares=shares)


def _few(config: ConfigDict, plan: accounting.Plan) -> ConfigDict:
    """Returns the config of a game among clients.

    Noise on counts is as large as in the config. What it moves, a threshold that
    adapts, moves as it does there: a smaller cohort's count has more noise.
    """
    few = _scaled(config, plan.population, plan.sample)
    size = privacy.expected(config)
    few.privacy.quantile_rate *= privacy.expected(few) / size
    few.privacy.quantile_noise = config.privacy.quantile_noise or size / 20
    few.privacy.watch_noise = config.privacy.watch_noise or size / 20
    if config.privacy.form == "update":
        few.sketch.update({"compression": SKETCHED, "numbers": 0, "rows": 1})
        few.client.clip = 0.0
    return few


def _among_examples(config: ConfigDict, z: float, plan: accounting.Plan, near):
    """Returns what is seen of a game among one client's examples, and its plan.

    A round has one step, so that all is seen that the noise was put on.
    """
    numbers, few = parse.numbers_of(config), _scaled(config, 1, 1)
    few.client.update({"steps": 1, "batch": int(plan.sample)})
    few.sketch.update({"operator": "identity", "compression": 1.0, "numbers": 0})
    few.sketch.update({"rows": 1, "layout": "whole"})
    few.compressor.compression = 1.0
    # Its gradient is the mean of the inputs.
    linear = models.Loss(
        init=lambda key, inputs: jnp.zeros(canaries.NUMBERS),
        value=lambda params, inputs, targets: jnp.mean(inputs @ params),
        metrics=lambda *_: {},
    )
    algorithm = build.algorithm_of(few, linear, canaries.NUMBERS, numbers, z)
    observe = canaries.observer(
        canaries.one_example_each(algorithm.local),
        canaries.exchanges(1),
        None,
        engine.everyone(1),
        away=False,  # without its example, a batch has one of zeros
        population=1,
        rounds=plan.steps,
        data_of=canaries.examples(near, plan.population, numbers["privacy.threshold"]),
        fetch=parse.fetch_of(few),
    )
    return observe, plan._replace(coordinates=canaries.NUMBERS)


def with_canaries(config: ConfigDict, setup: Setup, audit: Audit) -> Row:
    """Returns what canaries in a run, or in several, give away.

    The guesses of all repetitions are taken together: they are as good as one run with
    so many more canaries, each of which takes part in one of them only. Scores that are
    not finite are refused, by an ArithmeticError.

    Args:
      config: the config, checked.
      setup: the config's setup.
      audit: the numbers of runs, rounds and canaries that are tried.
    """
    guarantee, count = claimed(config, setup.guarantee), audit.canaries
    scores_of, plan = _crowded(config, setup, count)
    each, right = max(1, count // GUESSES), 0
    own = apart(jax.random.key(config.seed), Purpose.AUDIT)
    for number in range(audit.repetitions):
        attacker = jax.random.fold_in(own, number)
        scores, coins = map(np.asarray, scores_of(_roots(config, 1 + number), attacker))
        if not np.isfinite(scores).all():
            msg = "Expected estimates that are finite in a run with canaries."
            raise ArithmeticError(msg)
        right += one_run.right_guesses(scores, coins, each)
    total, guesses = (audit.repetitions * n for n in (count, 2 * each))
    bound = functools.partial(
        one_run.lower_bound, guesses, canaries=total, delta=guarantee.delta
    )
    found, most = (bound(n, confidence=audit.confidence) for n in (right, guesses))
    what = (
        f"run: {_some(plan.steps, 'round')}, {count} of {plan.population} clients are "
        f"canaries, {right} of {guesses} right"
    )
    proof = game.Found(found, audit.confidence, total, most)
    return _row(what, plan, guarantee, proof)


def _crowded(config: ConfigDict, setup: Setup, count: int):
    """Returns `(roots, key) -> (scores, coins)` with canaries, and the run's plan."""
    guarantee, rounds = claimed(config, setup.guarantee), setup.last
    people, poisson = config.data.clients + count, guarantee.plan.sampling == "poisson"
    size = max(1, round(guarantee.plan.rate * people))
    more, numbers = _scaled(config, people, size), parse.numbers_of(config)
    params = _params(config, setup)
    sampler = cohorts.sampler_of(more)
    run = one_run.program(
        _algorithm(more, setup, params),
        parse.fetch_of(config),
        sampler,
        setup.mesh,
        first=config.data.clients,
        count=count,
        away=guarantee.plan.relation == "add_remove",
        rounds=rounds,
        chunk=config.compute.chunk or engine.default_chunk(setup.mesh, sampler.places),
        recompute=config.compute.updates == "recompute",
    )

    @jax.jit
    def scores_of(roots, data, key):
        return run(setup.start(numbers, roots).server.params, roots, data, key)

    plan = guarantee.plan._replace(
        steps=rounds,
        population=people,
        sample=size,
        shares=size if guarantee.plan.shares > 1 else 1,
        cut=cohort.cut_chance(people, size) if poisson else 0.0,
    )
    data = setup.resident(config.seed)
    return lambda roots, key: scores_of(roots, data, key), plan


def _unfit(config: ConfigDict, setup: Setup) -> str:
    """Returns why there is no run with canaries, if there is none."""
    if claimed(config, setup.guarantee).unit == "example":
        return "canaries are clients, and with unit=example clients are not protected"
    if not _talk(config, setup).of_updates:
        return (
            f"the server of algorithm={config.algorithm} does not hear updates, along "
            "which canaries could be looked for"
        )
    return ""


def _talk(config: ConfigDict, setup: Setup) -> one_run.Talk:
    params = _params(config, setup)
    algorithm = _algorithm(config, setup, params)
    return one_run.listen(algorithm, params, setup.batches)


def _algorithm(config: ConfigDict, setup: Setup, params: Tree) -> Algorithm:
    """Returns the algorithm of a config, with the noise of the program's promise."""
    bare = build.bare_of(config, setup.seen, params)
    z = claimed(config, setup.guarantee).noise_multiplier
    numbers = parse.numbers_of(config)
    return privacy.guarded(config, bare, z, numbers, params)


def _params(config: ConfigDict, setup: Setup) -> Tree:
    """Returns the shapes of the model."""
    start = functools.partial(setup.start, parse.numbers_of(config))
    return jax.eval_shape(start, jax.random.key(0)).server.params


def _scaled(config: ConfigDict, population: int, sample: float) -> ConfigDict:
    """Returns the config for another number of clients."""
    own, size = config.copy_and_resolve_references(), privacy.expected(config)
    own.data.clients, own.cohort.size = population, max(1, round(sample))
    smallest = config.privacy.smallest_cohort * privacy.expected(own) / size
    own.privacy.smallest_cohort = math.ceil(smallest)
    return own


def _roots(config: ConfigDict, number: int) -> Roots:
    """Returns the roots of an audit: nobody is protected by its randomness."""
    both = secrets.roots(config.seed, secrets.simulated(flat(config)))
    return jax.tree.map(lambda key: jax.random.fold_in(key, number), both)


def _timed(make: Callable[[], Row]) -> Row:
    begin = time.perf_counter()
    return make()._replace(seconds=time.perf_counter() - begin)


def _some(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count > 1)}"


def _row(
    what: str, plan: accounting.Plan, guarantee: Guarantee, found: game.Found
) -> Row:
    z, name = guarantee.noise_multiplier, guarantee.accountant
    claimed = accounting.spent(plan, z, delta=guarantee.delta, accountant=name)
    return Row(what, float(claimed), guarantee.delta, *found, seconds=0.0)
