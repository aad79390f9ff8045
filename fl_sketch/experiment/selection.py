"""Private selection: a method is tuned by a random number of runs that stays secret.

Each run takes a random point of the grid and all rounds; the best of them is what is
reported, and the others, like their number, are nobody's business. That costs a few
times what one run does, where a grid costs as many times as it has points
(`privacy.composition`). Runs are compared by their accuracy on test data, which are
not protected.
"""

import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from fl_sketch import files
from fl_sketch.experiment import odometer, secrets, standings
from fl_sketch.experiment.program import prepare
from fl_sketch.experiment.sweep import sweep
from fl_sketch.privacy.composition import Trials, require

Row = dict[str, Any]
FOLDER = "simulator_only_trials"


def select(
    config: ConfigDict,
    tune: Mapping[str, Sequence[Any]],
    trials: Trials,
    folder: pathlib.Path,
    data_dir: str | None,
    *,
    last: int,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], list[Row]]:
    """Returns the keys of the best run, and its evaluations.

    Args:
      config: of the method, with noise.
      tune: keys and their values.
      trials: the distribution of the number of runs.
      folder: of the method.
      data_dir: of raw data sets.
      last: how many evaluations, the last ones, the score is the mean of.
      say: prints a line.
    """
    require(trials)
    promise = prepare(config, data_dir).promise
    if not (promise and promise.private):
        msg = (
            "Expected a private config for a private selection, got one without noise: "
            f"algorithm={config.algorithm}."
        )
        raise ValueError(msg)
    drawn = _drawn(config, tune, trials, folder / FOLDER)
    found = []
    for number, point in enumerate(drawn):
        over = [f"{key}={value}" for key, value in point.items()]
        own = folder / FOLDER / str(number)
        sweep(config, over, own, data_dir, say=lambda line: None)
        rows = files.read_rows(own / "sweep.csv")
        (evaluations,) = standings.by_point(rows).values()
        found.append((standings.score(evaluations, last), point, evaluations))
    entry = odometer.entry("selection", promise, promise.rounds)
    odometer.note(folder, [entry._replace(trials=tuple(trials))])
    going = [one for one in found if math.isfinite(one[0])]
    score, point, evaluations = max(going or found[:1], key=lambda one: one[0])
    said = ", ".join(f"{key}={value:g}" for key, value in point.items())
    say(f"  best of a random number of runs: {said}, {score:.4f}")
    return point, evaluations


def _drawn(config, tune, trials: Trials, folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns a point for each run, drawn once for a folder."""
    path = folder / "points.json"
    if path.exists():
        return json.loads(path.read_text())
    own = secrets.made_for(config).reveal()
    random = np.random.default_rng(int.from_bytes(own, "little"))
    points = [
        {key: values[random.integers(len(values))] for key, values in tune.items()}
        for _ in range(number_of(trials, random))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    files.write_text(path, json.dumps(points))
    return points


def number_of(trials: Trials, random: np.random.Generator) -> int:
    """Returns a random number of runs, at least one.

    A Poisson number of none is one run here, which only a simulator would miss:
    nothing chosen is nothing released.
    """
    if math.isinf(trials.shape):
        return max(1, int(random.poisson(trials.mean)))
    chance = _chance(trials)
    if trials.shape == 0:
        return int(random.logseries(1 - chance))
    while True:
        found = int(random.negative_binomial(trials.shape, chance))
        if found:
            return found


def _chance(trials: Trials) -> float:
    """Returns gamma, with which the truncated negative binomial has this mean."""
    low, high = 1e-12, 1.0 - 1e-12
    while high - low > 1e-12 * high:
        gamma = math.sqrt(low * high)
        if trials.shape == 0:
            mean = (1 / gamma - 1) / math.log(1 / gamma)
        else:
            mean = trials.shape * (1 - gamma) / (gamma * (1 - gamma**trials.shape))
        low, high = (gamma, high) if mean > trials.mean else (low, gamma)
    return low
