"""Metrics by name, computed from sums over examples.

An evaluation in padded batches, on many devices, is therefore exact.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch.core import validate

CLASSES, LABELS, NUMBERS = "classes", "labels", "numbers"  # what targets may be

REPORTED = ("test",)
CHOSEN = ("validation", "test")  # models are chosen by the first that the data have
MEASURED = tuple(f"{part}_" for part in CHOSEN)  # before names of numbers of a model


class Metric(NamedTuple):
    """A measure of how well a model does: a function of a mean over targets."""

    each: Callable[[jax.Array, jax.Array], jax.Array]  # (outputs, targets) -> values
    targets: tuple[str, ...]  # of `CLASSES`, `LABELS` and `NUMBERS`
    of_mean: Callable[[jax.Array], jax.Array] = lambda mean: mean
    higher: bool = False  # whether more is better
    percent: bool = False  # whether it is a share, which tables print as percents

    def sums(
        self, outputs: jax.Array, targets: jax.Array, weights: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns sums over the examples of a batch; each target has a weight."""
        return (self.each(outputs, targets) * weights).sum(), weights.sum()

    def value(self, sums: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Returns the metric, of the sums of all batches."""
        return self.of_mean(sums[0] / sums[1])


def _accuracy(outputs, targets):
    """Returns whether the largest logit is the label's; or the share of right labels.

    Labels have a logit each, which says yes above zero.
    """
    if outputs.shape == targets.shape:
        return ((outputs > 0) == (targets > 0)).mean(-1)
    return outputs.argmax(-1) == targets


def _squared_error(outputs, targets):
    return jnp.square(outputs - targets).mean(-1)


METRICS: dict[str, Metric] = {
    "accuracy": Metric(_accuracy, (CLASSES, LABELS), higher=True, percent=True),
    "perplexity": Metric(
        optax.softmax_cross_entropy_with_integer_labels, (CLASSES,), jnp.exp
    ),
    "rmse": Metric(_squared_error, (NUMBERS,), jnp.sqrt),
}


def named(names: Sequence[str], targets: str) -> dict[str, Metric]:
    """Returns the metrics of some names, each once, all for such `targets`."""
    able = tuple(name for name in METRICS if targets in METRICS[name].targets)
    for name in names:
        if name not in able:
            msg = f"Metrics of {targets} (model.loss) are {', '.join(able)}, got "
            raise ValueError(msg + f"metrics={name!r}.{validate.nearest(name, able)}")
    if not names or len(set(names)) < len(names):
        msg = f"Expected metrics to name some metrics once each, got {list(names)}."
        raise ValueError(msg)
    return {name: METRICS[name] for name in names}


class Score(NamedTuple):
    """A column of a row: metric `name` of a `part`, "test" or "validation"."""

    part: str
    name: str

    @property
    def column(self) -> str:
        """Its name in a row."""
        return f"{self.part}_{self.name}"

    @property
    def title(self) -> str:
        """Its name in a table."""
        return f"{self.part} {self.name}"

    @property
    def head(self) -> str:
        """The head of its column in a table: its name, and "(%)" for a share."""
        return self.title + " (%)" * (self.factor > 1)

    @property
    def factor(self) -> int:
        """The factor for tables: 100 for a share."""
        return 100 if METRICS[self.name].percent else 1

    def of(self, row: Mapping[str, Any]) -> float:
        """Returns the number of a `row`."""
        return _number(row[self.column])

    def worth(self, value: float) -> float:
        """Returns a number that is larger for a better `value`."""
        return value if METRICS[self.name].higher else -value


def score_of(row: Iterable[str], parts: Iterable[str] = REPORTED) -> Score:
    """Returns the first metric of a row, on the first part that was measured."""
    for part in parts:
        for name in row:
            head, _, metric = name.partition("_")
            if head == part and metric in METRICS:
                return Score(part, metric)
    msg = f"Expected rows with a metric of {' or '.join(parts)}, got {', '.join(row)}."
    raise ValueError(msg)


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a `row` on data that belong to no client."""
    return {name: _number(row[name]) for name in row if name.startswith(MEASURED)}


def _number(value: Any) -> float:
    """Returns a number of a file; json has None for NaN."""
    return math.nan if value is None else float(value)
