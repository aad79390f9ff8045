"""From the privacy section of a config to a mechanism; refused if it cannot be one."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jax.typing import ArrayLike
from ml_collections import ConfigDict

from fl_sketch import models
from fl_sketch.algorithms import catalog
from fl_sketch.config import build, inputs
from fl_sketch.config.parse import Numbers, section
from fl_sketch.core import plugins, trees, validate
from fl_sketch.core.mappings import flat
from fl_sketch.core.protocols import Algorithm, Mechanism, Tree
from fl_sketch.data import datasets
from fl_sketch.privacy import accounting, clipping, lattice, mechanism
from fl_sketch.privacy.guarantee import LEAST, rounded_up

ALLOWED_BITS = tuple(range(lattice.SHORTEST, lattice.LONGEST + 1))
BOUNDS = {"clip": clipping.clip, "normalise": clipping.normalise}


class Protection(NamedTuple):
    """How a config protects clients, or their examples.

    Attributes:
      keys: the privacy section.
      bound: how messages are bounded: the bound of the algorithm, or `privacy.bound`.
      local: whether clients add noise at every local step, to protect examples.
      public: whether the data are public.
    """

    keys: ConfigDict
    bound: str
    local: bool
    public: bool

    @property
    def bounded(self) -> bool:
        """Whether messages or gradients are bounded, with or without noise."""
        return self.local or self.bound != "none"

    @property
    def noisy(self) -> bool:
        """Whether noise is added."""
        asked = self.keys.noise_multiplier or self.keys.target_epsilon
        return bool(asked and self.bounded)

    @property
    def private(self) -> bool:
        """Whether data that are not public are protected."""
        return self.noisy and not self.public


def protection_of(config: ConfigDict) -> Protection:
    """Returns how a config protects clients."""
    method, keys = catalog.method(config.algorithm), config.privacy
    bound = keys.bound if method.bound == "none" else method.bound
    return Protection(keys, bound, method.unit == "example", config.data.public)


def expected(config: ConfigDict) -> int:
    """Returns the expected number of clients in a round, by which sums are divided."""
    everyone = config.cohort.sampling == "everyone"
    return config.data.clients if everyone else config.cohort.size


def require_one_unit(configs: Iterable[ConfigDict]) -> None:
    """Raises for configs of one table that protect different units, without a total."""
    protections = map(protection_of, configs)
    units = sorted({own.keys.unit for own in protections if own.private})
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
    for key, unsaid in (("clients", 0), ("standardise", inputs.MEASURED)):
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
    """Raises in one line for a privacy section that cannot be kept."""
    protection = protection_of(config)
    privacy = protection.keys
    with section("privacy"):
        for name in ("noise_multiplier", "target_epsilon"):
            if 0 < privacy[name] < LEAST:
                value = privacy[name]
                msg = f"Expected {name} to be 0 or >= {LEAST}, got {name}={value}."
                raise ValueError(msg)
        accounting.between(accounting.LEAST_DELTA, 1, delta=privacy.delta)
        noise = privacy.noise_multiplier or privacy.target_epsilon
        if noise and not protection.bounded:
            msg = (
                "Expected bound to be one of clip, normalise, adaptive with noise, "
                f"got bound={privacy.bound!r}."
            )
            raise ValueError(msg)
    values = flat(config)
    for key, allowed, why in _rules(protection, config.algorithm):
        place, _, name = key.rpartition(".")
        if values[key] not in allowed:
            choice = " or ".join(map(str, allowed)) or "''"
            if allowed == ALLOWED_BITS:
                choice = f"{allowed[0]} to {allowed[-1]}"
            msg = f"Expected {name}={choice} with {why}, got {name}={values[key]!r}."
            with section(place):
                raise ValueError(msg)


def _rules(protection: Protection, algorithm: str) -> Iterator[tuple[str, tuple, str]]:
    """Yields keys, the values that they may have here, and why."""
    privacy, bound, local, _ = protection
    algorithm = f"algorithm={algorithm}"
    yield "privacy.unit", ("example",) if local else ("client",), algorithm
    yield "privacy.bound", ("none",) if local else ("none", bound), algorithm
    if not protection.bounded:
        return
    yield "cohort.weighting", ("equal",), "privacy"
    yield "cohort.sampling", accounting.SAMPLINGS, "privacy"
    if local:
        yield "client.batches", ("subsets", "whole"), "unit=example"
    noise = f"noise={privacy.noise}"
    if privacy.bits or privacy.noise != "central":
        yield "privacy.bits", ALLOWED_BITS, noise if not privacy.bits else "integers"
        yield "privacy.bound", ("none", "clip", "normalise"), "integers"
    if privacy.noise != "central":
        yield "privacy.relation", ("replace_one",), noise
        yield "cohort.sampling", ("fixed", "everyone"), f"privacy.{noise}"


def algorithm_of(
    config: ConfigDict, loss: models.Loss, params: Tree, numbers: Numbers, z: float
) -> Algorithm:
    """Returns the algorithm of a config with its mechanism, and noise of multiplier z.

    `params` are shapes of what trains of the model.
    """
    bare = build.algorithm_of(config, loss, params, numbers, z)
    return guarded(config, bare, z, numbers, params)


def guarded(
    config: ConfigDict,
    algorithm: Algorithm,
    noise_multiplier: float,
    numbers: Numbers,
    params: Tree,
) -> Algorithm:
    """Returns an `algorithm` with the config's mechanism, if messages are bounded."""
    protection = protection_of(config)
    if not protection.bounded:
        return algorithm
    if isinstance(params, trees.Stateful):
        msg = (
            "config.model: Expected a model without batch statistics in a private run, "
            "since no bound covers them, got one with them: set norm=group for a "
            "resnet, and use GroupNorm or LayerNorm in a model of your own."
        )
        raise ValueError(msg)
    bound = protection.bound
    if bound == "none":
        return algorithm
    _require_bare(config, algorithm)
    with section("privacy"):
        guard = _mechanism(
            config, bound, numbers["privacy.threshold"], noise_multiplier
        )
    return algorithm._replace(mechanism=guard)


def _require_bare(config: ConfigDict, algorithm: Algorithm) -> None:
    """Raises for a mechanism of one's own, which the config's would replace."""
    if algorithm.mechanism and plugins.named(config.algorithm):
        msg = (
            "Expected an algorithm without a mechanism, since privacy.* adds one, got "
            f"algorithm={config.algorithm} with its own, which runs only in "
            "simulate."
        )
        raise ValueError(msg)


def _mechanism(
    config: ConfigDict, bound: str, threshold: ArrayLike, z: float
) -> Mechanism:
    """Returns the mechanism of a config whose bound and threshold are known."""
    privacy, size = config.privacy, expected(config)
    common = {"noise_multiplier": z, "denominator": size}
    if privacy.bits:
        shared = privacy.noise in lattice.KINDS
        smallest = (privacy.smallest_cohort or size) * shared
        validate.at_most(size, "the cohort", smallest_cohort=smallest)
        places, poisson = accounting.places_for, config.cohort.sampling == "poisson"
        return mechanism.integers(
            BOUNDS[bound](threshold),
            bits=privacy.bits,
            smallest=smallest,
            most=places(config.data.clients, size) if poisson else size,
            **common,
        )
    if bound == "adaptive":
        noise = privacy.quantile_noise or size / 20
        if z and noise <= z / 2:  # nothing of z is left for the messages
            msg = (
                f"Expected quantile_noise > {rounded_up(z / 2)} with a noise "
                f"multiplier of {rounded_up(z)}, got quantile_noise={noise:g}."
            )
            raise ValueError(msg)
        return mechanism.adaptive(
            threshold,
            quantile=privacy.quantile,
            rate=privacy.quantile_rate,
            count_noise=noise,
            **common,
        )
    return mechanism.central(BOUNDS[bound](threshold), **common)
