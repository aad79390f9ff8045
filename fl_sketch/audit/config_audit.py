"""An audit of a config: the epsilon that an attack proves, and the one that is claimed.

The attack is the distinguishing game. It repeats a few rounds of the config's mechanism
with few clients, and counts the claim for these rounds.
"""

import math
from typing import Annotated, NamedTuple

from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.audit import canaries, game
from fl_sketch.audit.game import Found
from fl_sketch.config import parse, privacy
from fl_sketch.config.privacy import claimed
from fl_sketch.core import secret, validate
from fl_sketch.core.mappings import flat
from fl_sketch.privacy import accounting
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.workdir import secrets


class Audit(NamedTuple):
    """The effort of an audit; each is a flag of `launch.audit`."""

    trials: Annotated[
        int,
        "Games with the client, and as many without it; rounded up to a multiple of "
        f"{game.MULTIPLE}.",
    ] = 1_000_000
    rounds: Annotated[int, "Rounds per distinguishing game."] = 3
    confidence: Annotated[float, "Confidence of the lower bound."] = 0.95


def check(audit: Audit) -> None:
    """Raises a ValueError for an impossible `audit`."""
    validate.at_least_one(trials=audit.trials, rounds=audit.rounds)
    accounting.between(0, 1, confidence=audit.confidence)


def run(config: ConfigDict, audit: Audit, data_dir: str | None = None) -> Found:
    """Returns the result of an audit of a config."""
    check(audit)
    setup = prepare(config, data_dir)
    if claimed(setup.config, setup.experiment.guarantee).unit != "client":
        msg = "config.privacy: Expected unit=client to audit, got unit=example."
        raise ValueError(msg)
    return play(setup, audit)


def play(setup: Setup, audit: Audit) -> Found:
    """Returns the result of the distinguishing game.

    It has the exchanges that the engine makes, whatever the claim says of them. The
    noise on an adaptive threshold's count is as large as in the config. The rate of its
    steps is scaled, since the count of a smaller cohort has relatively more noise.
    """
    config, experiment = setup.config, setup.experiment
    exchanges = len(experiment.traffic.sent)
    guarantee = claimed(config, experiment.guarantee)
    plan = canaries.few(guarantee.plan)._replace(steps=audit.rounds)
    few, size = config.copy_and_resolve_references(), privacy.expected(config)
    few.data.clients, few.cohort.size = plan.population, max(1, round(plan.sample))
    smallest = config.privacy.smallest_cohort * privacy.expected(few) / size
    few.privacy.smallest_cohort = math.ceil(smallest)
    few.privacy.quantile_rate *= privacy.expected(few) / size
    few.privacy.quantile_noise = config.privacy.quantile_noise or size / 20
    numbers, z = parse.hyperparameters_of(config), guarantee.noise_multiplier
    near = canaries.neighbours(plan.sampling, plan.relation)
    sizes = {"rounds": plan.steps, "exchanges": exchanges}
    limit = numbers["privacy.threshold"]
    bare = canaries.pushing(near, limit=limit, **sizes)
    guarded = privacy.guarded(few, bare, z, numbers, canaries.NUMBERS)
    mechanism = guarded.mechanism
    assert mechanism is not None
    lengths = (canaries.NUMBERS,) * exchanges
    plan = plan._replace(
        coordinates=sum(lengths) + mechanism.extra,
        integers=mechanism.integers and mechanism.integers.of(lengths),
    )
    samplers = {
        "everyone": lambda: engine.everyone(plan.population),
        "fixed": lambda: engine.fixed_size(plan.population, int(plan.sample)),
        "poisson": lambda: engine.poisson(plan.population, plan.sample),
    }
    what = (
        f"game: {_count(plan.steps, 'round')}, "
        f"{_count(plan.releases, 'release')} each, {plan.sampling} {plan.sample:.4g} "
        f"of {plan.population}, {plan.relation}"
    )
    if not math.isclose(plan.rate, guarantee.plan.rate):
        what += f", config's rate {guarantee.plan.rate:.4g}"
    return game.play(
        canaries.observer(
            guarded,
            samplers[plan.sampling](),
            away=near.away,
            population=plan.population,
            **sizes,
        ),
        lambda delta: accounting.epsilon(
            plan, z, delta=delta, accountant=guarantee.accountant
        ),
        delta=guarantee.delta,
        trials=audit.trials,
        # Its randomness protects no client.
        key=secret.roots(config.seed, secrets.simulated(flat(config))),
        rate=plan.rate,
        confidence=audit.confidence,
        what=what,
    )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count > 1)}"
