"""What is known of the programs of a sweep before any of them is compiled."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from fl_sketch.core import free_memory
from fl_sketch.engine.recorder import Known
from fl_sketch.privacy.guarantee import mark, rounded_up
from fl_sketch.run import display
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.run.task import facts_of, known_of
from fl_sketch.sweep import grid
from fl_sketch.workdir.identity import Identity
from fl_sketch.workdir.tables import named


class Outline(NamedTuple):
    """What is known of the program of a `group` before it is compiled.

    `facts`, `known` and `identity` are those of a run. The state of one point has
    `state_bytes`, and `last` is the last round of all points. `measured` names the
    examples that a model is measured on.
    """

    group: grid.Group
    facts: dict[str, Any]
    known: Known
    state_bytes: int
    last: int
    identity: Identity = Identity()
    measured: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The number of its rows in sweep.csv."""
        return len(self.group.points) * -(-self.last // self.group.config.eval_every)

    @property
    def private(self) -> bool:
        """Whether it is private."""
        return self.known.private


def outline(group: grid.Group, data_dir: str | None) -> Outline:
    """Returns the outline of `group`, checked as a run is.

    Raises:
      ValueError, TypeError, FileNotFoundError: as `prepare` does, for models on several
        devices, for data or client states that are not on the devices, and for points
        that do not fit the memory.
    """
    devices = group.config.compute.model_devices
    if devices != 1:
        msg = (
            "config.compute: Expected model_devices=1 in a sweep, got "
            f"model_devices={devices}: use launch.train."
        )
        raise ValueError(msg)
    setup = prepare(group.config, data_dir)
    _require_on_devices(setup)
    group = group._replace(config=setup.config)
    start = functools.partial(setup.start, setup.numbers)
    state = jax.eval_shape(start, jax.eval_shape(jax.random.key, 0))
    leaves = jax.tree.leaves(state)
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    size, free = state_bytes * len(group.points), free_memory.free(jax.local_devices())
    if size > free:
        msg = (
            f"Expected the states of the {len(group.points)} points of a program to "
            f"fit the free memory of {free / 1e9:.3g} GB, got {size / 1e9:.3g} GB: "
            "sweep over fewer values at a time."
        )
        raise ValueError(msg)
    facts, identity = facts_of(setup), setup.identity
    known, parts = known_of(setup), tuple(setup.splits.measured)
    return Outline(group, facts, known, state_bytes, setup.last, identity, parts)


def _require_on_devices(setup: Setup) -> None:
    """Raises where a run would get its data from the host."""
    if setup.form == "streamed":
        msg = (
            "config.compute: a sweep needs data that fit the devices, got data="
            f"{setup.config.compute.data}: set compute.data=resident or use "
            "launch.train (in a comparison: apart=True)."
        )
        raise ValueError(msg)


def plan(axes: Sequence[grid.Axis], outlines: Sequence[Outline], how: str) -> list[str]:
    """Returns lines on the `axes` and `outlines` of a grid, mapped as `how` says."""
    points = sum(len(program.group.points) for program in outlines)
    sizes = " x ".join(f"{len(axis.values)} {axis.key}" for axis in axes)
    order = "one after the other" if how == "loop" else "together, as memory allows,"
    lines = [
        f"points: {points} = {sizes}; compiled programs: {len(outlines)}; the points "
        f"of a program run {order} on {display.devices(outlines[0].facts['devices'])}"
    ]
    for number, program in enumerate(outlines, 1):
        points, facts = program.group.points, program.facts
        guarantee = program.known.guarantee
        static = {k: v for k, v in points[0].items() if not grid.shares_program(k)}
        line = (
            f"  program {number}{': ' if static else ''}{named(static)}: "
            f"{facts['algorithm']}, {facts['model']} of {facts['d']} parameters on "
            f"{facts['dataset']}; upload: {display.message(facts)}; "
            f"{len(points)} points of {program.state_bytes / 1e6:.3g} MB state, "
            f"{program.last} rounds"
        )
        if guarantee and guarantee.private:
            epsilon = rounded_up(guarantee.epsilon(program.last) or 0)
            line += (
                f"; each spends epsilon = {epsilon} at delta = {guarantee.delta:g}"
                f"{mark(guarantee.randomness)}"
            )
        lines.append(line)
    return lines


def require_one_table(outlines: Sequence[Outline]) -> None:
    """Raises a ValueError for programs of different metrics, which cannot be ranked.

    So are scores of validation examples and of test examples.
    """
    parts = {program.measured for program in outlines}
    if len(parts) > 1:
        msg = (
            "config.data: Expected validation examples in all points or in none, got "
            f"{' and '.join(sorted(map(', '.join, parts)))}."
        )
        raise ValueError(msg)
    metrics = {", ".join(program.facts["metrics"]) for program in outlines}
    if len(metrics) > 1:
        msg = (
            "config.model: Expected the same metrics in all points, got "
            f"{' and '.join(sorted(metrics))}: set model.metrics=NAME."
        )
        raise ValueError(msg)
