"""From the privacy section of a config to a mechanism and its guarantee, or a refusal.

The releases of a round and their numbers are those of the algorithm's traffic. The
sampler's name is that of the sampler, and the noise multiplier is the mechanism's own.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.algorithms import catalog
from fl_sketch.config.inputs import MEASURED
from fl_sketch.config.parse import section
from fl_sketch.core import plugins, trees, validate
from fl_sketch.core.mappings import flat
from fl_sketch.core.protocols import Algorithm, Tree
from fl_sketch.data import datasets
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.costs import Traffic
from fl_sketch.engine.experiment import Hyperparameters
from fl_sketch.privacy import accounting, clipping, lattice, mechanism
from fl_sketch.privacy.guarantee import (
    LEAST,
    RANDOMNESS,
    Guarantee,
    promised,
    rounded_up,
)

BOUNDS = {"clip": clipping.clip, "normalise": clipping.normalise}


class Protection(NamedTuple):
    """How a config protects clients, or their examples.

    Attributes:
      bound: how messages are bounded: the bound of the algorithm, or `privacy.bound`.
      local: whether clients add noise at every local step, to protect examples.
      bounded: whether messages or gradients are bounded, with or without noise.
      noisy: whether noise is added.
      private: whether data that are not public are protected.
    """

    bound: str
    local: bool
    bounded: bool
    noisy: bool
    private: bool


def protection_of(config: ConfigDict) -> Protection:
    """Returns how a config protects clients."""
    method, keys = catalog.method(config.algorithm), config.privacy
    bound = keys.bound if method.bound == "none" else method.bound
    local = method.unit == "example"
    bounded = local or bound != "none"
    noisy = bounded and bool(keys.noise_multiplier or keys.target_epsilon)
    return Protection(bound, local, bounded, noisy, noisy and not config.data.public)


def expected(config: ConfigDict) -> int:
    """Returns the expected number of clients in a round, by which sums are divided."""
    everyone = config.cohort.sampling == "everyone"
    return config.data.clients if everyone else config.cohort.size


def require_one_unit(configs: Iterable[ConfigDict]) -> None:
    """Raises for configs of one table that protect different units, without a total."""
    private = (config for config in configs if protection_of(config).private)
    units = sorted({config.privacy.unit for config in private})
    if len(units) > 1:
        msg = (
            "config.privacy: Expected the same unit in all runs of a table, got "
            f"unit={' and unit='.join(units)}."
        )
        raise ValueError(msg)


def check_data(config: ConfigDict, splits: datasets.Splits) -> None:
    """Raises for private data that decide the form of a private run's model.

    A vocabulary, a number of classes or clients, or means of pixels that are computed
    from private data would be released without noise: one new word of one client
    changes the model's shape.
    """
    learnt = list(splits.learnt)
    for key, unsaid in (("clients", 0), ("standardise", MEASURED)):
        learnt += [(key, unsaid)] if config.data[key] == unsaid else []
    if not learnt or not protection_of(config).private:
        return
    key, value = learnt[-1]
    msg = (
        f"config.data: Expected {key} to be set in a private run, got {key}={value!r}, "
        "which would read it from the private data."
    )
    raise ValueError(msg)


def check(config: ConfigDict) -> None:
    """Raises in one line for a privacy section that does not fit the other keys."""
    protection, privacy = protection_of(config), config.privacy
    with section("privacy"):
        if 0 < (target := privacy.target_epsilon) < LEAST:
            msg = f"Expected target_epsilon to be 0 or >= {LEAST}, got {target}."
            raise ValueError(msg)
        accounting.between(accounting.LEAST_DELTA, 1, delta=privacy.delta)
        if (privacy.noise_multiplier or target) and not protection.bounded:
            msg = (
                "Expected bound to be one of clip, normalise, adaptive with noise, "
                f"got bound={privacy.bound!r}."
            )
            raise ValueError(msg)
    method, local = f"algorithm={config.algorithm}", protection.local
    noise = f"noise={privacy.noise}"
    rules: list[tuple[str, tuple[str, ...], str]] = [
        ("privacy.unit", ("example",) if local else ("client",), method),
        ("privacy.bound", ("none",) if local else ("none", protection.bound), method),
    ]
    if protection.bounded:
        rules.append(("cohort.weighting", ("equal",), "privacy"))
        rules.append(("cohort.sampling", accounting.SAMPLINGS, "privacy"))
        if privacy.noise in lattice.KINDS:
            rules.append(("privacy.relation", ("replace_one",), noise))
            rules.append(("cohort.sampling", ("fixed", "everyone"), f"privacy.{noise}"))
    if local:
        rules.append(("client.batches", ("subsets", "whole"), "unit=example"))
    for key, allowed, why in rules:
        (place, name), value = key.split("."), flat(config)[key]
        if value not in allowed:
            msg = f"config.{place}: Expected {name}={' or '.join(allowed)} with {why}, "
            raise ValueError(msg + f"got {name}={value!r}.")


def guarded(
    config: ConfigDict,
    algorithm: Algorithm,
    z: float,
    hyperparameters: Hyperparameters,
    params: Tree,
) -> Algorithm:
    """Returns an `algorithm` with the config's mechanism, if messages are bounded.

    Its noise has the multiplier z. `params` are shapes of what trains of the model.
    """
    bound, local, bounded, *_ = protection_of(config)
    if bounded and isinstance(params, trees.Stateful):
        msg = (
            "config.model: Expected a model without batch statistics in a private run, "
            "since no bound covers them, got one with them: set norm=group for a "
            "resnet, and use GroupNorm or LayerNorm in a model of your own."
        )
        raise ValueError(msg)
    if bound == "none":  # of messages: none, or gradients have one
        return algorithm
    if algorithm.mechanism and plugins.named(config.algorithm):
        msg = (
            "Expected an algorithm without a mechanism, since privacy.* adds one, got "
            f"algorithm={config.algorithm} with its own, which runs only in "
            "simulate."
        )
        raise ValueError(msg)
    privacy, size, threshold = config.privacy, expected(config), "privacy.threshold"
    common = {"noise_multiplier": z, "denominator": size}
    with section("privacy"):
        if privacy.bits or privacy.noise in lattice.KINDS:
            validate.one_of(tuple(BOUNDS), bound=bound)
            smallest = 0
            if privacy.noise in lattice.KINDS:
                smallest = privacy.smallest_cohort or size
                validate.at_most(size, "the cohort", smallest_cohort=smallest)
            poisson = config.cohort.sampling == "poisson"
            most = accounting.places_for(config.data.clients, size) if poisson else size
            guard = mechanism.integers(
                BOUNDS[bound](hyperparameters[threshold]),
                bits=privacy.bits,
                smallest=smallest,
                most=most,
                **common,
            )
        elif bound == "adaptive":
            noise = privacy.quantile_noise or size / 20
            if z and noise <= z / 2:  # nothing of z is left for the messages
                msg = (
                    f"Expected quantile_noise > {rounded_up(z / 2)} with a noise "
                    f"multiplier of {rounded_up(z)}, got quantile_noise={noise:g}."
                )
                raise ValueError(msg)
            guard = mechanism.adaptive(
                hyperparameters[threshold],
                quantile=privacy.quantile,
                rate=privacy.quantile_rate,
                count_noise=noise,
                **common,
            )
        else:
            guard = mechanism.central(
                BOUNDS[bound](hyperparameters[threshold]), **common
            )
    return algorithm._replace(mechanism=guard)


def guarantee_of(
    config: ConfigDict,
    noiseless: Algorithm,
    traffic: Traffic,
    sampler: Sampler,
    d: int,
    sizes: Collection[int],
    *,
    partition: str,
    noise_multiplier: float = 0.0,
) -> Guarantee | None:
    """Returns a config's privacy guarantee; None: nothing is bounded.

    Args:
      noiseless: the algorithm without its noise, which depends on what is counted here.
      traffic: that of a client in a round.
      d: the number of the model's parameters.
      sizes: how many examples each client has.
      partition: a name of who has which: if it is equal, so are the clients.
      noise_multiplier: z; 0: that of the config, or the least for its target.
    """
    protection, own, client = protection_of(config), config.privacy, config.client
    if not protection.bounded:
        return None
    terms = {"relation": own.relation}
    with section("privacy"):
        if noiseless.mechanism:
            terms |= {"rounds": config.rounds}
            plan = engine.plan_of(noiseless.mechanism, sampler, traffic, **terms)
        else:  # clients add the noise; the smallest one is drawn in every round
            smallest, whole = int(min(sizes)), client.batches == "whole"
            if whole and {*map(int, sizes)} != {client.batch}:
                msg = (
                    "Expected every client to have client.batch examples with "
                    "unit=example and client.batches=whole, got client.batch="
                    f"{client.batch} and clients with {smallest} to {max(sizes)}."
                )
                raise ValueError(msg)
            validate.at_most(smallest, "the smallest client", batch=client.batch)
            plan = accounting.Plan(
                steps=config.rounds * client.steps,
                sample=client.batch,
                population=smallest,
                sampling="everyone" if whole else "fixed",
                coordinates=d,
                **terms,
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
            public=config.data.public,
            partition=partition if protection.private else "",
        )


def require_sizes(guarantee: Guarantee | None, sizes: Collection[int]) -> None:
    """Raises if a client of another seed has fewer examples than a guarantee assumes.

    A guarantee for clients assumes nothing.
    """
    if not guarantee or guarantee.unit != "example":
        return
    if min(sizes) < (least := guarantee.plan.population):
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
