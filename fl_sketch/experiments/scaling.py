"""What a sketch costs as the model grows: one family of models, many widths.

In Chen et al., the number of rounds depends on the loss's intrinsic dimension and not
on the number d of parameters, for messages of b numbers at any d. So every width is
trained with and without sketches, whose size is a fraction of d or fixed, and with
servers that use the second moment differently. Every rate is tuned until the best is
not at an end.
"""

import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch.config import parse
from fl_sketch.core import files, validate
from fl_sketch.engine.evaluate import make_evaluation
from fl_sketch.experiments import hessian, scaling_tables
from fl_sketch.experiments.measurements import Column, Table
from fl_sketch.run.setup import prepare
from fl_sketch.sweep import comparison
from fl_sketch.sweep.comparison import Comparison, Method
from fl_sketch.workdir import checkpoint, weights

Row = dict[str, Any]
TABLE = Table(
    {
        "width": Column("7d"),
        "method": Column("20"),
        "d": Column("9d"),
        "b": Column("8d"),
        "gap": Column("6.2f"),
        "half_width": Column("6.2f", "+-"),
        "intrinsic_dimension": Column("4.0f", "I"),
        "b_over_dimension": Column("7.1f", "b / I"),
    }
)
ROOTS = ("/largest/", "/nu/")  # of second moments, what a step is divided by
TITLES = {
    "adam": "Adam",
    "paper_amsgrad": "AMSGrad",
    "scalar_adam": "scalar Adam",
    "sgd": "SGD",
}


class Laboratory(NamedTuple):
    """What is trained, and how it is looked at.

    Attributes:
      base: the config that all runs have in common.
      widths: the values of `model.width`.
      servers: the rates that each optimizer of the server is first tried with, by its
        name; the first one gets all sketches.
      sketches: keys of the sketches by the names of messages, as "1/100" or "b=1992".
      shared: names of the sketches that every server gets.
      seeds: the seeds that are reported.
      widen: the number of values that a grid of rates may grow by.
      spectra: names of the methods whose Hessians are looked at, at every checkpoint
        of the first seed.
      examples: the number of training examples of a Hessian.
      probes: the number of random vectors that Lanczos begins from.
      lanczos: its number of steps.
      targets: test accuracies to which rounds are counted, a column for each.
    """

    base: ConfigDict
    widths: Sequence[int]
    servers: Mapping[str, Sequence[float]]
    sketches: Mapping[str, Mapping[str, Any]]
    shared: Sequence[str]
    seeds: Sequence[int] = (0, 1, 2)
    widen: int = 4
    spectra: Sequence[str] = ("Adam",)
    examples: int = 1000
    probes: int = 10
    lanczos: int = 40
    targets: Sequence[float] = ()


def comparison_of(lab: Laboratory, width: int) -> Comparison:
    """Returns the runs of one width: each server without a sketch, and with some."""
    base = lab.base.copy_and_resolve_references()
    base.model.width = width
    methods = {}
    for number, (server, rates) in enumerate(lab.servers.items()):
        title, tune = TITLES.get(server, server), {"server.rate": tuple(rates)}
        keys = {"server.optimizer": server}
        methods[title] = Method({**keys, "algorithm": "fedopt"}, tune)
        for name, sketch in lab.sketches.items():
            if number == 0 or name in lab.shared:
                method = Method({**keys, "algorithm": "safl", **sketch}, tune)
                methods[f"{title}, {name}"] = method
    for name in lab.spectra:  # every checkpoint is looked at
        keys = methods[name].keys | {"checkpoint_keep": 0}
        methods[name] = methods[name]._replace(keys=keys)
    return Comparison(base, methods, seeds=lab.seeds, apart=True, widen=lab.widen)


def run(
    lab: Laboratory,
    workdir: str | os.PathLike,
    data_dir: str | None = None,
    *,
    widths: Sequence[int] = (),
    settings: Sequence[str] = (),
    say: Callable[[str], None] = tqdm.write,
) -> list[Row]:
    """Runs a laboratory, or what an earlier call left of it; returns the gaps.

    Args:
      workdir: the folder that gets one for each width, runs.csv, standings.csv,
        gaps.csv, fits.csv, spectra.csv, search.csv and three pictures.
      settings: lines "key=value" for the config of every run.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line.
      Stopped: on SIGINT, SIGTERM or SIGHUP.
    """
    folder = files.writable_folder(workdir)
    for width in widths:
        validate.one_of(tuple(map(str, lab.widths)), width=str(width))
    tables = {"runs": [], "standings": [], "spectra": [], "search": []}
    for width in widths or lab.widths:
        place, compared = folder / f"width_{width}", comparison_of(lab, width)
        say(f"width {width}")
        standings = comparison.run(
            compared, place, data_dir, settings=settings, say=say
        )
        chosen = {row["method"]: {"chosen": row["chosen"]} for row in standings}
        runs = _runs(lab, compared, place, data_dir, settings)
        of_width = {
            "runs": [{**row, **chosen[row["method"]]} for row in runs],
            "standings": standings,
            "spectra": _spectra(lab, place, data_dir, say),
            "search": files.read_rows(place / "search.csv"),
        }
        for name, rows in of_width.items():
            tables[name] += [{"width": width, **row} for row in rows]
    tables["gaps"] = scaling_tables.gaps(tables["runs"], tables["spectra"])
    tables["fits"] = scaling_tables.fits(tables["gaps"])
    for name, rows in tables.items():
        files.write_rows(folder / f"{name}.csv", rows)
    scaling_tables.draw(tables["runs"], tables["gaps"], folder)
    return tables["gaps"]


def _runs(
    lab: Laboratory, compared: Comparison, folder: pathlib.Path, data_dir, settings
) -> Iterator[Row]:
    """Yields what came of each seed of each method of one width."""
    configs = {
        name: comparison.config_of(compared, method, settings)
        for name, method in compared.methods.items()
    }
    # The methods differ in what does not matter to it.
    evaluate = _on_training_data(next(iter(configs.values())), data_dir)
    for (name, config), seed in itertools.product(configs.items(), compared.seeds):
        place = comparison.folder_of(folder, name) / "seeds" / str(seed)
        if not (place / "summary.json").exists():  # it diverged
            continue
        summary = json.loads((place / "summary.json").read_text())
        params = weights.load_params(place)
        leaves = [leaf.astype(np.float64) for leaf in jax.tree.leaves(params)]
        error, loss = evaluate(params)
        yield {
            "method": name,
            "seed": seed,
            "d": summary["d"],
            "b": summary["sketch_size"],
            "rounds": summary["rounds"],
            "steps": config.client.steps,
            "test_accuracy": summary["test_accuracy"],
            "train_error": error,
            "train_loss": loss,
            "norm": float(np.sqrt(sum(np.sum(leaf**2) for leaf in leaves))),
            "flatness": _flatness(place),
            **{f"rounds_to_{100 * t:g}": _rounds_to(t, place) for t in lab.targets},
        }


def _rounds_to(target: float, folder: pathlib.Path) -> int | str:
    """Returns the first evaluated round of this test accuracy; empty: none is."""
    rows = files.read_rows(folder / "metrics.csv")
    reached = (row for row in rows if float(row["test_accuracy"]) >= target)
    return next((int(row["round"]) for row in reached), "")


def _on_training_data(config: ConfigDict, data_dir) -> Callable[[Any], tuple]:
    """Returns `params -> (error, loss)` on all training examples, without penalties."""
    setup = prepare(config, data_dir)
    bare = {"model.weight_decay": 0.0, "model.label_smoothing": 0.0}
    loss = setup.loss({**parse.numbers_of(config), **bare})
    of_all, data = make_evaluation(
        lambda _: loss, {"train": setup.splits.train}, setup.mesh
    )
    data = jax.device_put(data)
    compiled = jax.jit(lambda params: of_all(None, params, data))

    def evaluate(params):
        scores = compiled(params)
        return 1 - float(scores["train_accuracy"]), float(scores["train_loss"])

    return evaluate


def _flatness(folder: pathlib.Path) -> float | str:
    """Returns `(mean v)^2 / mean v^2` of a run's second moment; empty: it has none.

    One where all coordinates have the same, 1/d where one has all.
    """
    kept = folder / "checkpoints"
    path = checkpoint.path_of(kept, checkpoint.rounds(kept)[-1])
    moments = checkpoint.arrays_below(path, "state/server/opt")
    for root in ROOTS:
        found = [v.ravel() for name, v in moments.items() if root in f"/{name}"]
        if found:
            v = np.concatenate(found).astype(np.float64)
            return float(v.mean() ** 2 / np.square(v).mean())
    return ""


def _spectra(lab: Laboratory, folder, data_dir, say) -> Iterator[Row]:
    """Yields what the Hessian was at each checkpoint of some methods of one width."""
    for name in lab.spectra:
        run = comparison.folder_of(folder, name) / "seeds" / str(lab.seeds[0])
        if not (run / "spectrum.png").exists():  # the last file that it writes
            hessian.of_run(
                str(run),
                lab.base,
                data_dir,
                examples=lab.examples,
                probes=lab.probes,
                steps=lab.lanczos,
                say=say,
            )
        for row in files.read_rows(run / "spectrum.csv"):
            yield {"method": name, **row}
