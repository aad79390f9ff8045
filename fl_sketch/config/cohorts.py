"""From the cohort section of a config to samplers of cohorts."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.config.parse import section
from fl_sketch.core import validate
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.costs import Traffic


class Cohorts(NamedTuple):
    """The clients of a round.

    Attributes:
      sampler: the sampler of cohorts, in which all clients have equal weights.
      weighted: `(starts) -> Sampler` with the weights that a config asks for. Client i
        has the examples from starts[i] to starts[i + 1]; in a sweep over seeds the
        first of them is not zero.
    """

    sampler: Sampler
    weighted: Callable[[jax.Array], Sampler]


def cohorts_of(config: ConfigDict, traffic: Traffic) -> Cohorts:
    """Returns the cohorts of a config, whose clients have this `traffic`.

    Raises:
      ValueError: in one line, for a wrong cohort section.
    """
    cohort, population = config.cohort, config.data.clients
    samplers = {
        "everyone": lambda: engine.everyone(population),
        "fixed": lambda: engine.fixed_size(population, cohort.size),
        "poisson": lambda: engine.poisson(population, cohort.size),
        "replacement": lambda: engine.with_replacement(population, cohort.size),
    }
    with section("cohort"):
        validate.one_of(tuple(samplers), sampling=cohort.sampling)
        sampler = samplers[cohort.sampling]()
        if traffic.counts and cohort.weighting != "equal":
            msg = (
                f"{config.algorithm} needs weighting='equal': its server keeps a mean "
                f"over all clients; got weighting={cohort.weighting!r}."
            )
            raise ValueError(msg)
        if traffic.stateful and sampler.repeats:
            msg = (
                f"{config.algorithm} needs different clients in a round: each keeps a "
                "state; got sampling='replacement'."
            )
            raise ValueError(msg)
        if cohort.dropout:
            sampler = engine.with_dropout(sampler, cohort.dropout)

    def weighted(starts: jax.Array) -> Sampler:
        if cohort.weighting == "equal":
            return sampler
        fixed = cohort.sampling == "poisson"
        return engine.weighted(
            sampler,
            lambda ids: (starts[ids + 1] - starts[ids]).astype(jnp.float32),
            average=(starts[-1] - starts[0]) / population if fixed else None,
        )

    return Cohorts(sampler, weighted)
