"""The bytes of a config and the theorem about it, before anything runs."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from fl_sketch import theory
from fl_sketch.algorithms import catalog
from fl_sketch.config import privacy
from fl_sketch.core import validate
from fl_sketch.core.mappings import flat
from fl_sketch.engine import relays
from fl_sketch.engine.costs import FLOAT_BYTES
from fl_sketch.engine.graph import Graph
from fl_sketch.engine.task import Task
from fl_sketch.experiments import assumptions
from fl_sketch.run import display
from fl_sketch.theory import Bound, Constants
from fl_sketch.workdir import rows

# What theorems ask of the problem: default and meaning, for the flags of `launch.plan`.
CONSTANTS = {
    "target": (0.1, "Target error: f - f*, or the mean |grad|^2."),
    "smoothness": (1.0, "Smoothness L of the clients' losses."),
    "convexity": (0.0, "Strong convexity or PL constant mu; 0 = none."),
    "distance": (1.0, "Squared distance |w0 - w*|^2 at the start."),
    "spread": (0.0, "sigma^2 of Song et al.: mean over clients of |grad f_c(w*)|^2."),
    "gap": (0.0, "Delta of Das et al.: the largest f_c(w*) - min f_c of a client."),
    "gradient": (1.0, "Bound G on the norm of full gradients."),
    "noise": (1.0, "sigma of stochastic gradients (Chen et al., Haddadpour et al.)."),
    "intrinsic": (10.0, "Intrinsic dimension of the Hessian; see launch.spectrum."),
    "loss": (1.0, "f(w0) - f*; `start` in theory.Constants."),
}

MANY = 10**9  # local steps: more than a client has ever taken


def lines(
    config: ConfigDict,
    task: Task,
    problem: Mapping[str, float],
    *,
    convex: bool = True,
    graph: Graph | None = None,
) -> list[str]:
    """Returns what to print of a plan.

    Args:
      task: what was built from it, not compiled.
      problem: a value for each of `CONSTANTS`.
      convex: whether losses are convex, as far as a paper has a theorem for each kind.
      graph: the graph of a network without a server, whose nodes are the clients; None:
        that of the config, if it names one.

    Raises:
      ValueError: for a constant that is negative or not finite.
    """
    for name, value in problem.items():
        validate.in_range(0, math.inf, **{name: value})
    relay, text = task.known.prices.relay, _costs(config, task)
    if relay and graph is None:
        graph = relay.graph
    if graph:
        text += _over_edges(task.facts, graph)
    try:
        bound = promised(config, task, problem, convex=convex)
    except theory.Unreachable as error:
        return [*text, f"theory: {error}"]
    if bound is None:
        return [*text, f"theory: no theorem about {config.algorithm} is implemented"]
    read = SETTINGS.get(catalog.method(config.algorithm).theorem, ())
    known = {name: problem[name] for name in CONSTANTS}
    known |= {key: flat(config)[key] for key in read}
    text += [
        f"theory: {bound.theorem}",
        f"  with {', '.join(f'{name}={value:g}' for name, value in known.items())}",
        f"  {_steps(config, bound)}",
        *_as_configured(config, bound),
        *[f"  bounded: {bound.quantity}"] * bool(bound.quantity),
        "  assumptions, for this config:",
    ]
    judged = assumptions.lines(config, problem, bound.assumptions)
    return [*text, *(f"    {line}" for line in judged)]


def _steps(config: ConfigDict, bound: Bound) -> str:
    """Returns the steps that a bound asks for, and whether they are too many."""
    steps = bound.constants.steps
    many = bound.rounds * steps >= MANY
    rounds = f"{bound.rounds:.4g}" if many else str(bound.rounds)
    uploads = f"{rows.sized(bound.bits / 8)} of uploads"
    return (
        f"client step size {bound.step:.4g} (config: {config.client.rate:g}), "
        f"{rounds} rounds (config: {config.rounds}) of {steps} local steps "
        f"(config: {config.client.steps}), "
        f"{f'too many for any client: over {MANY:.0e} steps' if many else uploads}"
    )


def _as_configured(config: ConfigDict, bound: Bound) -> list[str]:
    """Returns what a theorem for any step says of the config's own, if there is one."""
    stated = ANY_STEP.get(catalog.method(config.algorithm).theorem)
    if stated is None:
        return []
    own = replace(bound.constants, step=config.client.rate, rounds=config.rounds)
    found = stated(own)
    return [
        f"  {found.theorem} with the step size and rounds of the config: "
        f"mean |grad|^2 <= {found.error:.4g}"
    ]


def promised(
    config: ConfigDict,
    task: Task,
    problem: Mapping[str, float],
    *,
    convex: bool = True,
) -> Bound | None:
    """Returns the bound of the theorem about a config's algorithm, or None.

    The arguments are those of `lines`.

    Raises:
      theory.Unreachable: where it gives nothing for these constants.
    """
    name = catalog.method(config.algorithm).theorem
    if name not in THEOREMS:
        return None
    clients, d = privacy.expected(config), task.facts["d"]
    rho, guarantee = math.nan, task.known.guarantee
    if guarantee and guarantee.private:
        rho = guarantee.noise_multiplier / clients * math.sqrt(d / config.rounds)
    elif name in PRIVATE:
        msg = (
            "Expected privacy.noise_multiplier or privacy.target_epsilon, as the "
            f"theorems about {config.algorithm} need noise, got neither."
        )
        raise theory.Unreachable(msg)
    for key, value in (SKETCH | SKETCHES.get(name, {})).items():
        if config.sketch[key] != value:
            msg = (
                f"Expected sketch.{key}={value}, as in the theorem about "
                f"{config.algorithm}, got sketch.{key}={config.sketch[key]}."
            )
            raise theory.Unreachable(msg)
    known: dict[str, Any] = dict(problem)
    target, start = known.pop("target"), known.pop("loss")
    constants = Constants(
        **known,
        start=start,
        operator=config.sketch.operator,
        d=d,
        b=task.facts["sketch_size"] or 0,
        clients=clients,
        steps=config.client.steps,
        server_rate=config.server.rate,
        b1=config.server.b1,
        eps=config.server.eps,
        threshold=config.privacy.threshold,
        rho=rho,
    )
    return THEOREMS[name](config, constants, target, convex)


def _song(config: ConfigDict, constants: Constants, target, convex) -> Bound:
    """Returns the bound of Song et al., for a server rate of 1."""
    del config
    c = replace(constants, server_rate=1.0)
    if not convex:
        return theory.iterative_sketching(c, "nonconvex", target)
    objective = "strongly_convex" if c.convexity else "convex"
    c = replace(c, start=c.smoothness * c.distance / 2)
    return theory.iterative_sketching(c, objective, target)


def _fedsketch(
    config: ConfigDict, constants: Constants, target, convex, *, promise: Callable
) -> Bound:
    """Returns what `theory.fedsketch` or `theory.fedsketchgate` gives."""
    del convex
    sketch = config.sketch
    numbers = sketch.numbers or max(1, int(constants.d / sketch.compression))
    return promise(
        constants,
        target,
        objective="pl" if constants.convexity else "nonconvex",
        variant=sketch.query,
        cols=max(1, numbers // sketch.rows),
    )


def _fedavg(config: ConfigDict, constants: Constants, target, convex) -> Bound:
    """Returns the bound of Haddadpour et al. without a sketch."""
    del config, convex
    c = replace(constants, b=constants.d, alpha=0.0)
    promise = theory.fedsketch_pl if c.convexity else theory.fedavg_nonconvex
    return promise(c, target)


# By the names that rows of the catalogue give them.
THEOREMS: dict[str, Callable[..., Bound]] = {
    "song": _song,
    "safl": lambda config, c, target, convex: theory.adaptive_long_run(c, target),
    "fedavg": _fedavg,
    "fedsketch": functools.partial(_fedsketch, promise=theory.fedsketch),
    "fedsketchgate": functools.partial(_fedsketch, promise=theory.fedsketchgate),
    "das": lambda config, c, target, convex: theory.clipped(c, target),
    "das_normalised": lambda config, c, target, convex: theory.normalised(c, target),
}
# Those that have an error for any step and rounds.
ANY_STEP = {"safl": theory.adaptive}
PRIVATE = ("das", "das_normalised")  # without noise they have no bound
# The keys whose values decide a bound and are in none of its other lines.
SETTINGS = {
    "safl": ("server.rate", "server.b1", "server.eps"),
    "das": ("privacy.threshold",),
    "das_normalised": ("privacy.threshold",),
}
# The sketch that they are about: all of them, and some.
SKETCH: dict[str, Any] = {"stored": False}
SKETCHES = {"song": {"layout": "whole"}, "safl": {"layout": "whole", "rows": 1}}


def _costs(config: ConfigDict, task: Task) -> list[str]:
    facts, prices = task.facts, task.known.prices
    clients, up = privacy.expected(config), facts["bytes_up_planned"]
    rounds_away = config.data.clients / clients
    down = prices.within + prices.usual(rounds_away)
    text = [
        f"{facts['algorithm']}: {facts['model']} of {display.size(facts)} on "
        f"{facts['dataset']}, {clients} of {config.data.clients} clients per round",
        f"upload: {display.message(facts)}",
    ]
    if prices.relay:  # there is no server
        return text
    if up is None:
        return [*text, "per round: the bytes depend on the round"]
    in_all = config.rounds * clients
    average = prices.average(config.rounds, rounds_away) + prices.within
    fetched = round(in_all * average) + prices.once * min(config.data.clients, in_all)
    extra = prices.followed or prices.once
    about, first = "about " * bool(extra), ", first downloads included" * bool(extra)
    return [
        *text,
        f"per round: {clients * up} bytes up, {about}{clients * down} down; "
        f"{config.rounds} rounds: {rows.sized(in_all * up)} up, "
        f"{about}{rows.sized(fetched)} down{first}",
    ]


def _over_edges(facts: Mapping[str, Any], graph: Graph) -> list[str]:
    """Returns what the same run costs without a server, by each way of forwarding."""
    message, exchanges = facts["bytes_up_planned"], facts["exchanges"]
    if message is None:
        return ["without a server: the bytes depend on the round"]
    flood, tree = relays.flood(graph), relays.tree(graph)
    text = [
        f"without a server: {len(graph.edges)} edges; flood: every message reaches all "
        f"nodes in {flood.hops} hops; per round: "
        f"{_crossed(flood.over_edges(message, exchanges))}"
    ]
    if message != FLOAT_BYTES * facts["sketch_size"]:
        return [
            *text,
            "  tree: impossible, since a sum of these messages is longer than one",
        ]
    return [
        *text,
        f"  tree: only sums, {tree.crossings.sum()} messages per exchange in "
        f"{tree.hops} hops; per round: {_crossed(tree.over_edges(message, exchanges))}",
    ]


def _crossed(edges: np.ndarray) -> str:
    """Returns how many bytes crossed the edges, there and back, as text."""
    whole, most = edges.sum(), edges.max()
    return f"{whole} bytes in total, at most {most} over one edge in one direction"
