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
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.audit import canaries, game, one_run
from fl_sketch.audit.game import Found
from fl_sketch.config import cohorts, parse, privacy
from fl_sketch.config.guarantee import claimed
from fl_sketch.core import validate
from fl_sketch.core.constants import jitted
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.experiments import audit_scene
from fl_sketch.privacy import accounting, plans, tails
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.privacy.plans import Plan
from fl_sketch.run.setup import Setup, prepare

SURE = 5.0  # standard errors: as good as no honest noise is so far off
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
    repetitions: Annotated[
        int, "Number of runs with canaries, whose guesses are counted together."
    ] = 1
    confidence: Annotated[float, "Confidence of each lower bound."] = 0.95


class Noise(NamedTuple):
    """How large the noise on sums of integers is.

    Attributes:
      share: its variance over the one that was counted.
      margin: by how much the share is uncertain.
      numbers: how many numbers were looked at.
      seconds: the time that it took.
    """

    share: float
    margin: float
    numbers: int
    seconds: float

    @property
    def broken(self) -> bool:
        """Whether there is shown to be less noise than was counted."""
        return self.share + self.margin < 1

    @property
    def what(self) -> str:
        """The result in words."""
        return (
            f"noise: {self.share:.4f} +- {self.margin:.4f} of the variance that was "
            f"counted, in {self.numbers} numbers"
        )


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
    plans.between(0, 1, confidence=audit.confidence)


def run(
    config: ConfigDict, audit: Audit, data_dir: str | None = None
) -> Iterator[Found | Noise | str]:
    """Yields the result of each attack, or a line with the reason why there is none.

    Raises:
      ValueError: in one line, for a config that claims nothing.
    """
    check(audit)
    setup = prepare(config, data_dir)
    claimed(setup.config, setup.guarantee)
    yield play(setup, audit)
    if setup.guarantee and setup.guarantee.plan.integers:
        yield noise(setup, audit)
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
    game_of = audit_scene.among_examples if local else audit_scene.among_clients
    observe, plan = game_of(setup, plan, near)
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
        key=audit_scene.roots(config, 0),
        rate=plan.rate,
        mirrored=near.mirrored,
        remainders=audit_scene.remainders(plan),
        confidence=audit.confidence,
        what=what,
    )


def noise(setup: Setup, audit: Audit) -> Noise:
    """Returns how large the noise is on sums of integers, in a game of empty messages.

    A game finds only what an attacker can use, and the epsilon of one that is a little
    too small hardly differs.
    """
    begin, guarantee = time.perf_counter(), claimed(setup.config, setup.guarantee)
    plan = canaries.few(guarantee.plan)._replace(steps=audit.rounds)
    near = canaries.neighbours(plan.sampling, plan.relation)
    observe, plan = audit_scene.among_clients(setup, plan, near, silent=True)
    assert plan.integers is not None
    places = [*range(canaries.NUMBERS * 2 * plan.releases)]
    places = [place for place in places if place not in audit_scene.remainders(plan)]
    clients = plan.sample / plan.integers.draws if plan.integers.smallest else 1.0
    few = audit_scene.scaled(setup.config, plan.population, plan.sample)
    scale = parse.numbers_of(few)["privacy.threshold"] / privacy.expected(few)
    scale *= guarantee.noise_multiplier * math.sqrt(clients)

    @jitted
    def squares(roots, number):
        keys = jax.tree.map(lambda root: jax.random.fold_in(root, number), roots)
        keys = jax.tree.map(lambda root: jax.random.split(root, game.BLOCK), keys)
        seen = jax.vmap(lambda own: observe(own, jnp.float32(1)))(keys)
        return jnp.mean((seen[:, :, jnp.array(places)] / scale) ** 2)

    each = game.BLOCK * plan.steps * len(places)
    blocks = -(-audit.trials // each)
    roots = audit_scene.roots(setup.config, 0)
    found = np.mean([squares(roots, jnp.uint32(block)) for block in range(blocks)])
    margin = SURE * math.sqrt(2 / (blocks * each))
    seconds = time.perf_counter() - begin
    return Noise(float(found), margin, blocks * each, seconds)


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
        own = audit_scene.roots(config, 1 + number)
        scores, coins = map(np.asarray, scores_of(own, key))
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
        f"canaries, {right} of {guesses} guesses right"
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
    more, numbers = audit_scene.scaled(config, people, size), parse.numbers_of(config)
    sampler = cohorts.cohorts_of(more, setup.talk).sampler
    algorithm = audit_scene.algorithm(more, setup)
    sizes = sampler.places, setup.talk.working
    run = one_run.program(
        algorithm,
        parse.fetch_of(config.client),
        sampler,
        setup.mesh,
        first=config.data.clients,
        count=count,
        away=guarantee.plan.relation == "add_remove",
        rounds=rounds,
        chunk=engine.chunk_size(setup.mesh, *sizes, given=config.compute.chunk),
        recompute=config.compute.updates == "recompute",
    )

    @jitted
    def scores_of(roots, data, key):
        return run(setup.start(numbers, roots).server.params, roots, data, key)

    integers = guarantee.plan.integers
    if integers and algorithm.mechanism:  # for cohorts of another size
        lengths = integers.lengths
        integers = algorithm.mechanism.integers._replace(lengths=lengths)
    plan = guarantee.plan._replace(
        integers=integers,
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
    if not audit_scene.talk(setup).of_updates:
        return (
            f"the server of algorithm={setup.config.algorithm} receives no updates in "
            "which it could look for canaries"
        )
    return ""


def _claim(guarantee: Guarantee, plan: Plan, delta: float) -> float:
    """Returns the epsilon at `delta` that `guarantee` would claim of `plan`."""
    z, name = guarantee.noise_multiplier, guarantee.accountant
    return float(accounting.spent(plan, z, delta=delta, accountant=name))


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count > 1)}"
