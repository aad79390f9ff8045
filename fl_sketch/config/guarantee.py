"""What a run may say of its privacy: calibrated, counted, and asked everywhere.

The accountant is told what the program does, and not what a config says of it. The
releases of a round and their numbers are counted in the algorithm as traced. The
sampler's name is that of the sampler, and the noise multiplier is the mechanism's own.

Clients that drop out, for reasons that do not depend on their data, only help, and get
no credit.
"""

from collections.abc import Callable, Collection

from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.config import cohorts
from fl_sketch.config import privacy as protection
from fl_sketch.config.parse import Numbers, section
from fl_sketch.core import trees, validate
from fl_sketch.core.protocols import Tree
from fl_sketch.engine import costs as traffic
from fl_sketch.privacy import accounting
from fl_sketch.privacy.guarantee import RANDOMNESS, Guarantee, spent


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
