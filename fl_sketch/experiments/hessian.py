"""The Hessian of a run's training loss, at each of its checkpoints."""

import functools
import pathlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.audit import spectrum
from fl_sketch.config import parse, privacy
from fl_sketch.core import files, trees, validate
from fl_sketch.core.constants import jitted
from fl_sketch.core.protocols import Tree
from fl_sketch.core.trees import Stateful
from fl_sketch.data.examples import Examples
from fl_sketch.engine import resumable
from fl_sketch.experiments.measurements import Column, Table, print_line
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.run.task import of_setup
from fl_sketch.workdir import checkpoint
from fl_sketch.workdir.config_file import config_of
from fl_sketch.workdir.rows import MARK
from fl_sketch.workdir.tables import half_width

TABLE = Table(
    {
        "round": Column("7d"),
        "largest": Column("10.4g"),
        "smallest": Column("10.4g"),
        "spread": Column("8.4f"),
        "intrinsic_dimension": Column("12.4g", "intr. dim."),
        "half_width": Column("6.2g", "+-"),
        "least": Column("7.4g"),
        "most": Column("7.4g"),
        "share_near_zero": Column("10.4f", "near zero"),
    }
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
    plugin: Collection[str] = (),
    say: Callable[[str], None] = print_line,
) -> list[dict[str, Any]]:
    """Writes spectrum.csv and spectrum.png to a run's folder; returns the rows.

    Of a private run their names say that they are for the simulator only. The loss is
    the one trained on, without the weight decay, which would add a known constant to
    every eigenvalue, over examples drawn by the run's seed.

    Args:
      defaults: a config with every key that one may have.
      plugin: the values FILE.py:NAME of the run's config that the caller trusts.

    Raises:
      ValueError, FileNotFoundError: in one line, for a folder without a run, data that
        are not there, or more examples than the training set has.
    """
    config = config_of(workdir, defaults, plugin)
    setup = prepare(config, data_dir)
    splits, mesh = setup.splits, setup.mesh
    validate.at_least_one(examples=examples)
    validate.at_most(len(splits.train.targets), "the training set", examples=examples)
    batch = CPU_BATCH if engine.on_cpu(mesh) else BATCH
    batches = _drawn(splits.train, examples, batch, config.seed)
    numbers = {**parse.numbers_of(config), "model.weight_decay": 0.0}
    loss = setup.loss(numbers)

    @functools.partial(jitted, compiler_options=engine.compiler_options(mesh))
    def find(params, batches, key):
        def value(params, batch):
            return loss.value(params, batch.inputs, batch.targets)

        options = {"probes": probes, "steps": steps, "mesh": mesh}
        return spectrum.of_loss(value, params, batches, key, **options).tridiagonal

    spectra: dict[int, spectrum.Spectrum] = {}

    def rows():
        for number, params in _models_of(workdir, setup):
            if isinstance(params, Stateful):
                msg = "Expected a model without batch statistics, got one with them."
                raise ValueError(msg)
            matrices = find(params, batches, jax.random.key(config.seed))
            size = trees.size(params)
            spectra[number] = spectrum.Spectrum(jax.device_get(matrices), size)
            yield _row(number, spectra[number])

    noisy = privacy.protection_of(config).noisy
    mark = MARK if noisy else ""  # it looks at clients' data
    place = pathlib.Path(workdir) / f"{mark}spectrum"
    measured = TABLE.record(rows(), f"{place}.csv", say)
    _draw(spectra, measured, f"{place}.png")
    return measured


def _models_of(workdir: str, setup: Setup) -> Iterator[tuple[int, Tree]]:
    """Yields (round, parameters) of the initial model and of every kept checkpoint."""
    fresh = {"state": resumable.begin(of_setup(setup)).state}
    yield 0, fresh["state"].server.params
    folder = pathlib.Path(workdir) / "checkpoints"
    for number in checkpoint.rounds(folder):
        with open(checkpoint.path_of(folder, number), "rb") as file:
            yield number, checkpoint.read(file, fresh)[0]["state"].server.params


def _drawn(train: Examples, count: int, batch: int, seed: int) -> Examples:
    """Returns batches of different examples; what is over after the last is left out.

    A batch has `count` examples if that is fewer.
    """
    batch = min(batch, count)
    order = np.random.default_rng(seed).permutation(len(train.targets))
    chosen = np.sort(order[: count // batch * batch])
    return jax.tree.map(
        lambda leaf: leaf[chosen].reshape(-1, batch, *leaf.shape[1:]), Examples(*train)
    )


def _row(number: int, of_round: spectrum.Spectrum) -> dict[str, Any]:
    values, _ = spectrum.rule(of_round)
    dimensions = spectrum.intrinsic_dimensions(of_round)
    least, most = spectrum.bounds(of_round)
    return {
        "round": number,
        "largest": float(values.max()),
        "smallest": float(values.min()),
        "spread": spectrum.spread(of_round),
        "intrinsic_dimension": float(dimensions.mean()),
        "half_width": half_width(dimensions.tolist()),
        "least": least,
        "most": most,
        "share_near_zero": spectrum.share_near_zero(of_round),
    }


def _draw(spectra: dict[int, spectrum.Spectrum], rows: list[dict[str, Any]], path: str):
    """Draws densities, intrinsic dimension and top eigenvalue over training."""
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(12, 3.4), layout="constrained")
    densities, dimension, top = figure.subplots(1, 3)
    column = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    low, high = column["smallest"].min(), column["largest"].max()
    width = (high - low) / 100 or 1.0
    at = np.linspace(low - 4 * width, high + 4 * width, 600)
    for number, of_round in spectra.items():
        density = spectrum.density(of_round, at, width=width)
        densities.semilogy(at, np.maximum(density, 1e-12), label=f"round {number}")
    densities.set(xlabel="eigenvalue", ylabel="density", ylim=(1e-9, None))
    densities.legend(fontsize="small")
    rounds, around = column["round"], np.nan_to_num(column["half_width"])
    means = column["intrinsic_dimension"]
    dimension.errorbar(rounds, means, around, fmt="o-", capsize=3)
    dimension.fill_between(rounds, column["least"], column["most"], alpha=0.2)
    d = spectra[0].d
    dimension.set(xlabel="round", ylabel=f"intrinsic dimension, of {d}")
    top.plot(rounds, np.maximum(column["largest"], -column["smallest"]), "o-")
    top.set(xlabel="round", ylabel="largest |eigenvalue|")
    files.write_figure(path, figure)
