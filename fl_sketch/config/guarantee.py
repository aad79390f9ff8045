"""From a config to its privacy guarantee, with releases counted in the traced program.

The releases of a round and their numbers are those of the algorithm's traffic. The
sampler's name is that of the sampler, and the noise multiplier is the mechanism's own.
"""

from collections.abc import Callable, Collection

from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.config.parse import section
from fl_sketch.config.privacy import protection_of
from fl_sketch.core import validate
from fl_sketch.core.protocols import Algorithm
from fl_sketch.data.partition import Partition
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.costs import Traffic
from fl_sketch.privacy import accounting
from fl_sketch.privacy.guarantee import RANDOMNESS, Guarantee, promised


def claimed(config: ConfigDict, guarantee: Guarantee | None) -> Guarantee:
    """Returns the `guarantee` of a private `config`.

    Raises:
      ValueError: for a config without noise, whether messages are bounded or not.
    """
    if guarantee is None or not guarantee.private:
        msg = (
            "config.privacy: Expected a bound and noise to audit, got "
            f"bound={protection_of(config).bound!r} without noise."
        )
        raise ValueError(msg)
    return guarantee


def guarantee_of(
    config: ConfigDict,
    silent: Algorithm,
    traffic: Traffic,
    sampler: Sampler,
    d: int,
    shares: Callable[[], Partition],
    *,
    dealt: str,
    noise_multiplier: float = 0.0,
) -> Guarantee | None:
    """Returns a config's privacy guarantee; None: nothing is bounded.

    Args:
      silent: the algorithm without its noise, which depends on what is counted here.
      traffic: that of a client in a round.
      d: the number of the model's parameters.
      shares: `() -> partition`, which client has which examples.
      dealt: how they are dealt: if it is equal, so are the clients.
      noise_multiplier: z, with which the run began; 0: it has not begun.

    Raises:
      ValueError: in one line that names the section, for a guarantee that no accountant
        can compute, or that no noise or not even one round can keep.
    """
    protection = protection_of(config)
    own, client = protection.keys, config.client
    if not protection.bounded:
        return None
    with section("privacy"):
        if silent.mechanism is None:  # clients add the noise
            sizes = shares().sizes
            plan = _example_plan(client, sizes, config.rounds, own.relation, d)
        else:
            _require_floats(config, silent, traffic)
            plan = engine.plan_of(
                silent.mechanism,
                sampler,
                traffic,
                rounds=config.rounds,
                relation=own.relation,
            )
        return promised(
            plan,
            rounds=config.rounds,
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


def _require_floats(config: ConfigDict, silent: Algorithm, traffic: Traffic) -> None:
    """Raises for an algorithm whose messages cannot become integers, by its name."""
    assert silent.mechanism is not None
    if silent.mechanism.integers and traffic.coded:
        msg = (
            "Expected an algorithm whose messages are floats, of which sums are made, "
            f"with bits={config.privacy.bits}, got algorithm={config.algorithm}."
        )
        raise ValueError(msg)


def require_sizes(guarantee: Guarantee | None, sizes: Collection[int]) -> None:
    """Raises if a client has fewer examples than the guarantee for examples assumed.

    Args:
      guarantee: the guarantee; None, or one for clients: nothing is assumed.
      sizes: the numbers of the clients' examples.
    """
    if guarantee and guarantee.unit == "example":
        if min(sizes) >= guarantee.plan.population:
            return
        msg = (
            f"Expected clients with at least {guarantee.plan.population} examples, as "
            f"with the config's own seed, got one with {min(sizes)}."
        )
        raise ValueError(msg)


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
