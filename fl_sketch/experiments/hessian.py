"""The Hessian of a run's training loss, at each of its checkpoints."""

import functools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.audit import spectrum
from fl_sketch.config import build, inputs, parse, privacy
from fl_sketch.core import files, trees, validate
from fl_sketch.core.protocols import Tree
from fl_sketch.core.trees import Stateful
from fl_sketch.data import datasets
from fl_sketch.engine import resumable
from fl_sketch.run.task import task_of
from fl_sketch.workdir import checkpoint
from fl_sketch.workdir.config_file import config_of
from fl_sketch.workdir.rows import MARK
from fl_sketch.workdir.tables import half_width

ROW = "{:7} {:10.4g} {:10.4g} {:8.4f} {:12.4g} {:6.2g} {:7.4g} {:7.4g} {:10.4f}"
HEAD = (
    "  round    largest   smallest   spread  intr. dim.     +-"
    "   least    most  near zero"
)
BATCH, CPU_BATCH = 100, 20  # of a few examples, all products stay in the cache


def of_run(
    workdir: str,
    defaults: ConfigDict,
    data_dir: str | None,
    *,
    examples: int,
    probes: int,
    steps: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Writes spectrum.csv and spectrum.png to a run's folder; returns the rows.

    Of a private run their names say that they are for the simulator only. The loss is
    the one trained on, without the weight decay, which would add a known constant to
    every eigenvalue, over examples drawn by the run's seed.

    Args:
      workdir: the folder of a run.
      defaults: a config with every key that one may have.
      data_dir: the folder of raw data sets.
      examples: the number of examples of the training set.
      probes: the number of random vectors.
      steps: the number of steps of Lanczos.
      say: what prints a line.

    Raises:
      ValueError, FileNotFoundError: in one line, for a folder without a run, data that
        are not there, or more examples than the training set has.
    """
    config = config_of(workdir, defaults)
    splits = inputs.splits_of(config, data_dir)
    validate.at_most(len(splits.train.targets), "the training set", examples=examples)
    mesh = parse.mesh_of(config.compute)
    batch = CPU_BATCH if engine.on_cpu(mesh) else BATCH
    batches = drawn(splits.train, examples, batch, config.seed)
    numbers = {**parse.numbers_of(config), "model.weight_decay": 0.0}
    loss = build.loss_of(config, inputs.seen_of(config.data, splits), numbers)

    @functools.partial(jax.jit, compiler_options=engine.compiler_options(mesh))
    def find(params, batches, key):
        def value(params, batch):
            return loss.value(params, batch.inputs, batch.targets)

        options = {"probes": probes, "steps": steps, "mesh": mesh}
        return spectrum.of_loss(value, params, batches, key, **options).tridiagonal

    say(HEAD)
    folder = pathlib.Path(workdir)
    noisy = privacy.protection_of(config).noisy
    mark = MARK if noisy else ""  # it looks at clients' data
    rows, found = [], {}
    for number, params in models_of(workdir, config, data_dir):
        if isinstance(params, Stateful):
            msg = "Expected a model of parameters alone, got one that keeps statistics."
            raise ValueError(msg)
        seen = jax.device_get(find(params, batches, jax.random.key(config.seed)))
        found[number] = spectrum.Spectrum(seen, trees.size(params))
        rows.append(_row(number, found[number]))
        say(ROW.format(*rows[-1].values()))
        files.write_rows(folder / f"{mark}spectrum.csv", rows)
    draw(found, rows, folder / f"{mark}spectrum.png")
    return rows


def models_of(
    workdir: str, config: ConfigDict, data_dir: str | None
) -> Iterator[tuple[int, Tree]]:
    """Yields (round, parameters): the start, and every checkpoint there is.

    Args:
      workdir: the folder of the run, which may have kept all checkpoints or a few.
      config: its config, by which the start is made anew.
      data_dir: the folder of raw data sets.
    """
    fresh = {"state": resumable.begin(task_of(config, data_dir)).state}
    yield 0, fresh["state"].server.params
    folder = pathlib.Path(workdir) / "checkpoints"
    for number in checkpoint.rounds(folder):
        with open(checkpoint.path_of(folder, number), "rb") as file:
            yield number, checkpoint.read(file, fresh)[0]["state"].server.params


def drawn(
    train: datasets.Examples, count: int, batch: int, seed: int
) -> datasets.Examples:
    """Returns batches of different training examples, along a leading axis.

    Args:
      train: the training set.
      count: the number of examples; what is over after whole batches is left out.
      batch: the number of examples of a batch, or `count` if that is smaller.
      seed: the seed of the choice.

    Raises:
      ValueError: for a count of none.
    """
    validate.at_least_one(examples=count)
    batch = min(batch, count)
    order = np.random.default_rng(seed).permutation(len(train.targets))
    chosen = np.sort(order[: count // batch * batch])
    return jax.tree.map(
        lambda leaf: leaf[chosen].reshape(-1, batch, *leaf.shape[1:]),
        datasets.Examples(*train),
    )


def draw(
    found: dict[int, spectrum.Spectrum],
    rows: list[dict[str, Any]],
    path: str | os.PathLike,
) -> None:
    """Draws densities, intrinsic dimension and top eigenvalue over training.

    Args:
      found: the spectrum after each round, by the round's number.
      rows: what is said of each, as `of_run` returns it.
      path: the path of the picture.
    """
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(12, 3.4), layout="constrained")
    densities, dimension, top = figure.subplots(1, 3)
    ends = [spectrum.rule(seen)[0] for seen in found.values()]
    low, high = np.min(ends), np.max(ends)
    width = (high - low) / 100 or 1.0
    at = np.linspace(low - 4 * width, high + 4 * width, 600)
    for number, seen in found.items():
        density = spectrum.density(seen, at, width=width)
        densities.semilogy(at, np.maximum(density, 1e-12), label=f"round {number}")
    densities.set(xlabel="eigenvalue", ylabel="density", ylim=(1e-9, None))
    densities.legend(fontsize="small")
    rounds = [row["round"] for row in rows]
    means = [row["intrinsic_dimension"] for row in rows]
    around = np.nan_to_num([row["half_width"] for row in rows])
    dimension.errorbar(rounds, means, around, fmt="o-", capsize=3)
    least, most = ([row[name] for row in rows] for name in ("least", "most"))
    dimension.fill_between(rounds, least, most, alpha=0.2)
    d = next(iter(found.values())).d
    dimension.set(xlabel="round", ylabel=f"intrinsic dimension, of {d}")
    top.plot(rounds, [max(row["largest"], -row["smallest"]) for row in rows], "o-")
    top.set(xlabel="round", ylabel="largest |eigenvalue|")
    files.write_figure(path, figure)


def _row(number: int, seen: spectrum.Spectrum) -> dict[str, Any]:
    values, _ = spectrum.rule(seen)
    each = spectrum.intrinsic_dimensions(seen)
    least, most = spectrum.bounds(seen)
    return {
        "round": number,
        "largest": float(values.max()),
        "smallest": float(values.min()),
        "spread": spectrum.spread(seen),
        "intrinsic_dimension": float(each.mean()),
        "half_width": half_width(each.tolist()),
        "least": least,
        "most": most,
        "share_near_zero": spectrum.share_near_zero(seen),
    }
