r"""Measures the accuracy that a sketch loses as the model grows in width.

python -m experiments.scaling --task=fashion_mnist --workdir=/tmp/W --data_dir=DATA
python -m experiments.scaling --task=rounds --workdir=/tmp/longer --data_dir=DATA \
    --width=200 --set=rounds=1600

In Chen et al., the number of rounds depends on the loss's intrinsic dimension and not
on the number d of parameters, for messages of b numbers at any d. So every width is
trained with and without sketches, whose size is a fraction of d or fixed, and with
servers that use the second moment differently. Every rate is tuned until both of its
neighbours are worse. Five clients with equal shares take two local steps of 32 examples
in every round.

  fashion_mnist   MLPs of two hidden layers, six widths
  cifar10         CNNs of two convolutions and a dense layer, four widths
  rounds          the MLPs at constant rates: rounds to 80 and 83 % test accuracy, with
                  --set=rounds=400, 1600 or 6400 as the number of rounds to tune for

The folder gets runs.csv (accuracy, training error, norm of the model, flatness of the
second moment), standings.csv (their means), gaps.csv, spectra.csv (intrinsic
dimensions), search.csv and three pictures. The same command again resumes.
"""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from configs import default
from fl_sketch.audit import run_spectrum
from fl_sketch.config import parse
from fl_sketch.core import files, validate
from fl_sketch.engine.evaluate import make_evaluation
from fl_sketch.run.setup import prepare
from fl_sketch.sweep import comparison
from fl_sketch.sweep.comparison import Comparison, Method
from fl_sketch.workdir import checkpoint, weights
from fl_sketch.workdir.tables import half_width
from launch import command, options

MINUTES = 540  # and an H200 for the widest CNN

Row = dict[str, Any]
SERVERS = {
    "adam": "Adam",
    "paper_amsgrad": "AMSGrad",
    "scalar_adam": "scalar Adam",
    "sgd": "SGD",
}
RATES = dict.fromkeys(SERVERS, (0.003, 0.01, 0.03)) | {"sgd": (0.3, 1.0, 3.0)}
FRACTIONS = {f"1/{n}": {"sketch.compression": float(n)} for n in (10, 100, 1000)}
FASHION = {"data.name": "fashion_mnist", "model.name": "mlp"}
TASKS = {
    "fashion_mnist": FASHION,
    "cifar10": {"data.name": "cifar10", "model.name": "cnn"},
    "rounds": FASHION | {"eval_every": 10, "server.schedule": "constant"},
}
HEAD = "  width method                       d        b    gap     +-    I   b / I"
LINE = (
    "{width:7d} {method:20} {d:9d} {b:8d} {gap:6.2f} {half_width:6.2f} "
    "{intrinsic_dimension:4.0f} {b_over_dimension:7.1f}"
)


class Study(NamedTuple):
    """What is trained, and what is measured of it.

    Attributes:
      rates: of each optimizer of the server, to begin with; the first gets all sketches
        and each of the others those that are shared.
      sketches: keys of the sketches by the names of messages, as "1/100" or "b=1992".
      spectra: names of the methods with spectra of the first seed's checkpoints.
      lanczos: examples, probes and steps of a spectrum.
      targets: test accuracies to which rounds are counted, a column for each.
    """

    base: ConfigDict
    widths: Sequence[int]
    rates: Mapping[str, Sequence[float]]
    sketches: Mapping[str, Mapping[str, Any]]
    shared: Sequence[str] = ("1/100",)
    seeds: Sequence[int] = (0, 1, 2)
    widen: int = 4
    spectra: Sequence[str] = ("Adam",)
    lanczos: tuple[int, int, int] = (1000, 10, 40)
    targets: Sequence[float] = ()


def study_of(task: str) -> Study:
    """Returns the study of a task, one of `TASKS`."""
    base = default.get_config()
    base.rounds, base.eval_every, base.checkpoint_every = 400, 100, 100
    base.data.clients, base.cohort.sampling = 5, "everyone"
    base.client.update({"rate": 0.1, "steps": 2, "batch": 32})
    base.server.update({"schedule": "cosine", "floor": 1e-5})
    base.update_from_flattened_dict(TASKS[task])
    size = 4072 if task == "cifar10" else 1992  # a hundredth of the middle model
    fixed = {f"b={size}": {"sketch.size": size}}
    widths = (4, 8, 16, 32) if task == "cifar10" else (40, 90, 200, 400, 800, 1870)
    if task == "fashion_mnist":
        return Study(base, widths, RATES, FRACTIONS | fixed)
    few = {"adam": RATES["adam"]}, {"1/100": FRACTIONS["1/100"]} | fixed
    if task == "cifar10":  # one probe of a CNN takes minutes
        return Study(base, widths, *few, lanczos=(1000, 4, 40))
    return Study(base, widths, *few, spectra=(), targets=(0.80, 0.83))


def comparison_of(study: Study, width: int) -> Comparison:
    """Returns the runs of one width: each server without a sketch, and with some."""
    base = study.base.copy_and_resolve_references()
    base.model.width = width
    methods = {}
    for number, (server, rates) in enumerate(study.rates.items()):
        title, tune = SERVERS[server], {"server.rate": tuple(rates)}
        keys = {"server.optimizer": server}
        methods[title] = Method({**keys, "algorithm": "fedopt"}, tune)
        for name, sketch in study.sketches.items():
            if number == 0 or name in study.shared:
                method = Method({**keys, "algorithm": "safl", **sketch}, tune)
                methods[f"{title}, {name}"] = method
    for name in study.spectra:  # of every checkpoint
        keys = methods[name].keys | {"checkpoint_keep": 0}
        methods[name] = methods[name]._replace(keys=keys)
    seeds, widen = study.seeds, study.widen
    return Comparison(base, methods, seeds=seeds, apart=True, widen=widen)


def run(study: Study, workdir, data_dir=None, *, widths=(), settings=()) -> list[Row]:
    """Runs a study, or what an earlier call left of it; returns the gaps."""
    folder = files.writable_folder(workdir)
    for width in widths:
        validate.one_of(tuple(map(str, study.widths)), width=str(width))
    tables = {"runs": [], "standings": [], "spectra": [], "search": [], "gaps": []}
    for width in widths or study.widths:
        place, compared = folder / f"width_{width}", comparison_of(study, width)
        print(f"width {width}", flush=True)
        standings = comparison.run(compared, place, data_dir, settings=settings)
        of_width = {
            "runs": [*_runs(study, compared, place, data_dir, settings, standings)],
            "standings": standings,
            "spectra": [*_spectra(study, place, data_dir)],
            "search": files.read_rows(place / "search.csv"),
        }
        of_width["gaps"] = gaps(of_width["runs"], of_width["spectra"])
        for name, rows in of_width.items():
            tables[name] += [{"width": width, **row} for row in rows]
            files.write_rows(folder / f"{name}.csv", tables[name])
    draw(tables["runs"], tables["gaps"], folder)
    return tables["gaps"]


def _runs(study, compared, folder, data_dir, settings, standings) -> Iterator[Row]:
    """Yields the row of each seed of each method of one width."""
    configs = {
        name: comparison.config_of(compared, method, settings)
        for name, method in compared.methods.items()
    }
    chosen = {row["method"]: row["chosen"] for row in standings}
    config = next(iter(configs.values()))  # evaluation is the same for all methods
    setup = prepare(config, data_dir)
    bare = {"model.weight_decay": 0.0, "model.label_smoothing": 0.0}
    loss = setup.loss({**parse.hyperparameters_of(config), **bare})
    train = {"train": setup.splits.train}
    evaluate, data = make_evaluation(lambda _: loss, train, setup.mesh)
    data, scored = jax.device_put(data), jax.jit(lambda p, d: evaluate(None, p, d))
    for name, seed in ((n, s) for n in configs for s in compared.seeds):
        place = comparison.folder_of(folder, name) / "seeds" / str(seed)
        if not (place / "summary.json").exists():  # it diverged
            continue
        summary = json.loads((place / "summary.json").read_text())
        params = weights.load_params(place)
        scores = scored(params, data)
        leaves = [leaf.astype(np.float64) for leaf in jax.tree.leaves(params)]
        metrics = files.read_rows(place / "metrics.csv")
        rounds = {
            target: [r["round"] for r in metrics if float(r["test_accuracy"]) >= target]
            for target in study.targets
        }
        yield {
            "method": name,
            "seed": seed,
            "d": summary["d"],
            "b": summary["sketch_size"],
            "rounds": summary["rounds"],
            "steps": configs[name].client.steps,
            "test_accuracy": summary["test_accuracy"],
            "train_error": 1 - float(scores["train_accuracy"]),
            "train_loss": float(scores["train_loss"]),
            "norm": float(np.sqrt(sum(np.sum(leaf**2) for leaf in leaves))),
            "flatness": _flatness(place),
            **{f"rounds_to_{100 * t:g}": (*r, "")[0] for t, r in rounds.items()},
            "chosen": chosen[name],
        }


def _flatness(folder: pathlib.Path) -> float | str:
    """Returns `(mean v)^2 / mean v^2` of a run's second moment; empty: it has none.

    One where all coordinates have the same, 1/d where one has all.
    """
    kept = folder / "checkpoints"
    path = checkpoint.path_of(kept, checkpoint.rounds(kept)[-1])
    moments = checkpoint.arrays_below(path, "state/server/opt")
    for root in ("/largest/", "/nu/"):  # what a step is divided by
        found = [v.ravel() for name, v in moments.items() if root in f"/{name}"]
        if found:
            v = np.concatenate(found).astype(np.float64)
            return float(v.mean() ** 2 / np.square(v).mean())
    return ""


def _spectra(study: Study, folder: pathlib.Path, data_dir) -> Iterator[Row]:
    """Yields the row of each checkpoint of some methods of one width."""
    examples, probes, steps = study.lanczos
    how = {"examples": examples, "probes": probes, "steps": steps}
    for name in study.spectra:
        own = comparison.folder_of(folder, name) / "seeds" / str(study.seeds[0])
        if not (own / "spectrum.png").exists():  # the last file that it writes
            run_spectrum.of_run(str(own), study.base, data_dir, **how)
        for row in files.read_rows(own / "spectrum.csv"):
            yield {"method": name, **row}


def gaps(runs: Sequence[Row], spectra: Sequence[Row]) -> list[Row]:
    """Returns what each sketch of one width lost against its server without one.

    Gaps are means over seeds, in points of accuracy, each seed against itself, with
    half of Student's 95 % interval, and so is the training error with a sketch. The
    intrinsic dimension is the mean over the checkpoints of the first method with any.
    """
    first = [row for row in spectra if row["method"] == spectra[0]["method"]]
    dimensions = [float(row["intrinsic_dimension"]) for row in first]
    dimension = float(np.mean(dimensions or [np.nan]))
    by, table = {(row["method"], row["seed"]): row for row in runs}, []
    for method in dict.fromkeys(row["method"] for row in runs if "," in row["method"]):
        server = method.partition(",")[0]
        own = [r for r in runs if r["method"] == method and (server, r["seed"]) in by]
        if not own:
            continue
        b = int(own[0]["b"])
        row = {"method": method, "d": own[0]["d"], "b": b, "seeds": len(own)}
        twins = [by[server, r["seed"]] for r in own]
        right, right_twins, wrong, wrong_twins = (
            100 * np.array([r[column] for r in rows])
            for column in ("test_accuracy", "train_error")
            for rows in (own, twins)
        )
        for prefix, name, points in (
            ("", "gap", right_twins - right),
            ("train_", "train_gap", wrong - wrong_twins),
            ("train_error_", "train_error", wrong),
        ):
            interval = half_width(points.tolist())
            row |= {name: float(points.mean()), f"{prefix}half_width": interval}
        ratios = {"intrinsic_dimension": dimension, "b_over_dimension": b / dimension}
        table.append(row | ratios)
    return table


def draw(runs: Sequence[Row], gaps: Sequence[Row], folder: pathlib.Path) -> None:
    """Draws test accuracy and gaps against d, and gaps against b over the dimension."""
    from matplotlib.figure import Figure  # takes a second to import

    first, scores, relative, by_dimension = runs[0]["method"], {}, [], []
    for row in runs:
        if row["method"].partition(",")[0] == first:
            key = row["method"], int(row["d"])
            scores.setdefault(key, []).append(100 * row["test_accuracy"])
    for row in gaps:
        lost = row["gap"], row["half_width"]
        if "/" in row["method"]:
            relative.append((row["method"], row["d"], *lost))
        if row["method"].startswith(f"{first},"):
            line = f"d = {int(row['d']):,}"
            by_dimension.append((line, row["b_over_dimension"], *lost))
    accuracies = [(*key, np.mean(v), half_width(v)) for key, v in scores.items()]
    d, y = "parameters d", "accuracy lost to the sketch, in points"
    over = "numbers of a message over the intrinsic dimension"
    for name, points, x, title in (
        ("accuracy", accuracies, d, "test accuracy, in percent"),
        ("gap", relative, d, y),
        ("gap_against_dimension", by_dimension, over, y),
    ):
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        panel = figure.subplots()
        for number, label in enumerate(dict.fromkeys(point[0] for point in points)):
            places = np.array(sorted(p[1:] for p in points if p[0] == label), float).T
            places[2] = np.nan_to_num(places[2])
            mark = "osv^Dx+*<>"[number % 10]
            panel.errorbar(*places, fmt=f"{mark}-", capsize=3, label=label)
        panel.set(xscale="log", xlabel=x, ylabel=title)
        panel.legend(fontsize="small")
        files.write_figure(folder / f"{name}.png", figure)


if __name__ == "__main__":
    TASK = flags.DEFINE_enum("task", "fashion_mnist", [*TASKS], "What is trained.")
    WORKDIR = flags.DEFINE_string("workdir", None, "Folder for results.", required=True)
    WIDTH = flags.DEFINE_multi_integer("width", [], "Width to train. Repeatable.")
    SET = flags.DEFINE_multi_string("set", [], "KEY=VALUE for every config.")
    DATA_DIR = options.data_dir()

    def main() -> None:
        """Runs the study of --task, or resumes it."""
        chosen = {"widths": WIDTH.value, "settings": SET.value}
        lost = run(study_of(TASK.value), WORKDIR.value, DATA_DIR.value, **chosen)
        print(HEAD, *(LINE.format(**row) for row in lost), sep="\n")

    command.run(main)
