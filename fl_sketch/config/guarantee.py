"""What a run may say of its privacy: calibrated, counted, and asked everywhere.

The accountant is told what the program does, and not what a config says of it. The
releases of a round and their numbers are counted in the algorithm as traced. The
sampler's name is that of the sampler, and the noise multiplier is the mechanism's own.

Clients that drop out, for reasons that do not depend on their data, only help, and get
no credit.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fl_sketch import engine, trees, validate
from fl_sketch.config import cohorts, protection
from fl_sketch.config.choices import Numbers, section
from fl_sketch.engine import traffic
from fl_sketch.privacy import accounting
from fl_sketch.protocols import Tree

RANDOMNESS = {"system": "system", "seed": "simulated"}  # what tables call it
UNPROTECTED = (
    "the test data",
    "the number of clients, and the model, its size and all other keys of the config",
    "how keys of the config were chosen, unless it was on other data",
    "the time that rounds take",
    "who comes and which examples are drawn, from somebody who can undo the shuffles "
    "of batches and of cohorts among more than 4096 clients, whose seeds alone are "
    "cryptographic",
    "last bits of float arithmetic beyond what is rounded away "
    "(fl_sketch/privacy/gaussian.py)",
)


def mark(randomness: str) -> str:
    """Returns what stands behind an epsilon: nothing, or that it is simulated.

    Args:
      randomness: a value of `RANDOMNESS`; with "simulated" nobody's secret noise keeps
        the promise.
    """
    return " (simulated)" * (randomness == RANDOMNESS["seed"])


class Guarantee(NamedTuple):
    """What a run may say of its privacy, and how long it may go on.

    Attributes:
      plan: all rounds that the noise was made for.
      noise_multiplier: z; 0: messages are bounded, and nothing is promised.
      delta: the delta of the promise.
      accountant: the name of the accountant that counts.
      rounds: the round with which the run ends, whatever asks for it.
      per_round: the plan's steps in a round.
      unit: the unit that is protected: a client, or an example.
      randomness: "system", or "simulated" where all follows from the seed.
      public: whether nobody has to be protected: the data are public.
    """

    plan: accounting.Plan
    noise_multiplier: float
    delta: float
    accountant: str
    rounds: int
    per_round: int
    unit: str
    randomness: str
    public: bool

    @property
    def private(self) -> bool:
        """Whether there is noise."""
        return bool(self.noise_multiplier)

    def epsilon(self, rounds: int) -> float | None:
        """Returns the epsilon of so many `rounds`; None, without noise: no bound."""
        if not self.private:
            return None
        plan = self.plan._replace(steps=rounds * self.per_round)
        return spent(plan, self.noise_multiplier, self.delta, self.accountant)

    @property
    def facts(self) -> dict[str, Any]:
        """Returns what the summary says of it."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "releases": self.plan.releases * self.per_round,  # a round
            "privacy_unit": self.unit,
            "relation": self.plan.relation,
            "accountant": self.accountant,
            "randomness": self.randomness,
        }


def claimed(config: ConfigDict, guarantee: Guarantee | None) -> Guarantee:
    """Returns the `guarantee` of a `config` that protects somebody.

    Raises:
      ValueError: for a config without noise, whether messages are bounded or not.
    """
    if guarantee is None or not guarantee.private:
        msg = (
            "config.privacy: Expected a bound and noise, whose claim could be audited, "
            f"got bound={protection.kind(config)!r} without noise."
        )
        raise ValueError(msg)
    return guarantee


def guarantee_of(
    config: ConfigDict,
    bare: "protection.Bare",
    numbers: Numbers,
    params: Tree,
    batches: Tree,
    sizes: Callable[[], Collection[int]],
    *,
    noise_multiplier: float = 0.0,
) -> Guarantee | None:
    """Returns what a config promises, its noise calibrated; None: nothing is private.

    Args:
      config: the config, checked.
      bare: what makes the algorithm.
      numbers: the continuous keys.
      params: shapes of the model.
      batches: shapes of what a client trains on in a round.
      sizes: the numbers of the clients' examples, for unit=example.
      noise_multiplier: z, with which the run began; 0: it has not begun.

    Raises:
      ValueError: in one line that names the section, for a promise that no accountant
        can count, or that no noise or not even one round keeps.
    """
    local, privacy = protection.local_noise(config), config.privacy
    if protection.kind(config) == "none" and not local:
        return None
    # Without noise: how much there must be depends on what is counted here.
    silent = protection.guarded(config, bare, 0.0, numbers, params)
    talk = traffic.measure_traffic(silent, params, batches)
    with section("privacy"):
        if silent.mechanism is None:  # the noise is local
            plan = _example_plan(config, sizes(), trees.size(params))
        else:
            plan = engine.plan_of(
                silent.mechanism,
                cohorts.sampler_of(config),
                talk,
                rounds=privacy.planned_rounds or config.rounds,
                relation=privacy.relation,
            )
        name = privacy.accountant
        name = accounting.accountant_for(plan) if name == "auto" else name
        per_round = config.client.steps if local else 1
        z, rounds = _noise(config, plan, name, noise_multiplier, per_round)
    return Guarantee(
        plan=plan,
        noise_multiplier=z,
        delta=privacy.delta,
        accountant=name,
        rounds=rounds,
        per_round=per_round,
        unit=privacy.unit,
        randomness=RANDOMNESS[privacy.randomness],
        public=config.data.public,
    )


def _noise(
    config: ConfigDict, plan, name: str, begun: float, per_round: int
) -> tuple[float, int]:
    """Returns z, and for how many rounds it may be used."""
    privacy, z = config.privacy, begun or config.privacy.noise_multiplier
    asked = min(config.rounds, privacy.planned_rounds or config.rounds)
    if privacy.target_epsilon or z:
        accounting.require(plan, name)
        accounting.require_delta(plan, privacy.delta)
    if z or not privacy.target_epsilon:
        return z, min(asked, _rounds_within(privacy, plan, z, name, per_round))
    target = {"epsilon": privacy.target_epsilon, "delta": privacy.delta}
    return accounting.calibrate(plan, accountant=name, **target), asked


def _rounds_within(
    privacy: ConfigDict, plan, z: float, accountant: str, per_round: int
) -> int:
    """Returns for how many rounds the given noise keeps the target, if there is one."""
    target = privacy.target_epsilon
    if not target:
        return plan.steps // per_round
    steps = accounting.steps_within(
        plan, z, epsilon=target, delta=privacy.delta, accountant=accountant
    )
    if steps < per_round:
        one = spent(plan._replace(steps=per_round), z, privacy.delta, accountant)
        msg = (
            f"Expected target_epsilon >= {one:.4g}, what one round gives away, "
            f"got target_epsilon={target}."
        )
        raise ValueError(msg)
    return steps // per_round


def require_sizes(guarantee: Guarantee | None, sizes: Collection[int]) -> None:
    """Raises if a client has fewer examples than the promise to them assumed.

    Args:
      guarantee: what is promised; None, or to clients: nothing is assumed.
      sizes: the numbers of the clients' examples.

    Raises:
      ValueError: naming the smallest client.
    """
    if guarantee and guarantee.unit == "example":
        if min(sizes) >= guarantee.plan.population:
            return
        msg = (
            f"Expected clients of at least {guarantee.plan.population} examples, as "
            f"with the config's own seed, got one of {min(sizes)}."
        )
        raise ValueError(msg)


def _example_plan(
    config: ConfigDict, sizes: Collection[int], d: int
) -> accounting.Plan:
    """Returns the plan of a client that is drawn in every round, the smallest one."""
    client, smallest = config.client, int(min(sizes))
    whole = client.batches == "whole"
    if whole and set(map(int, sizes)) != {client.batch}:
        msg = (
            "Expected clients of client.batch examples with unit=example and "
            f"client.batches=whole, got client.batch={client.batch} and clients of "
            f"{smallest} to {max(sizes)}."
        )
        raise ValueError(msg)
    validate.at_most(smallest, "the smallest client", batch=client.batch)
    return accounting.Plan(
        steps=(config.privacy.planned_rounds or config.rounds) * client.steps,
        sample=client.batch,
        population=smallest,
        sampling="everyone" if whole else "fixed",
        relation=config.privacy.relation,
        coordinates=d,
    )


def spent(plan, z: float, delta: float, accountant: str) -> float:
    """Returns the epsilon that a plan gives away, by `accounting.spent`.

    Args:
      plan: the plan.
      z: the noise on a sum, over the bound of what one unit adds to it.
      delta: the delta of the promise.
      accountant: one of `accounting.ACCOUNTANTS`.
    """
    return accounting.spent(plan, z, delta=delta, accountant=accountant)
