"""An audit of a config: the epsilon that attacks prove, and the one that is claimed.

Two attacks. The distinguishing game repeats a few rounds of the config's mechanism with
few clients, and counts the claim for these rounds. The other runs the config as it is,
with canaries among its clients.
"""

import functools
import math
import time
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from fl_sketch import engine, models
from fl_sketch.audit import canaries, game, one_run
from fl_sketch.audit.canaries import Neighbours
from fl_sketch.audit.game import Found
from fl_sketch.config import arguments, build, cohorts, parse, privacy
from fl_sketch.config.guarantee import claimed
from fl_sketch.core import validate
from fl_sketch.core.constants import jitted
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.mappings import flat
from fl_sketch.core.protocols import Algorithm, Roots
from fl_sketch.privacy import accounting, tails
from fl_sketch.privacy.accounting import Plan
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.workdir import secrets

UPDATE, SKETCHED = 8, 2.0  # numbers of an update that is bounded before its sketch
GUESSES = 10  # of so many canaries, one is guessed to be in, and one to be out


class Audit(NamedTuple):
    """The effort of an audit; each is a flag of `launch.audit`."""

    trials: Annotated[int, "Games with the client; as many are played without it."] = (
        1_000_000
    )
    rounds: Annotated[int, "Rounds per distinguishing game."] = 3
    canaries: Annotated[
        int, "Made-up clients in the run with canaries; 0 = no such run."
    ] = 1000
    repetitions: Annotated[
        int, "Number of runs with canaries, whose guesses are counted together."
    ] = 1
    confidence: Annotated[float, "Confidence of each lower bound."] = 0.95


def check(audit: Audit) -> None:
    """Raises a ValueError, in one line, for an impossible `audit`."""
    validate.at_least_one(
        trials=audit.trials, rounds=audit.rounds, repetitions=audit.repetitions
    )
    if audit.canaries and audit.canaries < 2 * GUESSES:
        msg = (
            f"Expected canaries to be 0 or at least {2 * GUESSES}, "
            f"got canaries={audit.canaries}."
        )
        raise ValueError(msg)
    accounting.between(0, 1, confidence=audit.confidence)


def run(
    config: ConfigDict, audit: Audit, data_dir: str | None = None
) -> Iterator[Found | str]:
    """Yields the result of each attack, or a line with the reason why there is none.

    Raises:
      ValueError: in one line, for a config that claims nothing.
    """
    check(audit)
    setup = prepare(config, data_dir)
    claimed(setup.config, setup.guarantee)
    yield play(setup, audit)
    if not audit.canaries:
        return
    why = _unfit(setup)
    yield (
        f"the run with canaries is left out: {why}"
        if why
        else with_canaries(setup, audit)
    )


def play(setup: Setup, audit: Audit) -> Found:
    """Returns the result of the distinguishing game.

    It has the exchanges that the engine makes, whatever the claim says of them.
    """
    guarantee, config = claimed(setup.config, setup.guarantee), setup.config
    local = privacy.protection_of(config).local
    plan = canaries.few(guarantee.plan)._replace(steps=audit.rounds)
    near = canaries.neighbours(plan.sampling, plan.relation)
    observe, plan = (_among_examples if local else _among_clients)(setup, plan, near)
    what = (
        f"game: {_count(plan.steps, 'step' if local else 'round')}, "
        f"{_count(plan.releases, 'release')} each, {plan.sampling} {plan.sample:.4g} "
        f"of {plan.population}, {plan.relation}"
    )
    if not math.isclose(plan.rate, guarantee.plan.rate):
        what += f", config's rate {guarantee.plan.rate:.4g}"
    return game.play(
        observe,
        functools.partial(_claim, guarantee, plan),
        delta=guarantee.delta,
        trials=audit.trials,
        key=_roots(config, 0),
        rate=plan.rate,
        mirrored=near.mirrored,
        confidence=audit.confidence,
        what=what,
    )


def _among_clients(setup: Setup, plan: Plan, near: Neighbours):
    """Returns what an attacker sees of a game among clients, and its plan."""
    config = setup.config
    numbers, few = parse.numbers_of(config), _few(config, plan)
    z = claimed(config, setup.guarantee).noise_multiplier
    exchanges = _talk(setup).exchanges
    like, options, read = canaries.NUMBERS, {}, {}
    if config.privacy.form == "update":
        like = UPDATE
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
    guarded = privacy.guarded(few, bare, z, numbers, like)
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
    assert guarded.mechanism is not None
    drawn = guarded.mechanism.drawn or exchanges * canaries.NUMBERS
    return observe, plan._replace(
        coordinates=drawn + guarded.mechanism.extra,
        shares=int(plan.sample) if plan.shares > 1 else 1,
    )


def _few(config: ConfigDict, plan: Plan) -> ConfigDict:
    """Returns the config of a game among clients.

    Noise on counts is as large as in the config. The rate of an adaptive threshold is
    scaled, since the count of a smaller cohort has relatively more noise.
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


def _among_examples(setup: Setup, plan: Plan, near: Neighbours):
    """Returns what an attacker sees of a game among examples, and its plan.

    A round has one step, so that the attacker sees every noisy sum.
    """
    config = setup.config
    numbers, few = parse.numbers_of(config), _scaled(config, 1, 1)
    z = claimed(config, setup.guarantee).noise_multiplier
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
        fetch=parse.fetch_of(few.client),
    )
    return observe, plan._replace(coordinates=canaries.NUMBERS)


def with_canaries(setup: Setup, audit: Audit) -> Found:
    """Returns the result of one or several runs with canaries.

    The guesses of all repetitions are counted together, like those of one run with as
    many canaries, since each canary takes part in one run only.

    Raises:
      ArithmeticError: for scores that are not finite.
    """
    begin, config, count = time.perf_counter(), setup.config, audit.canaries
    guarantee = claimed(config, setup.guarantee)
    scores_of, plan = _crowded(setup, count)
    each, right = max(1, count // GUESSES), 0
    attacker = apart(jax.random.key(config.seed), Purpose.AUDIT)
    for number in range(audit.repetitions):
        key = jax.random.fold_in(attacker, number)
        scores, coins = map(np.asarray, scores_of(_roots(config, 1 + number), key))
        if not np.isfinite(scores).all():
            msg = "Expected finite estimates in the run with canaries, got others."
            raise ArithmeticError(msg)
        right += one_run.right_guesses(scores, coins, each)
    total, guesses = (audit.repetitions * n for n in (count, 2 * each))
    sure = {"delta": guarantee.delta, "confidence": audit.confidence}
    found, most = (
        one_run.lower_bound(guesses, number, canaries=total, **sure)
        for number in (right, guesses)
    )
    what = (
        f"run: {_count(plan.steps, 'round')}, {count} of {plan.population} clients are "
        f"canaries, {right} of {guesses} right"
    )
    return Found(
        what,
        _claim(guarantee, plan, guarantee.delta),
        guarantee.delta,
        found,
        audit.confidence,
        total,
        most,
        time.perf_counter() - begin,
    )


def _crowded(setup: Setup, count: int):
    """Returns `(roots, key) -> (scores, coins)` with canaries, and the run's plan."""
    config, rounds = setup.config, setup.last
    guarantee = claimed(config, setup.guarantee)
    people, poisson = config.data.clients + count, guarantee.plan.sampling == "poisson"
    size = max(1, round(guarantee.plan.rate * people))
    more, numbers = _scaled(config, people, size), parse.numbers_of(config)
    sampler = cohorts.cohorts_of(more, setup.talk).sampler
    sizes = sampler.places, setup.talk.working
    run = one_run.program(
        _algorithm(more, setup),
        parse.fetch_of(config.client),
        sampler,
        setup.mesh,
        first=config.data.clients,
        count=count,
        away=guarantee.plan.relation == "add_remove",
        rounds=rounds,
        chunk=config.compute.chunk or engine.default_chunk(setup.mesh, *sizes),
        recompute=config.compute.updates == "recompute",
    )

    @jitted
    def scores_of(roots, data, key):
        return run(setup.start(numbers, roots).server.params, roots, data, key)

    plan = guarantee.plan._replace(
        steps=rounds,
        population=people,
        sample=size,
        shares=size if guarantee.plan.shares > 1 else 1,
        cut=tails.cut_chance(people, size) if poisson else 0.0,
    )
    data = setup.resident(config.seed)
    return lambda roots, key: scores_of(roots, data, key), plan


def _unfit(setup: Setup) -> str:
    """Returns why no run with canaries is possible, or an empty string."""
    if claimed(setup.config, setup.guarantee).unit == "example":
        return "canaries are clients, and unit=example does not protect clients"
    if not _talk(setup).of_updates:
        return (
            f"the server of algorithm={setup.config.algorithm} receives no updates in "
            "which it could look for canaries"
        )
    return ""


def _talk(setup: Setup) -> one_run.Talk:
    return one_run.listen(_algorithm(setup.config, setup), setup.params, setup.batches)


def _algorithm(config: ConfigDict, setup: Setup) -> Algorithm:
    """Returns the algorithm of a config, with the noise of the setup.

    The config may have another number of clients.
    """
    z = claimed(config, setup.guarantee).noise_multiplier
    numbers = parse.numbers_of(config)
    loss = setup.loss(numbers)
    return privacy.algorithm_of(config, loss, setup.params, numbers, z)


def _scaled(config: ConfigDict, population: int, sample: float) -> ConfigDict:
    """Returns the config for another number of clients."""
    scaled, size = config.copy_and_resolve_references(), privacy.expected(config)
    scaled.data.clients, scaled.cohort.size = population, max(1, round(sample))
    smallest = config.privacy.smallest_cohort * privacy.expected(scaled) / size
    scaled.privacy.smallest_cohort = math.ceil(smallest)
    return scaled


def _roots(config: ConfigDict, number: int) -> Roots:
    """Returns the roots of an audit, whose randomness protects no client."""
    both = secrets.roots(config.seed, secrets.simulated(flat(config)))
    return jax.tree.map(lambda key: jax.random.fold_in(key, number), both)


def _claim(guarantee: Guarantee, plan: Plan, delta: float) -> float:
    """Returns the epsilon at `delta` that `guarantee` would claim of `plan`."""
    z, name = guarantee.noise_multiplier, guarantee.accountant
    return float(accounting.spent(plan, z, delta=delta, accountant=name))


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count > 1)}"
