"""An audit of a config: the epsilon that attacks prove, and the one that is claimed.

Two attacks. The distinguishing game repeats a few rounds of the config's mechanism with
few clients, and counts the claim for these rounds. The other runs the config as it is,
with canaries among its clients.
"""

import math
import time
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.audit import canaries, game, one_run
from fl_sketch.audit.canaries import Neighbours
from fl_sketch.audit.game import Found
from fl_sketch.config import cohorts, parse, privacy
from fl_sketch.config.guarantee import claimed
from fl_sketch.core import validate
from fl_sketch.core.constants import jitted
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.mappings import flat
from fl_sketch.core.protocols import Algorithm, Roots
from fl_sketch.privacy import accounting
from fl_sketch.privacy.accounting import Plan
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.workdir import secrets

GUESSES = 10  # of so many canaries, one is guessed to be in, and one to be out


class Audit(NamedTuple):
    """The effort of an audit; each is a flag of `launch.audit`."""

    trials: Annotated[
        int,
        "Games with the client, and as many without it; rounded up to a multiple of "
        f"{game.MULTIPLE}.",
    ] = 1_000_000
    rounds: Annotated[int, "Rounds per distinguishing game."] = 3
    canaries: Annotated[
        int, "Made-up clients in the run with canaries; 0 = no such run."
    ] = 1000
    confidence: Annotated[float, "Confidence of each lower bound."] = 0.95


def check(audit: Audit) -> None:
    """Raises a ValueError for an impossible `audit`."""
    validate.at_least_one(trials=audit.trials, rounds=audit.rounds)
    if 0 != audit.canaries < 2 * GUESSES:
        msg = f"Expected canaries to be 0 or at least {2 * GUESSES}, got "
        raise ValueError(msg + f"canaries={audit.canaries}.")
    accounting.between(0, 1, confidence=audit.confidence)


def run(
    config: ConfigDict, audit: Audit, data_dir: str | None = None
) -> Iterator[Found | str]:
    """Yields the result of each attack, or a line with the reason why there is none."""
    check(audit)
    setup = prepare(config, data_dir)
    if claimed(setup.config, setup.guarantee).unit != "client":
        msg = "config.privacy: Expected unit=client to audit, got unit=example."
        raise ValueError(msg)
    yield play(setup, audit)
    if not audit.canaries:
        return
    algorithm = algorithm_of(setup.config, setup)
    if one_run.hears_updates(algorithm, setup.params, setup.batches):
        yield with_canaries(setup, audit)
    else:
        yield (
            "the run with canaries is left out: the server of algorithm="
            f"{setup.config.algorithm} receives no updates in which it could look for "
            "canaries"
        )


def play(setup: Setup, audit: Audit) -> Found:
    """Returns the result of the distinguishing game.

    It has the exchanges that the engine makes, whatever the claim says of them.
    """
    guarantee, config = claimed(setup.config, setup.guarantee), setup.config
    plan = canaries.few(guarantee.plan)._replace(steps=audit.rounds)
    near = canaries.neighbours(plan.sampling, plan.relation)
    observe, plan = among_clients(setup, plan, near)
    what = (
        f"game: {_count(plan.steps, 'round')}, "
        f"{_count(plan.releases, 'release')} each, {plan.sampling} {plan.sample:.4g} "
        f"of {plan.population}, {plan.relation}"
    )
    if not math.isclose(plan.rate, guarantee.plan.rate):
        what += f", config's rate {guarantee.plan.rate:.4g}"
    return game.play(
        observe,
        lambda delta: _claim(guarantee, plan, delta),
        delta=guarantee.delta,
        trials=audit.trials,
        key=roots_of(config, 0),
        rate=plan.rate,
        confidence=audit.confidence,
        what=what,
    )


def with_canaries(setup: Setup, audit: Audit) -> Found:
    """Returns the result of the run with canaries."""
    begin, config, count = time.perf_counter(), setup.config, audit.canaries
    guarantee, rounds = claimed(config, setup.guarantee), setup.last
    people, poisson = config.data.clients + count, guarantee.plan.sampling == "poisson"
    size = max(1, round(guarantee.plan.rate * people))
    more, numbers = scaled(config, people, size), parse.numbers_of(config)
    sampler = cohorts.cohorts_of(more, setup.talk).sampler
    algorithm = algorithm_of(more, setup)
    sizes = sampler.places, setup.talk.working
    program = one_run.program(
        algorithm,
        parse.fetch_of(config.client),
        sampler,
        setup.mesh,
        first=config.data.clients,
        count=count,
        away=guarantee.plan.relation == "add_remove",
        rounds=rounds,
        chunk=engine.chunk_size(setup.mesh, *sizes, given=config.compute.chunk),
    )

    @jitted
    def scores_of(roots, data, key):
        return program(setup.start(numbers, roots).server.params, roots, data, key)

    integers = guarantee.plan.integers
    if integers and algorithm.mechanism:  # for cohorts of another size
        lengths = integers.lengths
        integers = algorithm.mechanism.integers._replace(lengths=lengths)
    plan = guarantee.plan._replace(
        integers=integers,
        steps=rounds,
        population=people,
        sample=size,
        cut=accounting.cut_chance(people, size) if poisson else 0.0,
    )
    data = setup.resident(config.seed)
    attacker = apart(jax.random.key(config.seed), Purpose.AUDIT)
    key = jax.random.fold_in(attacker, 0)
    scores, coins = map(np.asarray, scores_of(roots_of(config, 1), data, key))
    if not np.isfinite(scores).all():
        msg = "Expected finite estimates in the run with canaries, got others."
        raise ArithmeticError(msg)
    each = max(1, count // GUESSES)
    right, guesses = one_run.right_guesses(scores, coins, each), 2 * each
    sure = {"delta": guarantee.delta, "confidence": audit.confidence}
    found, most = (
        one_run.lower_bound(guesses, number, canaries=count, **sure)
        for number in (right, guesses)
    )
    return Found(
        f"run: {_count(plan.steps, 'round')}, {count} of {people} clients are "
        f"canaries, {right} of {guesses} guesses right",
        _claim(guarantee, plan, guarantee.delta),
        guarantee.delta,
        found,
        audit.confidence,
        count,
        most,
        time.perf_counter() - begin,
    )


def among_clients(setup: Setup, plan: Plan, near: Neighbours):
    """Returns what an attacker sees of a game among clients, and its plan.

    The noise on an adaptive threshold's count is as large as in the config. The rate of
    its steps is scaled, since the count of a smaller cohort has relatively more noise.
    """
    config, exchanges = setup.config, len(setup.talk.sent)
    few, size = scaled(config, plan.population, plan.sample), privacy.expected(config)
    few.privacy.quantile_rate *= privacy.expected(few) / size
    few.privacy.quantile_noise = config.privacy.quantile_noise or size / 20
    numbers = parse.numbers_of(config)
    local = canaries.shouting(
        near, exchanges=exchanges, limit=numbers["privacy.threshold"]
    )
    bare = Algorithm(local, canaries.recorded(exchanges, 1), optax.sgd(1.0))
    z = claimed(config, setup.guarantee).noise_multiplier
    mechanism = privacy.guarded(few, bare, z, numbers, canaries.NUMBERS).mechanism
    assert mechanism is not None
    observe = canaries.observer(
        local,
        mechanism,
        _sampler(plan),
        away=near.away,
        population=plan.population,
        rounds=plan.steps,
        exchanges=exchanges,
    )
    lengths = (canaries.NUMBERS,) * exchanges
    return observe, plan._replace(
        coordinates=sum(lengths) + mechanism.extra,
        integers=mechanism.integers and mechanism.integers.of(lengths),
    )


def algorithm_of(config: ConfigDict, setup: Setup) -> Algorithm:
    """Returns the algorithm of a config, with the noise of the setup.

    The config may have another number of clients.
    """
    z = claimed(config, setup.guarantee).noise_multiplier
    numbers = parse.numbers_of(config)
    return privacy.algorithm_of(config, setup.loss(numbers), setup.params, numbers, z)


def scaled(config: ConfigDict, population: int, sample: float) -> ConfigDict:
    """Returns the config for another number of clients."""
    scaled, size = config.copy_and_resolve_references(), privacy.expected(config)
    scaled.data.clients, scaled.cohort.size = population, max(1, round(sample))
    smallest = config.privacy.smallest_cohort * privacy.expected(scaled) / size
    scaled.privacy.smallest_cohort = math.ceil(smallest)
    return scaled


def roots_of(config: ConfigDict, number: int) -> Roots:
    """Returns the roots of an audit, whose randomness protects no client."""
    both = secrets.roots(config.seed, secrets.simulated(flat(config)))
    return jax.tree.map(lambda key: jax.random.fold_in(key, number), both)


def _sampler(plan: Plan):
    if plan.sampling == "everyone":
        return engine.everyone(plan.population)
    if plan.sampling == "fixed":
        return engine.fixed_size(plan.population, int(plan.sample))
    return engine.poisson(plan.population, plan.sample)


def _claim(guarantee: Guarantee, plan: Plan, delta: float) -> float:
    """Returns the epsilon at `delta` that `guarantee` would claim of `plan`."""
    z, name = guarantee.noise_multiplier, guarantee.accountant
    return accounting.epsilon(plan, z, delta=delta, accountant=name)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count > 1)}"
