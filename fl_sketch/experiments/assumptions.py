"""Whether a config meets what a theorem assumes, as far as that is known before a run.

Each assumption of a `Bound` is met, not met, or not checked. What is decided follows
from keys of the config alone, or from these and the constants that a user gave as
flags. What depends on the data or on the way of the parameters is not checked.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fl_sketch.algorithms import catalog
from fl_sketch.config import arguments, privacy
from fl_sketch.core import plugins
from fl_sketch.core.mappings import flat
from fl_sketch.privacy.guarantee import rounded_down
from fl_sketch.theory import Assumption
from fl_sketch.theory.bound import ROUNDING
from fl_sketch.workdir.tables import named

MET, NOT_MET, NOT_CHECKED = "met", "not met", "not checked"
DIGITS = 1e-3  # of a step size, which is printed in four digits
WHOLE = {"client.batches": "whole", "data.augment": "none", "model.dropout": 0.0}
PLAIN = {
    "client.optimizer": "sgd",
    "client.weight_decay": 0.0,
    "client.proximal": 0.0,
    "client.decay": 1.0,
}
SERVER = {"server.optimizer": "sgd", "server.schedule": "constant"}
FIXED = ("fixed", "everyone", "replacement")


class Verdict(NamedTuple):
    """What is known of an assumption before a run.

    Attributes:
      status: `MET`, `NOT_MET` or `NOT_CHECKED`.
      why: the keys and numbers that decide it, or what would.
    """

    status: str
    why: str


class Run(NamedTuple):
    """A config, and the constants of its problem.

    Attributes:
      keys: all keys of the config, by their full names.
      read: the keys that its algorithm reads.
      problem: a value for each of `plan.CONSTANTS`.
    """

    config: ConfigDict
    keys: Mapping[str, Any]
    read: set[str]
    problem: Mapping[str, float]


def lines(
    config: ConfigDict,
    problem: Mapping[str, float],
    assumptions: Iterable[Assumption],
) -> list[str]:
    """Returns a line for each assumption: its verdict, itself, and why."""
    run = Run(config, flat(config), arguments.read_by(config), problem)
    judged = [(one, CHECKS[one.about](run, one.value)) for one in assumptions]
    width = len(NOT_CHECKED)
    return [
        f"{verdict.status:{width}}  {one.text} [{verdict.why}]"
        for one, verdict in judged
    ]


def _needs(run: Run, wanted: Mapping[str, Any], met: str = "") -> Verdict:
    """Returns whether keys have these values, as far as the algorithm reads them."""
    carried = {key for one in arguments.ARGUMENTS.values() for key in one.keys}
    wanted = {k: v for k, v in wanted.items() if k in run.read or k not in carried}
    wrong = {key: value for key, value in wanted.items() if run.keys[key] != value}
    if not wrong:
        return Verdict(MET, met or named({key: run.keys[key] for key in wanted}))
    found = named({key: run.keys[key] for key in wrong})
    return Verdict(NOT_MET, f"{found}; met by {named(wrong)}")


def _at_most(run: Run, key: str, most: float) -> Verdict:
    value = run.keys[key]
    if value <= most * (1 + ROUNDING):
        return Verdict(MET, f"{key}={value:g}")
    return Verdict(NOT_MET, f"{key}={value:g}; met by {key}={rounded_down(most)}")


def _at_least(run: Run, key: str, least: float) -> Verdict:
    value = run.keys[key]
    if value >= least * (1 - ROUNDING):
        return Verdict(MET, f"{key}={value:g}")
    return Verdict(NOT_MET, f"{key}={value:g}; met by {key}={math.ceil(least)}")


def _is(run: Run, key: str, value: float) -> Verdict:
    """Returns whether a key has a value that is printed in four digits."""
    if math.isclose(run.keys[key], value, rel_tol=DIGITS):
        return Verdict(MET, f"{key}={run.keys[key]:g}")
    return Verdict(NOT_MET, f"{key}={run.keys[key]:g}; met by {key}={value:.4g}")


def _unknown(words: str) -> Callable[[Run, float], Verdict]:
    """Returns a check that decides nothing; `words` have constants in braces."""
    return lambda run, value: Verdict(NOT_CHECKED, words.format(**run.problem))


def _everyone(run: Run, value: float) -> Verdict:
    del value
    cohort, clients = run.config.cohort, run.config.data.clients
    whole = cohort.sampling == "fixed" and cohort.size == clients
    if not whole and cohort.sampling != "everyone":
        taken = f"{privacy.expected(run.config)} of {clients} clients per round"
        return Verdict(NOT_MET, f"{taken}; met by cohort.sampling=everyone")
    away = {"cohort.dropout": 0.0, "cohort.available": "", "cohort.deadline": 0.0}
    return _needs(run, away, f"{clients} of {clients} clients per round")


def _convex(run: Run, value: float) -> Verdict:
    del value
    model, trains = run.keys["model.name"], run.keys["client.trains"]
    if model == "logistic":
        return Verdict(MET, "model.name=logistic is linear, with a convex loss")
    if trains == "head":
        why = "client.trains=head: met if the last layer is linear"
        return Verdict(NOT_CHECKED, why)
    if plugins.named(model):
        return Verdict(NOT_CHECKED, f"model.name={model} is your own")
    why = f"model.name={model} has several layers; met by model.name=logistic"
    return Verdict(NOT_MET, why)


def _strongly_convex(run: Run, mu: float) -> Verdict:
    """A linear model has the curvature of its weight decay, or more."""
    convex, decay = _convex(run, mu), run.keys["model.weight_decay"]
    if convex.status != MET:
        return convex
    wanted = f"model.weight_decay={decay:g}"
    if decay >= mu * (1 - ROUNDING):
        return Verdict(MET, f"{convex.why}, and {wanted}")
    if run.keys["model.loss"] != "cross_entropy":
        return Verdict(NOT_CHECKED, f"{wanted}; met by model.weight_decay={mu:g}")
    # Equal numbers for all classes change no softmax: only the decay curves that.
    return Verdict(NOT_MET, f"{wanted}; met by model.weight_decay={mu:g}")


def _pl(run: Run, mu: float) -> Verdict:
    strong = _strongly_convex(run, mu)
    if strong.status == MET:
        return strong
    return Verdict(NOT_CHECKED, f"mu={mu:g} is --convexity")


def _noise(words: str) -> Callable[[Run, float], Verdict]:
    """Returns a check of the noise of gradients, of which full ones have none."""

    def check(run: Run, value: float) -> Verdict:
        del value
        if _needs(run, WHOLE).status == MET:
            return Verdict(MET, "client.batches=whole: gradients have no noise")
        return Verdict(NOT_CHECKED, words.format(**run.problem))

    return check


def _homogeneous(run: Run, value: float) -> Verdict:
    del value
    partition = run.keys["data.partition"]
    if run.config.data.clients == 1:
        return Verdict(MET, "data.clients=1")
    if partition == "iid":
        why = "data.partition=iid: other examples of one distribution"
        return Verdict(NOT_CHECKED, why)
    why = f"data.partition={partition}; data.partition=iid comes closest"
    return Verdict(NOT_MET, why)


def _fresh(run: Run, value: float) -> Verdict:
    del value
    if catalog.method(run.config.algorithm).one_key:
        return Verdict(NOT_MET, f"{run.config.algorithm} has one sketch for all rounds")
    return _needs(run, {"sketch.stored": False})


def _plain(run: Run, value: float) -> Verdict:
    del value
    read = PLAIN.keys() & run.read
    return _needs(run, PLAIN, "" if read else f"{run.config.algorithm} has no others")


def _cohorts(run: Run, value: float) -> Verdict:
    del value
    sampling = run.keys["cohort.sampling"]
    if sampling in FIXED:
        return Verdict(MET, f"cohort.sampling={sampling}")
    return Verdict(NOT_MET, f"cohort.sampling={sampling}; met by cohort.sampling=fixed")


def _product(run: Run, most: float) -> Verdict:
    rate, server = run.keys["client.rate"], run.keys["server.rate"]
    why = f"client.rate={rate:g} times server.rate={server:g} is {rate * server:.4g}"
    if rate * server <= most * (1 + ROUNDING):
        return Verdict(MET, why)
    return Verdict(NOT_MET, f"{why}; met by client.rate={rounded_down(most / server)}")


# By `Assumption.about`.
CHECKS: dict[str, Callable[[Run, float], Verdict]] = {
    "smooth": _unknown("L={smoothness:g} is --smoothness; launch.spectrum measures it"),
    "gradient": _unknown("G={gradient:g} is --gradient"),
    "intrinsic": _unknown(
        "L={smoothness:g} and I={intrinsic:g} are flags; launch.spectrum measures both"
    ),
    "variance": _noise("sigma={noise:g} is --noise"),
    "subgaussian": _noise("sigma={noise:g} is --noise"),
    "bounded_below": lambda run, value: Verdict(
        MET, f"no loss of model.loss={run.keys['model.loss']} is negative"
    ),
    "homogeneous": _homogeneous,
    "convex": _convex,
    "strongly_convex": _strongly_convex,
    "pl": _pl,
    "full_gradients": lambda run, value: _needs(run, WHOLE),
    "plain": _plain,
    "bare": lambda run, value: _needs(
        run, {"privacy.bound": "none", "client.clip": 0.0}
    ),
    "everyone": _everyone,
    "fixed_cohorts": _cohorts,
    "server_rate": lambda run, rate: _needs(run, SERVER | {"server.rate": rate}),
    "amsgrad": lambda run, value: _needs(
        run, SERVER | {"server.optimizer": "paper_amsgrad"}
    ),
    "fresh_sketch": _fresh,
    "shared_sketch": lambda run, value: _needs(
        run, {"sketch.operator": "count_sketch", "sketch.layout": "whole"}
    ),
    "fresh_values": lambda run, value: _needs(run, {"sketch.heavy_values": "fresh"}),
    "rows": lambda run, least: _at_least(run, "sketch.rows", least),
    "step_most": lambda run, most: _at_most(run, "client.rate", most),
    "step_product": _product,
    "step": lambda run, step: _is(run, "client.rate", step),
    "steps": lambda run, steps: _needs(run, {"client.steps": int(steps)}),
    "rounds": lambda run, least: _at_least(run, "rounds", least),
    "threshold": lambda run, least: _at_least(run, "privacy.threshold", least),
}
