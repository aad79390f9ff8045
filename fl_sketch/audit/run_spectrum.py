"""The Hessian of a run's training loss, at each of its checkpoints."""

import functools
import os
import pathlib
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.audit import spectrum
from fl_sketch.config import parse, privacy
from fl_sketch.core import files, plugins, trees, validate
from fl_sketch.core.constants import jitted
from fl_sketch.core.trees import Stateful
from fl_sketch.data.examples import Examples
from fl_sketch.engine.loop import initial as beginning
from fl_sketch.run.setup import prepare
from fl_sketch.workdir import checkpoint, identity
from fl_sketch.workdir.rows import place
from fl_sketch.workdir.tables import half_width
from fl_sketch.workdir.weights import CONFIG

HEAD = (
    "  round    largest   smallest   spread   intr. dim.     +-   least    most"
    "  near zero"
)
LINE = (
    "{round:7d} {largest:10.4g} {smallest:10.4g} {spread:8.4f} "
    "{intrinsic_dimension:12.4g} {half_width:6.2g} {least:7.4g} {most:7.4g} "
    "{share_near_zero:10.4f}"
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
    log: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Writes spectrum.csv and spectrum.png to a run's folder; returns the rows.

    Of a private run their names say that they are for the simulator only. The loss is
    the one trained on, without the weight decay, which would add a known constant to
    every eigenvalue, over examples drawn by the run's seed.
    """
    config = config_of(workdir, defaults, plugin)
    setup = prepare(config, data_dir)
    train, mesh = setup.splits.train, setup.mesh
    validate.at_least_one(examples=examples)
    validate.at_most(len(train.targets), "the training set", examples=examples)
    loss = setup.loss({**parse.hyperparameters_of(config), "model.weight_decay": 0.0})
    batch = min(CPU_BATCH if engine.on_cpu(mesh) else BATCH, examples)
    order = np.random.default_rng(config.seed).permutation(len(train.targets))
    chosen = np.sort(order[: examples // batch * batch])
    batches = jax.tree.map(
        lambda leaf: leaf[chosen].reshape(-1, batch, *leaf.shape[1:]), Examples(*train)
    )

    @functools.partial(jitted, compiler_options=engine.compiler_options(mesh))
    def find(params, batches, key):
        def value(params, batch):
            return loss.value(params, batch.inputs, batch.targets)

        options = {"probes": probes, "steps": steps, "mesh": mesh}
        return spectrum.of_loss(value, params, batches, key, **options).tridiagonal

    def models():
        """Yields (round, parameters) of the initial model and every checkpoint."""
        initial = {"state": beginning(setup.experiment, setup.roots()).state}
        yield 0, initial["state"].server.params
        folder = pathlib.Path(workdir) / "checkpoints"
        for number in checkpoint.rounds(folder):
            with open(checkpoint.path_of(folder, number), "rb") as file:
                yield number, checkpoint.read(file, initial)[0]["state"].server.params

    noisy = privacy.protection_of(config).noisy  # and it reads clients' data
    path = files.writable_file(place(pathlib.Path(workdir), noisy) / "spectrum.csv")
    log(HEAD)
    spectra, rows = {}, []
    for number, params in models():
        if isinstance(params, Stateful):
            msg = "Expected a model without batch statistics, got one with them."
            raise ValueError(msg)
        matrices = jax.device_get(find(params, batches, jax.random.key(config.seed)))
        found = spectrum.Spectrum(matrices, trees.size(params))
        values, _ = spectrum.rule(found)
        dimensions = spectrum.intrinsic_dimensions(found)
        least, most = spectrum.bounds(found)
        row = {
            "round": number,
            "largest": float(values.max()),
            "smallest": float(values.min()),
            "spread": spectrum.spread(found),
            "intrinsic_dimension": float(dimensions.mean()),
            "half_width": half_width(dimensions.tolist()),
            "least": least,
            "most": most,
            "share_near_zero": spectrum.share_near_zero(found),
        }
        spectra[number] = found
        rows.append(row)
        log(LINE.format(**row))
        files.write_rows(path, rows)
    draw(spectra, rows, path.with_suffix(".png"))
    return rows


def config_of(
    workdir: str | os.PathLike, defaults: ConfigDict, plugin: Collection[str] = ()
) -> ConfigDict:
    """Returns the config of the run in a folder.

    Args:
      defaults: a config with every key that one may have.
      plugin: the values FILE.py:NAME of the folder whose code the caller trusts.
    """
    path = pathlib.Path(workdir) / CONFIG
    if not path.is_file():
        msg = f"Expected workdir to be the folder of a run, got workdir={workdir}."
        raise ValueError(msg)
    keys = identity.keys_of(identity.read(path))
    config = defaults.copy_and_resolve_references()
    try:
        config.update_from_flattened_dict(keys)
    except (KeyError, AttributeError):
        msg = "Expected the folder of a run with the keys of configs/default.py, got "
        raise ValueError(msg + f"workdir={workdir}.") from None
    for key, value in keys.items():
        if plugins.named(value) and value not in plugin:
            msg = (
                f"Expected --plugin={value} to allow the code of {key} in {path}, got "
            )
            raise ValueError(msg + f"plugin={','.join(plugin) or None}.")
    return config


def draw(
    spectra: dict[int, spectrum.Spectrum],
    rows: list[dict[str, Any]],
    path: pathlib.Path,
) -> None:
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
