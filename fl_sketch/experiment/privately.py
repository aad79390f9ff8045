"""From the privacy section of a config to a mechanism and what it promises.

The accountant is told what the program does, and not what a config says of it: the
releases of a round are counted in the algorithm as traced, the sampler's name is
that of the sampler, and the noise multiplier is the mechanism's own.

What holds beside the promise: clients that drop out, for reasons that do not depend
on their data, only help, and get no credit. A Poisson cohort has places for all but
one round in 10^12, which adds less than that for each round to delta.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fl_sketch import channels, validate
from fl_sketch.engine import ledger
from fl_sketch.experiment import parts
from fl_sketch.experiment.choices import Numbers, section
from fl_sketch.privacy import accounting, bounding, mechanism
from fl_sketch.protocols import Algorithm, Mechanism, Tree
from fl_sketch.wire import FLOAT_BITS

BOUNDS = ("none", "clip", "normalise", "adaptive")
OWN_BOUND = {"dp_fedavg": "clip", "dp_normfedavg": "normalise"}
LOCAL_NOISE = ("private_sketching",)

# `(numbers, z) -> Algorithm`, before a mechanism is put on it.
Bare = Callable[[Numbers, float], Algorithm]


class Promise(NamedTuple):
    """What a run may say of its privacy, and how long it may go on."""

    plan: accounting.Plan  # of all rounds that were asked for
    noise_multiplier: float
    delta: float
    accountant: str
    rounds: int  # with which the run ends
    per_round: int  # the plan's steps in a round
    unit: str

    def epsilon(self, rounds: int) -> float | None:
        """Returns what so many rounds gave away; None without noise: all."""
        if not self.noise_multiplier:
            return None
        plan = self.plan._replace(steps=rounds * self.per_round)
        return _spent(plan, self.noise_multiplier, self.delta, self.accountant)

    @property
    def facts(self) -> dict[str, Any]:
        """Returns what the summary says of it."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "releases": self.plan.releases * self.per_round,  # a round
            "privacy_unit": self.unit,
            "relation": self.plan.relation,
            "accountant": self.accountant,
        }


def kind(config: ConfigDict) -> str:
    """Returns how messages are bounded: one of `BOUNDS`."""
    return OWN_BOUND.get(config.algorithm, config.privacy.bound)


def check(config: ConfigDict) -> None:
    """Raises, in one line, for a privacy section that cannot be kept, before data."""
    local = config.algorithm in LOCAL_NOISE
    with section("privacy"):
        _check_values(config.privacy)
        _check_algorithm(config, local)
    if kind(config) == "none" and not local:
        return
    with section("cohort"):
        _only(("equal",), "a bound on every client", config.cohort, "weighting")
        _only(accounting.SAMPLINGS, "an accountant", config.cohort, "sampling")
    _check_forms(config)
    with section("client"):
        if local:
            _only(("subsets", "whole"), "unit=example", config.client, "batches")


def _check_values(privacy: ConfigDict) -> None:
    validate.one_of(BOUNDS, bound=privacy.bound)
    validate.one_of(("central", "distributed"), noise=privacy.noise)
    validate.one_of(("message", "update"), form=privacy.form)
    validate.one_of(accounting.RELATIONS, relation=privacy.relation)
    validate.one_of(("auto", *accounting.ACCOUNTANTS), accountant=privacy.accountant)
    validate.in_range(0, math.inf, noise_multiplier=privacy.noise_multiplier)
    validate.in_range(0, math.inf, target_epsilon=privacy.target_epsilon)
    validate.in_range(0, math.inf, quantile_rate=privacy.quantile_rate)
    validate.in_range(0, math.inf, smallest_cohort=privacy.smallest_cohort)
    if not 0 < privacy.delta < 1:
        msg = f"Expected 0 < delta < 1, got delta={privacy.delta}."
        raise ValueError(msg)


def _check_algorithm(config: ConfigDict, local: bool) -> None:
    """Raises unless the algorithm is one for the bound and the unit asked for."""
    privacy, why = config.privacy, f"algorithm={config.algorithm}"
    _only(("example",) if local else ("client",), why, privacy, "unit")
    bounds = ("none",) if local else ("none", kind(config))
    _only(bounds, why, privacy, "bound")
    noisy = privacy.noise_multiplier or privacy.target_epsilon
    if noisy and kind(config) == "none" and not local:
        msg = (
            "Expected bound to be one of clip, normalise, adaptive with noise, "
            f"got bound={privacy.bound!r}."
        )
        raise ValueError(msg)


def _check_forms(config: ConfigDict) -> None:
    privacy = config.privacy
    with section("privacy"):
        if privacy.form == "update":
            _only(("safl",), "privacy.form=update", config, "algorithm")
            _only(("clip", "normalise"), "form=update", privacy, "bound")
            _only(("central",), "form=update", privacy, "noise")
        if privacy.noise == "distributed":
            _only(("none", "clip", "normalise"), "noise=distributed", privacy, "bound")
            _only(("replace_one",), "noise=distributed", privacy, "relation")
    if privacy.noise == "distributed":
        with section("cohort"):
            ways = ("fixed", "everyone")
            _only(ways, "privacy.noise=distributed", config.cohort, "sampling")


def promise_of(
    config: ConfigDict,
    bare: Bare,
    numbers: Numbers,
    params: Tree,
    batches: Tree,
    sizes: Callable[[], Sequence[int]],
) -> Promise | None:
    """Returns what a config promises, its noise calibrated; None: nothing is private.

    Args:
      config: checked.
      bare: makes the algorithm.
      numbers: the continuous keys.
      params: shapes of the model.
      batches: shapes of what a client trains on in a round.
      sizes: how many examples each client has, for unit=example.
    """
    local, privacy = config.algorithm in LOCAL_NOISE, config.privacy
    if kind(config) == "none" and not local:
        return None
    # Without noise: how much there must be depends on what is counted here.
    silent = _guarded(config, bare, 0.0, numbers, params)
    talk = ledger.overheard(silent, params, batches)
    with section("privacy"):
        _require_floats(config, talk)
        per_round = config.client.steps if local else 1
        plan = _example_plan(config, sizes()) if local else _client_plan(config, talk)
        name, z = privacy.accountant, privacy.noise_multiplier
        name = accounting.accountant_for(plan) if name == "auto" else name
        if privacy.target_epsilon or z:
            accounting.require(plan, name)
            accounting.require_delta(plan, privacy.delta)
        if privacy.target_epsilon and not z:
            z = accounting.calibrate(
                plan,
                epsilon=privacy.target_epsilon,
                delta=privacy.delta,
                accountant=name,
            )
            rounds = config.rounds
        else:
            rounds = _rounds_within(privacy, plan, name, per_round)
    return Promise(plan, z, privacy.delta, name, rounds, per_round, privacy.unit)


def _rounds_within(privacy: ConfigDict, plan, accountant: str, per_round: int) -> int:
    """Returns for how many rounds the given noise keeps the target, if there is one."""
    z, target = privacy.noise_multiplier, privacy.target_epsilon
    if not target:
        return plan.steps // per_round
    steps = accounting.steps_within(
        plan, z, epsilon=target, delta=privacy.delta, accountant=accountant
    )
    if steps < per_round:
        one = _spent(plan._replace(steps=per_round), z, privacy.delta, accountant)
        msg = (
            f"Expected target_epsilon >= {one:.4g}, what one round gives away, "
            f"got target_epsilon={target}."
        )
        raise ValueError(msg)
    return steps // per_round


def require_sizes(promise: Promise | None, sizes: Sequence[int]) -> None:
    """Raises if a client has fewer examples than the promise to them assumed."""
    if promise and promise.unit == "example":
        if min(sizes) >= promise.plan.population:
            return
        msg = (
            f"Expected clients of at least {promise.plan.population} examples, as with "
            f"the config's own seed, got one of {min(sizes)}."
        )
        raise ValueError(msg)


def guarded(
    config: ConfigDict,
    bare: Bare,
    promise: Promise | None,
    numbers: Numbers,
    params: Tree,
) -> Algorithm:
    """Returns the algorithm with the config's mechanism, its noise as promised."""
    z = promise.noise_multiplier if promise else 0.0
    return _guarded(config, bare, z, numbers, params)


def _guarded(config, bare, z: float, numbers: Numbers, params: Tree) -> Algorithm:
    algorithm = bare(numbers, z)
    if kind(config) == "none":
        return algorithm
    with section("privacy"):
        if config.privacy.form == "update":
            channel, guard = mechanism.before_sketch(
                parts.sketch_of(config, params),
                params,
                _bound(config, numbers),
                noise_multiplier=z,
                denominator=_expected(config),
            )
            channel = channels.clipped(channel, numbers["client.clip"])
            return algorithm._replace(uplink=channel, mechanism=guard)
        return algorithm._replace(mechanism=_mechanism(config, z, numbers))


def _mechanism(config: ConfigDict, z: float, numbers: Numbers) -> Mechanism:
    privacy, size = config.privacy, _expected(config)
    common = {"noise_multiplier": z, "denominator": size}
    if privacy.noise == "distributed":
        smallest = privacy.smallest_cohort or size
        validate.at_most(size, "the cohort", smallest_cohort=smallest)
        return mechanism.distributed(
            _bound(config, numbers), smallest=smallest, **common
        )
    if kind(config) == "adaptive":
        return mechanism.adaptive(
            numbers["privacy.threshold"],
            quantile=privacy.quantile,
            rate=privacy.quantile_rate,
            count_noise=privacy.quantile_noise or size / 20,
            **common,
        )
    return mechanism.central(_bound(config, numbers), **common)


def _bound(config: ConfigDict, numbers: Numbers) -> bounding.Bound:
    make = {"clip": bounding.clip, "normalise": bounding.normalise}[kind(config)]
    return make(numbers["privacy.threshold"])


def _expected(config: ConfigDict) -> int:
    """Returns the fixed denominator: how many clients are expected in a round."""
    everyone = config.cohort.sampling == "everyone"
    return config.data.clients if everyone else config.cohort.size


def _client_plan(config: ConfigDict, talk: ledger.Talk) -> accounting.Plan:
    return accounting.Plan(
        steps=config.rounds,
        sample=_expected(config),
        population=config.data.clients,
        sampling=config.cohort.sampling,
        releases=len(talk.sent),
        relation=config.privacy.relation,
    )


def _example_plan(config: ConfigDict, sizes: Sequence[int]) -> accounting.Plan:
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
        steps=config.rounds * client.steps,
        sample=client.batch,
        population=smallest,
        sampling="everyone" if whole else "fixed",
        relation=config.privacy.relation,
    )


def _require_floats(config: ConfigDict, talk: ledger.Talk) -> None:
    """Raises if distributed noise would be added to what is no longer floats."""
    if config.privacy.noise == "distributed" and talk.bits_up != FLOAT_BITS * sum(
        talk.sent
    ):
        msg = (
            "Expected messages of floats with noise=distributed, "
            f"got algorithm={config.algorithm!r} with {talk.bits_up} bits."
        )
        raise ValueError(msg)


def _spent(plan, z: float, delta: float, accountant: str) -> float:
    return accounting.epsilon(plan, z, delta=delta, accountant=accountant)


def _only(allowed: Sequence[str], why: str, place: ConfigDict, key: str) -> None:
    if place[key] not in allowed:
        choice = " or ".join(allowed)
        msg = f"Expected {key}={choice} with {why}, got {key}={place[key]!r}."
        raise ValueError(msg)
