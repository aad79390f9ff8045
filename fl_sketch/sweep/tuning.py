"""How a method of a comparison is tuned: on a grid, which may widen."""

import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fl_sketch.core.mappings import flat
from fl_sketch.models.metrics import CHOSEN, Score, score_of
from fl_sketch.sweep import grid
from fl_sketch.sweep.sweep import sweep
from fl_sketch.sweep.tables import Row, by_point, epsilon_of, mean_score
from fl_sketch.workdir import rows as table
from fl_sketch.workdir.tables import named

Tune = Mapping[str, Sequence[Any]]  # keys and the values that they are tuned over


class _Tried(NamedTuple):
    """A point that was run: its `keys`, its `value` of a score, and its evaluations."""

    keys: dict[str, Any]
    score: Score
    value: float
    rows: list[Row]


class Tuning(NamedTuple):
    """A method that is tuned; a score is the mean of its `last` evaluations."""

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

    def _run(self, over: Tune, name: str) -> list[_Tried]:
        """Runs a grid in folder `name`, or what is left of it; returns its points."""
        folder = self.folder / name
        lines = [f"{key}={','.join(map(str, values))}" for key, values in over.items()]
        lines.append(f"seed={self.config.seed}")
        sweep(self.config, lines, folder, self.data_dir, say=lambda line: None)
        tried, likes = [], flat(self.config)
        for rows in by_point(table.read(folder / "sweep.csv")).values():
            keys = {key: grid.typed(rows[0][key], likes[key]) for key in over}
            value = mean_score(rows, self.last, CHOSEN)
            tried.append(_Tried(keys, score_of(rows[0], CHOSEN), value, rows))
        return tried


def _best(tried: Sequence[_Tried]) -> _Tried:
    """Returns the best point, the first one if all of them diverged."""
    finite = [point for point in tried if math.isfinite(point.value)]
    return max(finite or tried[:1], key=lambda point: point.score.worth(point.value))
