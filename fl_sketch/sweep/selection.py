"""Private selection: a method is tuned by a random number of runs that stays secret.

Each run takes a random point of the grid and all rounds; the best of them is what is
reported, and the others, like their number, are nobody's business. That costs a few
times what one run does, where a grid costs as many times as it has points
(`privacy.composition`). Runs are compared by their accuracy on test data, which are
not protected.
"""

import itertools
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from fl_sketch.config import parse
from fl_sketch.core import files, untrusted_files
from fl_sketch.core.mappings import flat
from fl_sketch.privacy import composition
from fl_sketch.privacy.composition import Trials, require
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.run.setup import prepare
from fl_sketch.sweep import pictures, standings
from fl_sketch.sweep.grid import shown
from fl_sketch.sweep.sweep import sweep
from fl_sketch.workdir import odometer, secrets
from fl_sketch.workdir.rows import CHOSEN, score_of

Row = dict[str, Any]
FOLDER = "simulator_only_trials"


def select(
    config: ConfigDict,
    tune: Mapping[str, Sequence[Any]],
    entry: Guarantee,
    folder: pathlib.Path,
    data_dir: str | None,
    *,
    last: int,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], list[Row]]:
    """Returns the keys of the best run, and its evaluations.

    Their epsilon is that of the selection, whatever the round: all of them stand for
    one run that was chosen among others.

    Args:
      config: the config of the method, with noise.
      tune: keys and their values.
      entry: what it will cost, from `planned`.
      folder: the folder of the method.
      data_dir: the folder of raw data sets.
      last: the number of evaluations that the score is the mean of, the last ones.
      say: what prints a line.
    """
    assert entry.trials is not None
    drawn = _drawn(config, tune, Trials(*entry.trials), folder / FOLDER)
    found = []
    for number, point in enumerate(drawn):
        over = [f"{key}={value}" for key, value in point.items()]
        own = folder / FOLDER / str(number)
        sweep(config, over, own, data_dir, say=lambda line: None)
        rows = files.read_rows(own / "sweep.csv")
        (evaluations,) = pictures.by_point(rows).values()
        by = score_of(evaluations[0], CHOSEN)
        score = by.worth(standings.score(evaluations, last, CHOSEN))
        found.append((score, point, evaluations))
    odometer.note(folder, {"selection": entry})
    going = [one for one in found if math.isfinite(one[0])]
    score, point, evaluations = max(going or found[:1], key=lambda one: one[0])
    said = ", ".join(f"{key}={shown(value)}" for key, value in point.items())
    say(f"  best of a random number of runs: {said}, {by.worth(score):.4f}")
    if entry.public:
        return point, evaluations
    epsilon = odometer.selected(entry, entry.delta)
    return point, [{**row, "epsilon": epsilon} for row in evaluations]


def planned(
    config: ConfigDict,
    tune: Mapping[str, Sequence[Any]],
    trials: Trials,
    data_dir: str | None,
) -> Guarantee:
    """Returns what a selection will cost, of runs that all cost the same.

    Args:
      config: the config, as for `select`.
      tune: keys and their values.
      trials: the distribution of the number of runs.
      data_dir: the folder of raw data sets.

    Raises:
      ValueError: if they are not private, or do not cost the same.
    """
    require(trials)
    # Continuous keys are arguments of one program, and so of one promise.
    names = [key for key in tune if key not in parse.CONTINUOUS]
    promises = {}
    for values in itertools.product(*(tune[name] for name in names)):
        own = config.copy_and_resolve_references()
        own.update_from_flattened_dict(dict(zip(names, values, strict=True)))
        promises[values] = prepare(own, data_dir).guarantee
    first, *others = promises.values()
    if not (first and first.private):
        msg = (
            "Expected a private config for a private selection, got one without noise: "
            f"algorithm={config.algorithm}."
        )
        raise ValueError(msg)
    if any(other != first for other in others):
        msg = (
            "Expected trials that all cost the same in a private selection, got values "
            f"of {', '.join(names)} that change the noise or what is counted."
        )
        raise ValueError(msg)
    composition.best_of_a_random_number(
        first.plan, first.noise_multiplier, trials, delta=first.delta
    )  # refuses what no accountant knows
    return first.after(first.rounds)._replace(trials=tuple(trials))


def _drawn(config, tune, trials: Trials, folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns a point for each run, drawn once for a folder.

    Raises:
      ValueError: if they were drawn for another distribution of their number.
    """
    path = folder / "points.json"
    if path.exists():
        with untrusted_files.reading(path, "to hold points as they were drawn"):
            kept = dict(json.loads(path.read_text()))
        if kept["trials"] != list(trials):
            mean, shape = kept["trials"]
            msg = (
                f"Expected trials of mean={mean} and shape={shape}, as drawn in "
                f"{folder.parent}, got mean={trials.mean} and shape={trials.shape}."
            )
            raise ValueError(msg)
        return kept["points"]
    seeded = config.privacy.randomness == "seed"
    secret = secrets.simulated(flat(config)) if seeded else secrets.fresh()
    own = secret.reveal()
    random = np.random.default_rng(int.from_bytes(own, "little"))
    points = [
        {key: values[random.integers(len(values))] for key, values in tune.items()}
        for _ in range(number_of(trials, random))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)
    files.write_text(path, json.dumps({"trials": list(trials), "points": points}))
    return points


def number_of(trials: Trials, random: np.random.Generator) -> int:
    """Returns a random number of runs, at least one.

    Args:
      trials: its distribution, the truncated negative binomial of a mean and a shape;
        with a shape of 0 the logarithmic one.
      random: the source of what is random, which nobody else may know.
    """
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
