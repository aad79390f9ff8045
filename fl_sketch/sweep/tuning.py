"""How a method of a comparison is tuned: on a grid, or by private selection.

In a private selection each run takes a random point of the grid and all rounds. Only
the best run is reported; the others and their number stay secret. That costs a few
times as much as one run, where a grid costs as many times as it has points
(`privacy.composition`). Runs are compared by scores on data that need no protection.
"""

import itertools
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from fl_sketch.config import parse
from fl_sketch.core import files, untrusted_files
from fl_sketch.core.mappings import flat
from fl_sketch.models.metrics import CHOSEN, Score, score_of
from fl_sketch.privacy import composition
from fl_sketch.privacy.composition import Trials
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.run.setup import prepare
from fl_sketch.sweep import grid
from fl_sketch.sweep.sweep import sweep
from fl_sketch.sweep.tables import Row, by_point, epsilon_of, mean_score
from fl_sketch.workdir import odometer, secrets
from fl_sketch.workdir import rows as table
from fl_sketch.workdir.tables import named

FOLDER = "simulator_trials"
Tune = Mapping[str, Sequence[Any]]  # keys and the values that they are tuned over


class _Tried(NamedTuple):
    """A point that was run: its `keys`, its `value` of a score, and its evaluations."""

    keys: dict[str, Any]
    score: Score
    value: float
    rows: list[Row]


class Tuning(NamedTuple):
    """A method that is tuned: with `config`, over the grid `tune`, in a `folder`.

    `data_dir` is the folder of raw data sets, `last` the number of evaluations in the
    mean of a score, and `say` prints a line.
    """

    config: ConfigDict
    tune: Tune
    folder: pathlib.Path
    data_dir: str | None
    last: int
    say: Callable[[str], None]

    def search(self, widen: int = 0) -> tuple[dict[str, Any], list[Row]]:
        """Returns the keys of the best point of the grid, and a row for every point.

        The grid grows by up to `widen` values, in folders next to the first one, while
        its best point is at an end of it.
        """
        over = dict(self.tune)
        tried = self._run(over, "tuning")
        for number in range(1, widen + 1):
            end = grid.beyond(over, _best(tried).keys)
            if end is None:
                break
            key, value = end
            over[key] = (*over[key], value)
            tried += self._run({**over, key: (value,)}, f"tuning_{number}")
        best = _best(tried)
        if not any(math.isfinite(point.value) for point in tried):
            self.say(f"  all {len(tried)} points of the grid diverged")
        chosen = f"{named(best.keys)}, {best.score.title} {best.value:.4f}"
        self.say(f"  best of {len(tried)} points: {chosen}")
        if end := grid.beyond(over, best.keys):
            next_value = named(dict([end]))
            self.say(f"  note: the best is at the edge of the grid; try {next_value}")
        return best.keys, [
            {**keys, score.name: value, **epsilon_of(rows[-1:])}
            for keys, score, value, rows in tried
        ]

    def select(self, entry: Guarantee) -> tuple[dict[str, Any], list[Row]]:
        """Returns the keys of the best of a random number of runs, and its evaluations.

        Their epsilon is that of the whole selection, of which `planned` made the entry.
        """
        assert entry.trials is not None
        tried = []
        for number, keys in enumerate(self.drawn(Trials(*entry.trials))):
            over = {key: [value] for key, value in keys.items()}
            tried += self._run(over, f"{FOLDER}/{number}", seed=False)
        odometer.note(self.folder, {"selection": entry})
        best = _best(tried)
        chosen = f"{named(best.keys)}, {best.score.title} {best.value:.4f}"
        self.say(f"  best of a random number of runs: {chosen}")
        if entry.public:
            return best.keys, best.rows
        epsilon = odometer.selected(entry, entry.delta)
        return best.keys, [{**row, "epsilon": epsilon} for row in best.rows]

    def drawn(self, trials: Trials) -> list[dict[str, Any]]:
        """Returns the keys of each run of a selection, drawn once for a folder.

        Raises:
          ValueError: if they were drawn for another distribution of their number.
        """
        path = self.folder / FOLDER / "points.json"
        if path.exists():
            with untrusted_files.reading(path, "to hold the points that were drawn"):
                before = dict(json.loads(path.read_text()))
            if before["trials"] != list(trials):
                mean, shape = before["trials"]
                msg = (
                    f"Expected trials={mean} and trials_shape={shape}, as in "
                    f"{self.folder}, got trials={trials.mean} and "
                    f"trials_shape={trials.shape}."
                )
                raise ValueError(msg)
            return before["points"]
        seeded = self.config.privacy.randomness == "seed"
        secret = secrets.simulated(flat(self.config)) if seeded else secrets.fresh()
        random = np.random.default_rng(int.from_bytes(secret.reveal(), "little"))
        points = [
            {key: own[int(random.integers(len(own)))] for key, own in self.tune.items()}
            for _ in range(number_of(trials, random))
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        os.chmod(path.parent, 0o700)
        text = json.dumps({"trials": list(trials), "points": points})
        files.write_text(path, text)
        return points

    def _run(self, over: Tune, name: str, *, seed: bool = True) -> list[_Tried]:
        """Runs a grid in folder `name`, or what is left of it; returns its points."""
        folder = self.folder / name
        lines = [f"{key}={','.join(map(str, values))}" for key, values in over.items()]
        lines += [f"seed={self.config.seed}"] * seed
        sweep(self.config, lines, folder, self.data_dir, say=lambda line: None)
        tried, likes = [], flat(self.config)
        for rows in by_point(table.read(folder / "sweep.csv")).values():
            keys = {key: grid.typed(rows[0][key], likes[key]) for key in over}
            value = mean_score(rows, self.last, CHOSEN)
            tried.append(_Tried(keys, score_of(rows[0], CHOSEN), value, rows))
        return tried


def planned(
    config: ConfigDict, tune: Tune, trials: Trials, data_dir: str | None
) -> Guarantee:
    """Returns what a private selection will cost, of runs that all cost the same.

    Raises:
      ValueError: if the runs are not private, or do not cost the same.
    """
    composition.require(trials)
    # Continuous keys are arguments of one program, and so have one guarantee.
    names = [key for key in tune if key not in parse.CONTINUOUS]
    guarantees = [
        prepare(
            grid.changed(config, dict(zip(names, values, strict=True))), data_dir
        ).guarantee
        for values in itertools.product(*(tune[name] for name in names))
    ]
    first, *others = guarantees
    if not (first and first.private):
        msg = (
            "Expected a private config for private tuning, got one without noise: "
            f"algorithm={config.algorithm}."
        )
        raise ValueError(msg)
    if any(guarantee != first for guarantee in others):
        msg = (
            "Expected private tuning in which all trials cost the same epsilon, got "
            f"values of {', '.join(names)} that change it."
        )
        raise ValueError(msg)
    composition.best_of_a_random_number(
        first.plan, first.noise_multiplier, trials, delta=first.delta
    )  # refuses what no accountant knows
    return first.after(first.rounds)._replace(trials=tuple(trials))


def number_of(trials: Trials, random: np.random.Generator) -> int:
    """Returns a random number of runs, at least one.

    Args:
      trials: the mean and the shape of its distribution, the truncated negative
        binomial; with a shape of 0 the logarithmic one.
      random: the source of randomness, which must stay secret.
    """
    chance = _chance(trials)
    if trials.shape == 0:
        return int(random.logseries(1 - chance))
    while True:
        number = int(random.negative_binomial(trials.shape, chance))
        if number:
            return number


def _chance(trials: Trials) -> float:
    """Returns gamma, with which the truncated negative binomial has this mean."""
    from scipy import optimize  # takes half a second to import

    def excess(log: float) -> float:
        zero = math.expm1(trials.shape * log) / trials.shape if trials.shape else log
        return math.log(math.expm1(-log) / -zero / trials.mean)

    within = math.log(1e-12), math.log1p(-1e-12)
    return math.exp(optimize.root_scalar(excess, bracket=within).root)


def _best(tried: Sequence[_Tried]) -> _Tried:
    """Returns the best point, the first one if all of them diverged."""
    finite = [point for point in tried if math.isfinite(point.value)]
    return max(finite or tried[:1], key=lambda point: point.score.worth(point.value))
