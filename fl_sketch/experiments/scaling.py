"""What a sketch costs as the model grows: one family of models, many widths.

Chen et al. promise rounds that depend on the loss's intrinsic dimension and not on the
number d of parameters, for messages of b numbers whatever d is. So every width is
trained with and without sketches, of a part of d and of a fixed size, by servers that
differ in what they make of a second moment. Every rate is tuned until a worse one is
known on either side.
"""

import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch.config import build, parse
from fl_sketch.core import files, validate
from fl_sketch.engine.evaluate import make_evaluation
from fl_sketch.experiments import hessian, scaling_fits, scaling_pictures
from fl_sketch.run.setup import prepare
from fl_sketch.sweep import comparison
from fl_sketch.sweep.comparison import Comparison, Method
from fl_sketch.workdir import checkpoint, weights
from fl_sketch.workdir.tables import half_width

Row = dict[str, Any]
HEAD = "  width method                       d        b    gap     +-    I   b / I"
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


def comparison_of(lab: Laboratory, width: int) -> Comparison:
    """Returns the runs of one width: each server without a sketch, and with some.

    Args:
      lab: what is trained.
      width: the width of the models.
    """
    base = lab.base.copy_and_resolve_references()
    base.model.width = width
    found = {}
    for number, (server, rates) in enumerate(lab.servers.items()):
        title, tune = TITLES.get(server, server), {"server.rate": tuple(rates)}
        keys = {"server.optimizer": server}
        found[title] = Method({**keys, "algorithm": "fedopt"}, tune)
        for name, own in lab.sketches.items():
            if number == 0 or name in lab.shared:
                method = Method({**keys, "algorithm": "safl", **own}, tune)
                found[f"{title}, {name}"] = method
    kept = {name: found[name].keys | {"checkpoint_keep": 0} for name in lab.spectra}
    found |= {name: found[name]._replace(keys=keys) for name, keys in kept.items()}
    return Comparison(base, found, seeds=lab.seeds, apart=True, widen=lab.widen)


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
      lab: what is trained, and how it is looked at.
      workdir: the folder that gets one for each width, runs.csv, standings.csv,
        gaps.csv, fits.csv, spectra.csv, search.csv and three pictures.
      data_dir: the folder of raw data sets.
      widths: some of the laboratory's; empty: all.
      settings: lines "key=value" for the config of every run.
      say: what prints a line.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line.
      Stopped: on SIGINT, SIGTERM or SIGHUP.
    """
    folder = files.writable_folder(workdir)
    for width in widths:
        validate.one_of(tuple(map(str, lab.widths)), width=str(width))
    runs, means, spectra, searched = [], [], [], []
    for width in widths or lab.widths:
        own, compared = folder / f"width_{width}", comparison_of(lab, width)
        say(f"width {width}")
        standings = comparison.run(compared, own, data_dir, settings=settings, say=say)
        means += [{"width": width, **row} for row in standings]
        chosen = {row["method"]: row["chosen"] for row in standings}
        for row in _runs(compared, own, data_dir, settings):
            runs.append({"width": width, **row, "chosen": chosen[row["method"]]})
        spectra += list(_spectra(lab, own, width, data_dir, say))
        for point in files.read_rows(own / "search.csv"):
            searched.append({"width": width, **point})
    files.write_rows(folder / "runs.csv", runs)
    files.write_rows(folder / "standings.csv", means)
    files.write_rows(folder / "spectra.csv", spectra)
    files.write_rows(folder / "search.csv", searched)
    lost = gaps(runs, spectra)
    files.write_rows(folder / "gaps.csv", lost)
    files.write_rows(folder / "fits.csv", scaling_fits.fits(lost))
    scaling_pictures.accuracy_against_d(runs, folder / "accuracy.png")
    scaling_pictures.gap_against_d(lost, folder / "gap.png")
    scaling_pictures.gap_against_dimension(lost, folder / "gap_against_dimension.png")
    return lost


def _runs(
    compared: Comparison, folder: pathlib.Path, data_dir, settings
) -> Iterator[Row]:
    """Yields what came of each seed of each method of one width."""
    evaluate = None
    for name, method in compared.methods.items():
        config = comparison.config_of(compared, method, settings)
        if evaluate is None:  # the methods differ in what does not matter to it
            evaluate = _on_training_data(config, data_dir)
        for seed in compared.seeds:
            own = comparison.folder_of(folder, name) / "seeds" / str(seed)
            if not (own / "summary.json").exists():  # it diverged
                continue
            summary = json.loads((own / "summary.json").read_text())
            params = weights.load_params(own)
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
                "norm": _norm(jax.tree.leaves(params)),
                "flatness": _flatness(own),
            }


def _on_training_data(config: ConfigDict, data_dir) -> Callable[[Any], tuple]:
    """Returns `params -> (error, loss)` on all training examples, without penalties."""
    setup = prepare(config, data_dir)
    bare = {"model.weight_decay": 0.0, "model.label_smoothing": 0.0}
    numbers = {**parse.numbers_of(config), **bare}
    loss = build.loss_of(config, setup.seen, numbers)
    of_all, data = make_evaluation(
        lambda _: loss, {"train": setup.splits.train}, setup.mesh
    )
    data = jax.device_put(data)
    compiled = jax.jit(lambda params: of_all(None, params, data))

    def evaluate(params):
        found = compiled(params)
        return 1 - float(found["train_accuracy"]), float(found["train_loss"])

    return evaluate


def _norm(leaves: Sequence[np.ndarray]) -> float:
    squares = (np.sum(np.square(leaf, dtype=np.float64)) for leaf in leaves)
    return float(np.sqrt(sum(squares)))


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


def _spectra(lab: Laboratory, folder, width: int, data_dir, say) -> Iterator[Row]:
    """Yields what the Hessian was at each checkpoint of some methods of one width."""
    for name in lab.spectra:
        own = comparison.folder_of(folder, name) / "seeds" / str(lab.seeds[0])
        if not (own / "spectrum.png").exists():  # the last file that it writes
            hessian.of_run(
                str(own),
                lab.base,
                data_dir,
                examples=lab.examples,
                probes=lab.probes,
                steps=lab.lanczos,
                say=say,
            )
        for row in files.read_rows(own / "spectrum.csv"):
            yield {"width": width, "method": name, **row}


def gaps(runs: Sequence[Row], spectra: Sequence[Row]) -> list[Row]:
    """Returns what each sketch lost against the same server without one, by width.

    Gaps are means over seeds, in points of accuracy, each seed against itself, with
    half of Student's 95 % interval, and so is the training error with a sketch. The
    intrinsic dimension is the mean over the checkpoints of the first method that was
    looked at.

    Args:
      runs: the rows of all runs.
      spectra: the rows of all Hessians.
    """
    by = {(row["width"], row["method"], row["seed"]): row for row in runs}
    found: dict[tuple, list[tuple[Row, Row]]] = {}
    for (width, method, seed), row in by.items():
        twin = by.get((width, method.partition(",")[0], seed))
        if "," in method and twin:
            found.setdefault((width, method), []).append((row, twin))
    table = []
    for (width, method), pairs in found.items():
        row, dimension = pairs[0][0], _dimension(spectra, width)
        lost = [_points(twin, own, "test_accuracy") for own, twin in pairs]
        more = [_points(own, twin, "train_error") for own, twin in pairs]
        errors = [100 * float(own["train_error"]) for own, _ in pairs]
        table.append(
            {
                "width": width,
                "method": method,
                "d": row["d"],
                "b": row["b"],
                "seeds": len(pairs),
                "gap": float(np.mean(lost)),
                "half_width": half_width(lost),
                "train_gap": float(np.mean(more)),
                "train_half_width": half_width(more),
                "train_error": float(np.mean(errors)),
                "train_error_half_width": half_width(errors),
                "intrinsic_dimension": dimension,
                "b_over_dimension": int(row["b"]) / dimension,
            }
        )
    return table


def _points(one: Row, other: Row, name: str) -> float:
    """Returns by how much one row has more, in hundredths."""
    return 100 * (float(one[name]) - float(other[name]))


def line(row: Row) -> str:
    """Returns a `row` of the gaps as text, below `HEAD`."""
    form = "{width:7} {method:20} {d:9} {b:8} {gap:6.2f} {half_width:6.2f} "
    return (form + "{intrinsic_dimension:4.0f} {b_over_dimension:7.1f}").format(**row)


def _dimension(spectra: Sequence[Row], width: int) -> float:
    """Returns the mean intrinsic dimension of a width; NaN if nobody looked."""
    own = [row for row in spectra if row["width"] == width]
    first = [row for row in own if row["method"] == own[0]["method"]]
    return float(np.mean([float(r["intrinsic_dimension"]) for r in first] or [np.nan]))
