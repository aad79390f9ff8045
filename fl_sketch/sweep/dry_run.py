"""What is known of the programs of a sweep before any of them is compiled."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from fl_sketch.core import free_memory
from fl_sketch.engine import costs
from fl_sketch.privacy.guarantee import Guarantee, mark
from fl_sketch.run import display
from fl_sketch.run.build import build
from fl_sketch.sweep import grid
from fl_sketch.workdir.identity import Identity
from fl_sketch.workdir.tables import named


class Outline(NamedTuple):
    """What is known of the program of a `group` before it is compiled.

    `facts`, `prices`, `guarantee` and `identity` are those of a run. The state of one
    point has `state_bytes`, and `last` is the last round of all points.
    """

    group: grid.Group
    facts: dict[str, Any]
    prices: costs.Prices
    state_bytes: int
    last: int
    guarantee: Guarantee | None
    identity: Identity = Identity()

    @property
    def rows(self) -> int:
        """The number of its rows in sweep.csv."""
        return len(self.group.points) * -(-self.last // self.group.config.eval_every)

    @property
    def private(self) -> bool:
        """Whether it protects anybody."""
        return bool(self.guarantee and self.guarantee.private)


def outline(group: grid.Group, data_dir: str | None) -> Outline:
    """Returns the outline of `group`, checked as a run is.

    Raises:
      ValueError, TypeError, FileNotFoundError: as `build` does, for models on several
        devices, and for points that do not fit the memory.
    """
    devices = group.config.compute.model_devices
    if devices != 1:
        msg = (
            "config.compute: Expected model_devices=1 in a sweep, which shares out "
            f"clients alone, got model_devices={devices}: launch.train takes it."
        )
        raise ValueError(msg)
    experiment = build(group.config, data_dir)
    leaves = jax.tree.leaves(jax.eval_shape(experiment.start))
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    size, free = state_bytes * len(group.points), free_memory.free(jax.local_devices())
    if size > free:
        msg = (
            f"Expected the states of a program's {len(group.points)} points to take at "
            f"most {free / 1e9:.3g} GB, the memory there is, got {size / 1e9:.3g} GB: "
            "sweep over fewer values at a time."
        )
        raise ValueError(msg)
    return Outline(
        group._replace(config=experiment.config),
        experiment.facts,
        experiment.prices,
        state_bytes,
        experiment.rounds,
        experiment.guarantee,
        experiment.identity,
    )


def plan(axes: Sequence[grid.Axis], outlines: Sequence[Outline], how: str) -> list[str]:
    """Returns lines on the `axes` and `outlines` of a grid, mapped as `how` says."""
    points = sum(len(program.group.points) for program in outlines)
    sizes = " x ".join(f"{len(axis.values)} {axis.key}" for axis in axes)
    order = (
        "one after the other" if how == "loop" else "at once, as many as memory allows,"
    )
    lines = [
        f"points: {points} = {sizes}; programs: {len(outlines)}, the points of each "
        f"{order} on {outlines[0].facts['devices']} devices"
    ]
    for number, program in enumerate(outlines, 1):
        points, facts, guarantee = (
            program.group.points,
            program.facts,
            program.guarantee,
        )
        static = {k: v for k, v in points[0].items() if not grid.shares_program(k)}
        line = (
            f"  program {number}{': ' if static else ''}{named(static)}: "
            f"{facts['algorithm']}, {facts['model']} of {facts['d']} parameters on "
            f"{facts['dataset']}; a message: {display.message(facts)}; "
            f"{len(points)} points of {program.state_bytes / 1e6:.3g} MB, "
            f"{program.last} rounds"
        )
        if guarantee and guarantee.private:
            line += (
                f"; each gives away epsilon {guarantee.epsilon(program.last):.4g} at "
                f"delta {guarantee.delta:g}{mark(guarantee.randomness)}"
            )
        lines.append(line)
    return lines


def require_one_table(outlines: Sequence[Outline]) -> None:
    """Raises a ValueError for programs of unlike metrics, which no table can rank."""
    metrics = {", ".join(program.facts["metrics"]) for program in outlines}
    if len(metrics) > 1:
        msg = (
            "config.model: Expected metrics that all points have, got "
            f"{' and '.join(sorted(metrics))}: say metrics=NAME."
        )
        raise ValueError(msg)
