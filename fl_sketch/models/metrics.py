"""Metrics by name.

Each is computed from sums over examples, so that an evaluation in padded batches, on
many devices, is exact. A metric that needs all outputs at once, such as an area under a
curve, is `whole`. Devices compute them: in rounds, and for each of thousands of clients
or points of a sweep.

>>> import jax.numpy as jnp
>>> logits, labels = jnp.array([[2.0, 1], [0, 3], [1, 0]]), jnp.array([0, 1, 1])
>>> sums = METRICS["accuracy"].sums(logits, labels, jnp.ones(3))
>>> METRICS["accuracy"].value(sums).round(4)
Array(0.6667, dtype=float32)
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch.core import validate

CLASSES, LABELS, NUMBERS = "classes", "labels", "numbers"  # what targets may be


class Metric(NamedTuple):
    """A number that says how well a model does.

    Attributes:
      sums: `(outputs, targets, weights) -> tree`, sums over the examples of a batch, or
        if `whole` an array with a row for each example. There is one weight for each
        target.
      value: `(sums) -> scalar`, of the sums of all batches, or of all rows.
      targets: the kinds of targets: `CLASSES`, `LABELS` or `NUMBERS`.
      higher: whether more is better.
      whole: whether it needs all examples at once.
      percent: whether it is a share, which tables print as percents.
    """

    sums: Callable[[jax.Array, jax.Array, jax.Array], Any]
    value: Callable[[Any], jax.Array]
    targets: tuple[str, ...]
    higher: bool = True
    whole: bool = False
    percent: bool = True


def named(names: Sequence[str], targets: str) -> dict[str, Metric]:
    """Returns the metrics of some names, in their order.

    Args:
      names: the names, at least one, each once.
      targets: the kind of the targets, which all of them must be for.

    Raises:
      ValueError: in one line, for an unknown name, or one of other targets.
    """
    able = tuple(name for name in METRICS if targets in METRICS[name].targets)
    for name in names:
        if name not in able:
            choices = ", ".join(map(repr, able))
            msg = f"Expected metrics to be one of {choices} for targets that are "
            msg += f"{targets} (model.loss), got metrics={name!r}."
            raise ValueError(msg + validate.nearest(name, able))
    if not names or len(set(names)) < len(names):
        msg = f"Expected metrics to name some metrics once each, got {list(names)}."
        raise ValueError(msg)
    return {name: METRICS[name] for name in names}


def _mean(each: Callable, targets: Sequence[str], of_mean=lambda mean: mean, **how):
    """Returns the metric of a mean over targets: `of_mean(mean of each(...))`."""

    def sums(outputs, targets, weights):
        return (each(outputs, targets) * weights).sum(), weights.sum()

    def value(sums):
        return of_mean(sums[0] / sums[1])

    return Metric(sums, value, tuple(targets), **how)


def _error(each: Callable, of_mean=lambda mean: mean):
    """Returns the metric of a mean over the numbers of an example, and over these."""

    def of_example(outputs, targets):
        return each(outputs - targets).mean(-1)

    return _mean(of_example, [NUMBERS], of_mean, higher=False, percent=False)


def _right(outputs, targets):
    """Returns whether the largest logit is the label's; or the share of right labels.

    Labels have a logit each, which says yes above zero.
    """
    if outputs.shape == targets.shape:
        return ((outputs > 0) == (targets > 0)).mean(-1)
    return outputs.argmax(-1) == targets


def _among_five(outputs, targets):
    """Returns whether fewer than five logits come before the label's.

    Of equal logits the first ranks first, as in `_right`. NaN ranks behind no other
    logit, so nothing is right if the label's logit is NaN.
    """
    own = jnp.take_along_axis(outputs, targets[..., None], -1)
    first = jnp.arange(outputs.shape[-1]) < targets[..., None]
    before = ~(outputs <= own) | (first & (outputs == own))
    legal = (targets >= 0) & (targets < outputs.shape[-1])
    return legal & (before.sum(-1) < 5)


def _f1_sums(outputs, targets, weights):
    """Returns (true positives, twice these and all wrong ones), for each class."""
    found, true = outputs > 0, targets > 0
    if outputs.shape != targets.shape:
        classes = outputs.shape[-1]
        found, true = (
            jax.nn.one_hot(labels, classes, dtype=bool)
            for labels in (outputs.argmax(-1), targets)
        )

    def count(where):
        shares = (where * weights[..., None]).reshape(-1, where.shape[-1])
        return shares.sum(0)

    return count(found & true), count(found) + count(true)


def _f1(sums):
    """Returns the mean over the classes that were predicted or are in the data."""
    hits, both = sums
    return _ratio(2 * hits, both).sum() / jnp.maximum((both > 0).sum(), 1)


def _ratio(part, whole, otherwise: Any = 0.0):
    """Returns part / whole where the whole is above zero."""
    there = whole > 0
    return jnp.where(there, part / jnp.where(there, whole, 1), otherwise)


def _scores(outputs, targets, weights):
    """Returns (scores, whether it is the label, weights), by example and class."""
    if outputs.shape == targets.shape:
        return outputs, (targets > 0).astype(jnp.float32), weights
    classes = outputs.shape[-1]
    true = jax.nn.one_hot(targets.reshape(-1), classes)
    return _odds(outputs.reshape(-1, classes)), true, weights.reshape(-1)


def _odds(logits):
    """Returns log(p / (1 - p)) of the probability p of each class.

    The probabilities of a model that is sure round to 1 in many places, and then say
    nothing of the order.
    """
    largest = logits.max(-1, keepdims=True)
    parts = jnp.exp(logits - largest)
    first = jax.nn.one_hot(logits.argmax(-1), logits.shape[-1], dtype=bool)
    rest = jax.nn.logsumexp(jnp.where(first, -jnp.inf, logits), -1, keepdims=True)
    others = largest + jnp.log(parts.sum(-1, keepdims=True) - parts)
    return logits - jnp.where(first, rest, others)


def _auc(rows):
    """Returns the mean over classes of the share of pairs in their right order.

    A pair is an example of the class and one of another. If both have equal scores,
    half of the pair is right. Classes of no example or of all do not count.
    """
    scores, true, weights = rows

    def of_class(scores, true):
        order = jnp.argsort(scores)
        ranked, others = scores[order], ((1 - true) * weights)[order]
        below = jnp.concatenate([jnp.zeros(1), jnp.cumsum(others)])
        before = below[jnp.searchsorted(ranked, scores, side="left")]
        through = below[jnp.searchsorted(ranked, scores, side="right")]
        right = (true * weights * (before + through)).sum() / 2
        return right, (true * weights).sum() * below[-1]

    right, pairs = jax.vmap(of_class, in_axes=1)(scores, true)
    return _ratio(right, pairs).sum() / (pairs > 0).sum()


def _r2(rows):
    """Returns one minus the share of the targets' variance that is left.

    If the targets have none, it is 1 for a model without errors, and else 0.
    """
    outputs, targets, weights = rows
    each = weights[:, None]
    # Around one of them: a mean of large numbers would lose what they differ in.
    near = targets[weights.argmax()]
    outputs, targets = outputs - near, targets - near
    center = (each * targets).sum(0) / each.sum()
    left = (each * (outputs - targets) ** 2).sum()
    whole = (each * (targets - center) ** 2).sum()
    return 1 - _ratio(left, whole, otherwise=jnp.sign(left))


def _rows(outputs, targets, weights):
    return outputs, targets, weights


_entropy = optax.softmax_cross_entropy_with_integer_labels

METRICS: dict[str, Metric] = {
    "accuracy": _mean(_right, [CLASSES, LABELS]),
    "top5": _mean(_among_five, [CLASSES]),
    "f1": Metric(_f1_sums, _f1, (CLASSES, LABELS)),
    "auc": Metric(_scores, _auc, (CLASSES, LABELS), whole=True),
    "perplexity": _mean(_entropy, [CLASSES], jnp.exp, higher=False, percent=False),
    "mae": _error(jnp.abs),
    "rmse": _error(jnp.square, jnp.sqrt),
    "r2": Metric(_rows, _r2, (NUMBERS,), whole=True, percent=False),
}
