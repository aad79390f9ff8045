"""From a config to its privacy guarantee, with releases counted in the traced program.

The releases of a round and their numbers are those of the algorithm's traffic. The
sampler's name is that of the sampler, and the noise multiplier is the mechanism's own.
"""

from collections.abc import Collection

from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.config.parse import section
from fl_sketch.config.privacy import protection_of
from fl_sketch.core import validate
from fl_sketch.core.protocols import Algorithm
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.costs import Traffic
from fl_sketch.privacy import accounting
from fl_sketch.privacy.guarantee import RANDOMNESS, Guarantee, promised


def guarantee_of(
    config: ConfigDict,
    silent: Algorithm,
    traffic: Traffic,
    sampler: Sampler,
    d: int,
    sizes: Collection[int],
    *,
    dealt: str,
    noise_multiplier: float = 0.0,
) -> Guarantee | None:
    """Returns a config's privacy guarantee; None: nothing is bounded.

    Args:
      silent: the algorithm without its noise, which depends on what is counted here.
      traffic: that of a client in a round.
      d: the number of the model's parameters.
      sizes: how many examples each client has.
      dealt: how they are dealt: if it is equal, so are the clients.
      noise_multiplier: z; 0: that of the config, or the least for its target.

    Raises:
      ValueError: in one line that names the section, for a guarantee that no accountant
        can compute, or that no noise or not even one round can keep.
    """
    protection = protection_of(config)
    own, client, rounds = protection.keys, config.client, config.rounds
    if not protection.bounded:
        return None
    with section("privacy"):
        if silent.mechanism is None:  # clients add the noise
            plan = _example_plan(client, sizes, rounds, own.relation, d)
        else:
            terms = {"rounds": rounds, "relation": own.relation}
            plan = engine.plan_of(silent.mechanism, sampler, traffic, **terms)
        return promised(
            plan,
            rounds=rounds,
            delta=own.delta,
            noise_multiplier=noise_multiplier or own.noise_multiplier,
            target_epsilon=own.target_epsilon,
            accountant=own.accountant,
            per_round=client.steps if protection.local else 1,
            unit=own.unit,
            randomness=RANDOMNESS[own.randomness],
            public=protection.public,
            partition=dealt if protection.private else "",
        )


def _example_plan(
    client: ConfigDict, sizes: Collection[int], rounds: int, relation: str, d: int
) -> accounting.Plan:
    """Returns the plan of a client that is drawn in every round, the smallest one."""
    smallest = int(min(sizes))
    whole = client.batches == "whole"
    if whole and set(map(int, sizes)) != {client.batch}:
        msg = (
            "Expected every client to have client.batch examples with unit=example and "
            f"client.batches=whole, got client.batch={client.batch} and clients with "
            f"{smallest} to {max(sizes)}."
        )
        raise ValueError(msg)
    validate.at_most(smallest, "the smallest client", batch=client.batch)
    return accounting.Plan(
        steps=rounds * client.steps,
        sample=client.batch,
        population=smallest,
        sampling="everyone" if whole else "fixed",
        relation=relation,
        coordinates=d,
    )


def require_sizes(guarantee: Guarantee | None, sizes: Collection[int]) -> None:
    """Raises if a client of another seed has fewer examples than a guarantee assumes.

    Args:
      guarantee: the guarantee; None, or one for clients: nothing is assumed.
    """
    if not guarantee or guarantee.unit != "example":
        return
    least = guarantee.plan.population
    if min(sizes) < least:
        msg = (
            f"Expected clients with at least {least} examples, as with the config's "
            f"own seed, got one with {min(sizes)}."
        )
        raise ValueError(msg)


def claimed(config: ConfigDict, guarantee: Guarantee | None) -> Guarantee:
    """Returns the guarantee of a private config; raises if it is not private."""
    if guarantee is None or not guarantee.private:
        msg = (
            "config.privacy: Expected a bound and noise to audit, got "
            f"bound={protection_of(config).bound!r} without noise."
        )
        raise ValueError(msg)
    return guarantee
