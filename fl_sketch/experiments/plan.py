"""What a config will cost and what a theorem says of it, before anything runs."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from fl_sketch import theory
from fl_sketch.algorithms import catalog
from fl_sketch.core import validate
from fl_sketch.engine import relays
from fl_sketch.engine.costs import FLOAT_BYTES
from fl_sketch.engine.graph import Graph
from fl_sketch.engine.task import Task
from fl_sketch.run import display
from fl_sketch.theory import Bound
from fl_sketch.workdir import rows

Constants = Mapping[str, float]

# Constants of the problem: default and meaning, for the flags of `launch.plan`.
CONSTANTS = {
    "target": (0.1, "The error to reach: f - f*, or the mean |grad|^2."),
    "smoothness": (1.0, "L: how fast clients' gradients change."),
    "convexity": (0.0, "mu of strong convexity or PL; 0: none."),
    "distance": (1.0, "|w0 - w*|^2."),
    "spread": (0.0, "sigma^2: the mean over clients of |grad f_c(w*)|^2."),
    "gap": (0.0, "Delta: f_c(w*) - min f_c, the largest of a client."),
    "gradient": (1.0, "G: no gradient is longer."),
    "noise": (1.0, "sigma of sub-Gaussian stochastic gradients."),
    "intrinsic": (10.0, "Intrinsic dimension; see launch.spectrum."),
    "loss": (1.0, "The loss at the start, over its lower bound."),
}

MANY = 10**9  # steps: more than a client has ever taken


def lines(
    config: ConfigDict,
    task: Task,
    constants: Constants,
    *,
    convex: bool = True,
    graph: Graph | None = None,
) -> list[str]:
    """Returns what to print of a plan.

    Args:
      config: the config of the run.
      task: what was built from it, not compiled.
      constants: a value for each of `CONSTANTS`.
      convex: whether losses are convex, as far as a paper has a theorem for each kind.
      graph: the graph of a network without a server, whose nodes are the clients; None:
        that of the config, if it names one.
    """
    said = _costs(config, task)
    if graph is None and task.known.prices.relay:
        graph = task.known.prices.relay.graph
    if graph:
        said += _over_edges(task.facts, graph)
    try:
        bound = promised(config, task, constants, convex=convex)
    except theory.Unreachable as error:
        return [*said, f"theory: {error}"]
    if bound is None:
        return [*said, f"theory: no theorem here is about {config.algorithm}"]
    known = ", ".join(f"{name}={constants[name]:g}" for name in CONSTANTS)
    return [
        *said,
        f"theory: {bound.theorem}",
        f"  with {known}",
        f"  step of the clients {bound.step:.4g} (config: {config.client.rate:g}), "
        f"{_count(bound.rounds)} rounds (config: {config.rounds}) of "
        f"{_count(bound.local_steps)} local steps (config: {config.client.steps}), "
        f"{rows.sized(bound.bits / 8)} up",
        *_warning(bound),
        "  if:",
        *(f"    - {assumption}" for assumption in bound.assumptions),
    ]


def _count(number: int) -> str:
    """Returns a number with as many digits as somebody reads."""
    return str(number) if number < MANY else f"{number:.3g}"


def _warning(bound: Bound) -> list[str]:
    """Says where a bound is true and of no use to anybody."""
    if bound.rounds * bound.local_steps < MANY:
        return []
    return ["  nobody takes so many steps: with these constants it promises nothing"]


def promised(
    config: ConfigDict,
    task: Task,
    constants: Constants,
    *,
    convex: bool = True,
) -> Bound | None:
    """Returns what the theorem about a config's algorithm gives, or None.

    Args:
      config: the config of the run.
      task: what was built from it, for the sizes of model and message, and z.
      constants: a value for each of `CONSTANTS`.
      convex: whether losses are convex.

    Raises:
      theory.Unreachable: where it gives nothing for these constants.
    """
    name = catalog.method(config.algorithm).theorem
    theorem = THEOREMS.get(name if convex else NONCONVEX.get(name, name))
    if theorem and config.sketch.stored:
        msg = (
            "every theorem supposes a new sketch in each round (sketch.stored=False), "
            "got sketch.stored=True."
        )
        raise theory.Unreachable(msg)
    return theorem(config, task, constants) if theorem else None


def _song(config: ConfigDict, task: Task, constants: Constants) -> Bound:
    """Returns Song et al.'s theorem for convex losses: of appendix E for one step."""
    convexity, steps = constants["convexity"], config.client.steps
    names = ("target", "smoothness", *(("convexity",) if convexity else ()))
    song = _of_song(config, task, constants, names)
    distance = {"distance": constants["distance"]}
    if steps == 1 and convexity:
        start = constants["smoothness"] * constants["distance"] / 2
        return theory.one_step_strongly_convex(start=start, **song)
    if steps == 1:
        return theory.one_step_convex(**distance, **song)
    song |= distance | {"spread": constants["spread"], "steps": steps}
    return theory.strongly_convex(**song) if convexity else theory.convex(**song)


def _song_nonconvex(config: ConfigDict, task: Task, constants: Constants) -> Bound:
    names = ("target", "smoothness")
    song = _of_song(config, task, constants, names)
    song |= {"start": constants["loss"]}
    steps = config.client.steps
    if steps == 1:
        return theory.one_step_nonconvex(**song)
    return theory.nonconvex(gradient=constants["gradient"], steps=steps, **song)


def _of_song(config, task, constants, names) -> dict[str, Any]:
    """Returns what all theorems of Song et al. ask for, and constants by `names`."""
    if config.sketch.layout != "whole":
        msg = (
            "Song et al.'s Table 1 is of a sketch of the whole update (sketch.layout="
            f"whole), got sketch.layout={config.sketch.layout}."
        )
        raise theory.Unreachable(msg)
    d, b = task.facts["d"], task.facts["sketch_size"]
    alpha = theory.alpha(config.sketch.operator, d, b)
    known = {name: constants[name] for name in names}
    return known | {"alpha": alpha, "clients": cohort_size(config), "b": b}


def _safl(config: ConfigDict, task: Task, constants: Constants) -> Bound:
    sketch, names = config.sketch, ("smoothness", "intrinsic", "gradient", "noise")
    if sketch.rows > 1 or sketch.layout != "whole":
        msg = (
            "Chen et al. give the tail of a sketch of the whole update, with one row ("
            f"sketch.layout=whole, sketch.rows=1), got sketch.layout={sketch.layout}, "
            f"sketch.rows={sketch.rows}."
        )
        raise theory.Unreachable(msg)
    return theory.adaptive(
        theory.Adaptive(
            **{name: constants[name] for name in (*names, "loss")},
            rate=config.server.rate,
            b1=config.server.b1,
            eps=config.server.eps,
        ),
        theory.Sizes(
            sketch.operator,
            d=task.facts["d"],
            b=task.facts["sketch_size"],
            clients=cohort_size(config),
            steps=config.client.steps,
        ),
        target=constants["target"],
    )


def _fedsketch(
    config: ConfigDict,
    task: Task,
    constants: Constants,
    *,
    tracking: bool = False,
) -> Bound:
    d = task.facts["d"]
    numbers = config.sketch.numbers or max(1, int(d / config.sketch.compression))
    convexity, smoothness = constants["convexity"], constants["smoothness"]
    return theory.fedsketch(
        "pl" if convexity else "nonconvex",
        config.sketch.query,
        target=constants["target"],
        smoothness=smoothness,
        condition=smoothness / convexity if convexity else 1.0,
        clients=cohort_size(config),
        d=d,
        cols=max(1, numbers // config.sketch.rows),
        server_rate=config.server.rate,
        tracking=tracking,
    )


def _das(config: ConfigDict, task: Task, constants: Constants) -> Bound | None:
    """Returns Das et al.'s Theorem 2, for the noise of the config's rounds."""
    guarantee, clients = task.known.guarantee, cohort_size(config)
    if not guarantee or not guarantee.private:
        return None
    d = task.facts["d"]
    return theory.clipped(
        target=constants["target"],
        rho=guarantee.noise_multiplier / clients * math.sqrt(d / config.rounds),
        smoothness=constants["smoothness"],
        steps=config.client.steps,
        threshold=config.privacy.threshold,
        distance=constants["distance"],
        gap=constants["gap"],
        clients=clients,
        d=d,
    )


# By the names that rows of the catalogue give them.
THEOREMS: dict[str, Callable[..., Bound | None]] = {
    "song": _song,
    "song_nonconvex": _song_nonconvex,
    "safl": _safl,
    "fedsketch": _fedsketch,
    "fedsketchgate": functools.partial(_fedsketch, tracking=True),
    "das": _das,
}
NONCONVEX = {"song": "song_nonconvex"}


def cohort_size(config: ConfigDict) -> int:
    """Returns how many clients of `config` take part in a round, on average."""
    everyone = config.cohort.sampling == "everyone"
    return config.data.clients if everyone else config.cohort.size


def _costs(config: ConfigDict, task: Task) -> list[str]:
    facts, prices = task.facts, task.known.prices
    clients, up = cohort_size(config), facts["bytes_up_planned"]
    rounds_away = config.data.clients / clients
    followed = round(prices.follow.missed * rounds_away) + prices.follow.always
    down = followed if prices.followed else prices.model
    said = [
        f"{facts['algorithm']}: {facts['model']} of {facts['d']} parameters on "
        f"{facts['dataset']}, {clients} of {config.data.clients} clients a round",
        f"a message: {display.message(facts)}",
    ]
    if task.known.prices.relay:  # nobody is served
        return said
    if up is None:
        return [*said, "bytes up: they depend on the round"]
    per_round = f"{clients * up} bytes up and {clients * down} down"
    per_round += " to those who follow" * prices.followed
    in_all = config.rounds * clients
    return [
        *said,
        f"a round: {per_round}; {config.rounds} rounds: {rows.sized(in_all * up)} up "
        f"and {rows.sized(in_all * down)} down",
    ]


def _over_edges(facts: Mapping[str, Any], graph: Graph) -> list[str]:
    """Returns what the same run costs without a server, by every relay."""
    message, exchanges = facts["bytes_up_planned"], facts["exchanges"]
    if message is None:
        return ["without a server: the bytes depend on the round"]
    flood, tree = relays.flood(graph), relays.tree(graph)
    lines = [
        f"without a server: {len(graph.edges)} edges, everything everywhere after "
        f"{flood.hops} hops; a round: {_crossed(flood.over_edges(message, exchanges))}"
    ]
    if message != FLOAT_BYTES * facts["sketch_size"]:
        return [*lines, "  not on a tree: sums of these messages are longer than they"]
    return [
        *lines,
        f"  on a tree, sums alone: {tree.crossings.sum()} messages an exchange, "
        f"{tree.hops} hops; a round: {_crossed(tree.over_edges(message, exchanges))}",
    ]


def _crossed(edges: np.ndarray) -> str:
    """Says how many bytes crossed the edges, there and back."""
    whole, most = edges.sum(), edges.max()
    return f"{whole} bytes in all, at most {most} over one edge in one direction"


def check(constants: Constants) -> None:
    """Raises a ValueError for `constants` of which one is negative or not finite."""
    for name, value in constants.items():
        validate.in_range(0, float("inf"), **{name: value})
