"""What is known of the programs of a sweep before any of them is compiled."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from fl_sketch.config import parse
from fl_sketch.core import free_memory
from fl_sketch.engine.recorder import Known
from fl_sketch.privacy.guarantee import mark, rounded_up
from fl_sketch.run import display
from fl_sketch.run.setup import prepare
from fl_sketch.run.task import facts_of, known_of
from fl_sketch.sweep import grid, ranking
from fl_sketch.workdir.identity import Identity


class Outline(NamedTuple):
    """What is known of the program of a `group` before it is compiled.

    Attributes:
      facts: those of a run.
      known: what rows need; the guarantee is to every point.
      state_bytes: the size of one point's state.
      last: the round with which all points end.
    """

    group: grid.Group
    facts: dict[str, Any]
    known: Known
    state_bytes: int
    last: int
    identity: Identity = Identity()

    @property
    def rows(self) -> int:
        """How many rows it will leave in sweep.csv."""
        return len(self.group.points) * -(-self.last // self.group.config.eval_every)

    @property
    def private(self) -> bool:
        """Whether somebody is protected."""
        return self.known.private


def outline(group: grid.Group, data_dir: str | None) -> Outline:
    """Returns the outline of `group`, checked as a run is, and that all points fit.

    Raises:
      ValueError, TypeError, FileNotFoundError: as `prepare` does.
    """
    _require_whole_models(group.config.compute.model_devices)
    setup = prepare(group.config, data_dir)
    group = group._replace(config=setup.config)
    start = functools.partial(setup.start, parse.numbers_of(setup.config))
    state = jax.eval_shape(start, jax.eval_shape(jax.random.key, 0))
    leaves = jax.tree.leaves(state)
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    size, free = state_bytes * len(group.points), free_memory.free(jax.local_devices())
    if size > free:
        msg = (
            f"Expected the states of a program's {len(group.points)} points to take at "
            f"most {free / 1e9:.3g} GB, the memory there is, got {size / 1e9:.3g} GB: "
            "sweep over fewer values at a time."
        )
        raise ValueError(msg)
    facts, identity = facts_of(setup), setup.identity
    return Outline(group, facts, known_of(setup), state_bytes, setup.last, identity)


def _require_whole_models(devices: int) -> None:
    """Raises where a model would lie on several `devices`, as no point of a grid is."""
    if devices != 1:
        msg = (
            "config.compute: Expected model_devices=1 in a sweep, which shares out "
            f"clients alone, got model_devices={devices}: launch.train takes it."
        )
        raise ValueError(msg)


def plan(axes: Sequence[grid.Axis], outlines: Sequence[Outline], how: str) -> list[str]:
    """Returns lines on the `axes` and `outlines` of a grid, mapped as `how` says."""
    facts = outlines[0].facts
    points = sum(len(o.group.points) for o in outlines)
    sizes = " x ".join(f"{len(axis.values)} {axis.key}" for axis in axes)
    in_turn = (
        "one after the other" if how == "loop" else "at once, as many as memory allows,"
    )
    lines = [
        f"points: {points} = {sizes}; programs: {len(outlines)}, the points of each "
        f"{in_turn} on {facts['devices']} devices"
    ]
    for number, one in enumerate(outlines, 1):
        group, facts = one.group, one.facts
        own = {k: v for k, v in group.points[0].items() if not grid.shares_program(k)}
        lines.append(
            f"  program {number}{': ' if own else ''}{ranking.named(own)}: "
            f"{facts['algorithm']}, {facts['model']} of {facts['d']} parameters on "
            f"{facts['dataset']}; a message: {display.message(facts)}; "
            f"{len(group.points)} points of {one.state_bytes / 1e6:.3g} MB, "
            f"{one.last} rounds{_promised(one)}"
        )
    return lines


def _promised(one: Outline) -> str:
    """Says what each point gives away, if that is anything but all."""
    if not ((promise := one.known.guarantee) and promise.private):
        return ""
    how, spent = mark(promise.randomness), rounded_up(promise.epsilon(one.last) or 0)
    return f"; each spends epsilon = {spent} at delta = {promise.delta:g}{how}"


def require_one_table(outlines: Sequence[Outline]) -> None:
    """Raises for `outlines` that measure unlike things, which no table could rank."""
    measured = {", ".join(one.facts["metrics"]) for one in outlines}
    if len(measured) > 1:
        msg = (
            "config.model: Expected metrics that all points have, got "
            f"{' and '.join(sorted(measured))}: say metrics=NAME."
        )
        raise ValueError(msg)
