"""What is known of the programs of a sweep before any of them is compiled."""

from collections.abc import Sequence
from typing import NamedTuple

import jax

from fl_sketch.core import free_memory
from fl_sketch.privacy.guarantee import mark, rounded_up
from fl_sketch.run import display
from fl_sketch.run.facts import facts_of
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.sweep import grid
from fl_sketch.workdir.tables import named


class Program(NamedTuple):
    """The points of a group, which share a program, and the setup of the first."""

    group: grid.Group
    setup: Setup

    @property
    def rows(self) -> int:
        """The number of its rows in sweep.csv."""
        experiment = self.setup.experiment
        return len(self.group.points) * -(-experiment.last // experiment.every)

    @property
    def private(self) -> bool:
        """Whether it is private."""
        return self.setup.experiment.private

    @property
    def state_bytes(self) -> int:
        """The bytes of the state of one point."""
        experiment = self.setup.experiment
        state = jax.eval_shape(
            lambda key: experiment.start(experiment.hyperparameters, key),
            jax.eval_shape(jax.random.key, 0),
        )
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def program_of(group: grid.Group, data_dir: str | None) -> Program:
    """Returns the program of a group, checked as a run is."""
    devices = group.config.compute.model_devices
    if devices != 1:
        msg = (
            "config.compute: Expected model_devices=1 in a sweep, got "
            f"model_devices={devices}: use launch.train."
        )
        raise ValueError(msg)
    setup = prepare(group.config, data_dir)
    if setup.experiment.placement == "streamed":
        msg = (
            "config.compute: a sweep needs data that fit the devices, got data="
            f"{setup.config.compute.data}: set compute.data=resident or use "
            "launch.train (in a comparison: apart=True)."
        )
        raise ValueError(msg)
    program = Program(group._replace(config=setup.config), setup)
    size = program.state_bytes * len(group.points)
    if size > (free := free_memory.free(jax.local_devices())):
        msg = (
            f"Expected the states of the {len(group.points)} points of a program to "
            f"fit the free memory of {free / 1e9:.3g} GB, got {size / 1e9:.3g} GB: "
            "sweep over fewer values at a time."
        )
        raise ValueError(msg)
    return program


def plan(axes: Sequence[grid.Axis], programs: Sequence[Program], how: str) -> list[str]:
    """Returns lines on the `axes` and `programs` of a grid, mapped as `how` says."""
    points = sum(len(program.group.points) for program in programs)
    sizes = " x ".join(f"{len(axis.values)} {axis.key}" for axis in axes)
    order = "one after the other" if how == "loop" else "together"
    lines = [
        f"points: {points} = {sizes}; compiled programs: {len(programs)}; the points "
        f"of a program run {order} on {display.devices(programs[0].setup.mesh.size)}"
    ]
    for number, program in enumerate(programs, 1):
        points, facts = program.group.points, facts_of(program.setup)
        guarantee = program.setup.experiment.guarantee
        last = program.setup.experiment.last
        static = {k: v for k, v in points[0].items() if not grid.shares_program(k)}
        line = (
            f"  program {number}{': ' if static else ''}{named(static)}: "
            f"{facts['algorithm']}, {facts['model']} of {facts['d']} parameters on "
            f"{facts['dataset']}; upload: {display.message(facts)}; "
            f"{len(points)} points of {program.state_bytes / 1e6:.3g} MB state, "
            f"{last} rounds"
        )
        if guarantee and guarantee.private:
            epsilon = rounded_up(guarantee.epsilon(last) or 0)
            line += (
                f"; each spends epsilon = {epsilon} at delta = {guarantee.delta:g}"
                f"{mark(guarantee.randomness)}"
            )
        lines.append(line)
    return lines


def require_one_table(programs: Sequence[Program]) -> None:
    """Raises a ValueError for programs of different metrics, which cannot be ranked.

    So are scores of validation examples and of test examples.
    """
    parts = {tuple(program.setup.splits.measured) for program in programs}
    if len(parts) > 1:
        msg = (
            "config.data: Expected validation examples in all points or in none, got "
            f"{' and '.join(sorted(map(', '.join, parts)))}."
        )
        raise ValueError(msg)
    metrics = {", ".join(program.setup.metrics) for program in programs}
    if len(metrics) > 1:
        msg = (
            "config.model: Expected the same metrics in all points, got "
            f"{' and '.join(sorted(metrics))}: set model.metrics=NAME."
        )
        raise ValueError(msg)
