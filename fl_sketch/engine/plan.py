"""The plan of a run for the accountant, counted in its program and not its config."""

from fl_sketch.core.protocols import Mechanism
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.costs import Traffic
from fl_sketch.privacy import accounting


def plan_of(
    mechanism: Mechanism,
    sampler: Sampler,
    traffic: Traffic,
    *,
    rounds: int,
    relation: str,
) -> accounting.Plan:
    """Returns the plan of a run in which a mechanism guards every exchange.

    Args:
      traffic: that of the algorithm with this mechanism.
      relation: the relation of neighbours, one of `accounting.RELATIONS`.
    """
    if mechanism.integers and traffic.coded:
        msg = "Expected an algorithm whose messages are floats, which become integers, "
        msg += "got one of coded messages."
        raise ValueError(msg)
    if sampler.sampling not in accounting.SAMPLINGS:
        msg = (
            "Expected cohorts of everyone, fixed_size or poisson, with equal weights, "
            "with a mechanism, got others: no accountant covers them."
        )
        raise ValueError(msg)
    if mechanism.smallest and (
        sampler.sampling == "poisson" or relation != "replace_one"
    ):  # all see whether there were enough, and so how many
        msg = (
            "Expected relation='replace_one' and cohorts of everyone or fixed_size "
            f"with noise in shares, got {relation!r} and {sampler.sampling!r}."
        )
        raise ValueError(msg)
    if traffic.stateful and sampler.sampling == "fixed":
        # Such states show who took part in earlier rounds, and so whether a client did.
        # An accountant assumes that the sample of each round is secret.
        msg = (
            "Expected cohorts of everyone or poisson where clients keep a state, got "
            "cohort.sampling=fixed."
        )
        raise ValueError(msg)
    integers = mechanism.integers and mechanism.integers.of(traffic.sent)
    numbers = sum(integers.lengths if integers else traffic.sent)
    population, size = sampler.population, sampler.size
    poisson = sampler.sampling == "poisson"
    return accounting.Plan(
        steps=rounds,
        sample=size,
        population=population,
        sampling=sampler.sampling,
        releases=len(traffic.sent),
        relation=relation,
        coordinates=numbers + mechanism.extra,
        cut=accounting.cut_chance(population, size) if poisson else 0.0,
        integers=integers,
    )
