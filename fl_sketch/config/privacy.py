"""From the privacy section of a config to a mechanism; refused if it cannot be one."""

import functools
from collections.abc import Callable, Iterable, Sequence

from ml_collections import ConfigDict

from fl_sketch import channels
from fl_sketch.algorithms import catalog
from fl_sketch.config import arguments, build, inputs
from fl_sketch.config.parse import LEAST, Numbers, section
from fl_sketch.core import trees, validate
from fl_sketch.core.protocols import Algorithm, Mechanism, Tree
from fl_sketch.data import datasets
from fl_sketch.privacy import accounting, clipping, mechanism, noised_metrics

# `(numbers, z) -> Algorithm`, without a mechanism.
Bare = Callable[[Numbers, float], Algorithm]


def bound_of(config: ConfigDict) -> str:
    """Returns how messages are bounded, a value of `privacy.bound`.

    It is the bound that the algorithm brings, or else that of the privacy section.
    """
    own = catalog.method(config.algorithm).bound
    return config.privacy.bound if own == "none" else own


def local_noise(config: ConfigDict) -> bool:
    """Returns whether clients add noise at every local step, to protect examples."""
    return catalog.method(config.algorithm).unit == "example"


def is_noisy(config: ConfigDict) -> bool:
    """Returns whether `config` adds noise, and so protects somebody."""
    bounded = bound_of(config) != "none" or local_noise(config)
    noise = config.privacy.noise_multiplier or config.privacy.target_epsilon
    return bool(bounded and noise)


def protects(config: ConfigDict) -> bool:
    """Returns whether `config` protects data that are not public."""
    return is_noisy(config) and not config.data.public


def require_one_unit(configs: Iterable[ConfigDict]) -> None:
    """Raises for configs of one table that protect unlike units: they have no total."""
    units = sorted({one.privacy.unit for one in configs if protects(one)})
    if len(units) > 1:
        msg = (
            "config.privacy: Expected one unit in all runs of a table, got "
            f"unit={' and unit='.join(units)}."
        )
        raise ValueError(msg)


def check_data(config: ConfigDict, splits: datasets.Splits) -> None:
    """Raises for private data that decide what a private run's model looks like.

    A vocabulary, a number of classes or clients, or means of pixels that are found in
    private data are released without noise: one new word of one client changes the
    model's shape.
    """
    learnt = list(splits.learnt)
    for key, unsaid in (("clients", 0), ("standardise", inputs.MEASURED)):
        learnt += [(key, unsaid)] if config.data[key] == unsaid else []
    if not protects(config) or not learnt:
        return
    key, value = learnt[-1]
    msg = (
        f"config.data: Expected {key} to be fixed beforehand, since privacy is asked "
        f"for, got {key}={value!r}: it would be found in private data."
    )
    raise ValueError(msg)


def check(config: ConfigDict) -> None:
    """Raises in one line for a privacy section that cannot be kept."""
    local, privacy = local_noise(config), config.privacy
    why = f"algorithm={config.algorithm}"
    with section("privacy"):
        for name in ("noise_multiplier", "target_epsilon"):
            if 0 < privacy[name] < LEAST:
                value = privacy[name]
                msg = f"Expected {name} to be 0 or >= {LEAST}, got {name}={value}."
                raise ValueError(msg)
        accounting.between(0, 1, delta=privacy.delta)
        _only(("example",) if local else ("client",), why, privacy, "unit")
        bounds = ("none",) if local else ("none", bound_of(config))
        _only(bounds, why, privacy, "bound")
        noise = privacy.noise_multiplier or privacy.target_epsilon
        if noise and bound_of(config) == "none" and not local:
            msg = (
                "Expected bound to be one of clip, normalise, adaptive with noise, "
                f"got bound={privacy.bound!r}."
            )
            raise ValueError(msg)
    if bound_of(config) == "none" and not local:
        return
    _check_watching(config, local)
    with section("cohort"):
        _only(("equal",), "a bound on every client", config.cohort, "weighting")
        _only(accounting.SAMPLINGS, "an accountant", config.cohort, "sampling")
        for key in ("available", "times"):
            _only(("",), "an accountant, who knows no such cohorts", config.cohort, key)
    _check_forms(config)
    with section("client"):
        if local:
            _only(("subsets", "whole"), "unit=example", config.client, "batches")


def _check_forms(config: ConfigDict) -> None:
    privacy = config.privacy
    with section("privacy"):
        if privacy.form == "update":
            able = [one.name for one in catalog.methods().values() if one.before_sketch]
            _only(able, "privacy.form=update", config, "algorithm")
            _only(("clip", "normalise"), "form=update", privacy, "bound")
            _only(("central",), "form=update", privacy, "noise")
        if privacy.noise == "distributed":
            _only(("none", "clip", "normalise"), "noise=distributed", privacy, "bound")
            _only(("replace_one",), "noise=distributed", privacy, "relation")
    if privacy.noise == "distributed":
        with section("cohort"):
            ways = ("fixed", "everyone")
            _only(ways, "privacy.noise=distributed", config.cohort, "sampling")


def _check_watching(config: ConfigDict, local: bool) -> None:
    privacy = config.privacy
    if not privacy.watch:
        return
    with section("privacy"):
        if local:
            msg = "Expected watch=False with unit=example, got watch=True."
            raise ValueError(msg)
        _only(("message",), "watch=True", privacy, "form")
        _only(("central",), "watch=True", privacy, "noise")
        validate.in_range(LEAST, 1 / LEAST, watch_loss=privacy.watch_loss)
        metrics = build.metrics_of(config)
        if "accuracy" not in metrics:
            msg = (
                "Expected accuracy among the metrics with watch=True, got "
                f"model.metrics={','.join(metrics)}."
            )
            raise ValueError(msg)


def guarded(
    config: ConfigDict,
    bare: Bare,
    noise_multiplier: float,
    numbers: Numbers,
    params: Tree,
) -> Algorithm:
    """Returns the algorithm with the config's mechanism; without a bound, as it is.

    Args:
      bare: what makes the algorithm.
      noise_multiplier: z; 0 for the same without noise.
      params: shapes of the model.
    """
    algorithm = bare(numbers, noise_multiplier)
    if bound_of(config) == "none" and not local_noise(config):
        return algorithm
    if isinstance(params, trees.Stateful):
        msg = (
            "config.model: Expected a model of parameters alone where messages are "
            "bounded, got one that keeps statistics of batches, which no bound covers: "
            "a resnet has norm=group."
        )
        raise ValueError(msg)
    if bound_of(config) == "none":
        return algorithm
    with section("privacy"):
        if config.privacy.form == "update":
            channel, guard = mechanism.before_sketch(
                arguments.sketch_of(config, trees.size(params)),
                params,
                _bound(config, numbers),
                noise_multiplier=noise_multiplier,
                denominator=expected(config),
            )
            channel = channels.clipped(channel, numbers["client.clip"])
            return algorithm._replace(uplink=channel, mechanism=guard)
        make = functools.partial(_mechanism, config, numbers)
        if not config.privacy.watch:
            return algorithm._replace(mechanism=make(noise_multiplier))
        ranges = ((0.0, config.privacy.watch_loss), (0.0, 1.0))
        return algorithm._replace(
            mechanism=noised_metrics.watching(
                make,
                dict(zip(build.WATCHED, ranges, strict=True)),
                noise_multiplier=noise_multiplier,
                noise=config.privacy.watch_noise or expected(config) / 20,
            )
        )


def _mechanism(config: ConfigDict, numbers: Numbers, z: float) -> Mechanism:
    privacy, size = config.privacy, expected(config)
    common = {"noise_multiplier": z, "denominator": size}
    if privacy.noise == "distributed":
        smallest = privacy.smallest_cohort or size
        validate.at_most(size, "the cohort", smallest_cohort=smallest)
        return mechanism.distributed(
            _bound(config, numbers), smallest=smallest, **common
        )
    if bound_of(config) == "adaptive":
        return mechanism.adaptive(
            numbers["privacy.threshold"],
            quantile=privacy.quantile,
            rate=privacy.quantile_rate,
            count_noise=privacy.quantile_noise or size / 20,
            **common,
        )
    return mechanism.central(_bound(config, numbers), **common)


def _bound(config: ConfigDict, numbers: Numbers) -> clipping.Bound:
    make = {"clip": clipping.clip, "normalise": clipping.normalise}[bound_of(config)]
    return make(numbers["privacy.threshold"])


def expected(config: ConfigDict) -> int:
    """Returns the denominator of sums: how many clients are expected in a round.

    It is fixed, whoever takes part: with poisson it is their mean number.
    """
    everyone = config.cohort.sampling == "everyone"
    return config.data.clients if everyone else config.cohort.size


def _only(allowed: Sequence[str], why: str, place: ConfigDict, key: str) -> None:
    if place[key] not in allowed:
        choice = " or ".join(allowed) or "''"
        msg = f"Expected {key}={choice} with {why}, got {key}={place[key]!r}."
        raise ValueError(msg)
