"""Metrics by name: what a model's outputs are worth, beside the loss.

Each is made of sums over examples, so that an evaluation in padded batches, on many
devices, is exact; those that need all outputs at once, as an area under a curve does,
say so.

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
      sums: `(outputs, targets, weights) -> tree`, sums over the examples of a batch;
        or if `whole` what is kept of each of them. Weights are one for each target.
      value: `(sums) -> scalar`, of the sums of all batches, or of all that was kept.
      targets: kinds of targets that it is for: `CLASSES`, `LABELS` or `NUMBERS`.
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
      ValueError: in one line, for a name that there is not, or of other targets.
    """
    able = tuple(name for name in METRICS if targets in METRICS[name].targets)
    for name in names:
        validate.one_of(able, metrics=name)
    if not names or len(set(names)) < len(names):
        msg = f"Expected metrics to name some metrics once each, got {list(names)}."
        raise ValueError(msg)
    return {name: METRICS[name] for name in names}


def _mean_of(right: Callable[[jax.Array, jax.Array], jax.Array]) -> dict[str, Any]:
    """Returns the sums and the value of a mean over targets."""

    def sums(outputs, targets, weights):
        return (right(outputs, targets) * weights).sum(), weights.sum()

    return {"sums": sums, "value": lambda sums: sums[0] / sums[1]}


def _right(outputs, targets):
    """Returns whether the largest logit is the label's; or the share of right labels.

    Labels have a logit each, which says yes above zero.
    """
    if outputs.shape == targets.shape:
        return ((outputs > 0) == (targets > 0)).mean(-1)
    return outputs.argmax(-1) == targets


def _among_five(outputs, targets):
    """Returns whether less than five logits come before the label's.

    Of equal logits the first comes first, as in `_right`; one that is no number is
    behind no other, so that nothing is right where the label's is none.
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
    """Returns the mean over the classes that were found or are there."""
    hits, both = sums
    there = both > 0
    each = jnp.where(there, 2 * hits / jnp.where(there, both, 1), 0)
    return each.sum() / jnp.maximum(there.sum(), 1)


def _scores(outputs, targets, weights):
    """Returns (scores, whether it is the label, weights), by example and class."""
    if outputs.shape == targets.shape:
        return outputs, (targets > 0).astype(jnp.float32), weights
    classes = outputs.shape[-1]
    true = jax.nn.one_hot(targets.reshape(-1), classes)
    return _odds(outputs.reshape(-1, classes)), true, weights.reshape(-1)


def _odds(logits):
    """Returns log(p / (1 - p)) of the probability p of each class.

    Probabilities themselves are 1 in many places as soon as a model is sure, and then
    say nothing of the order.
    """
    largest = logits.max(-1, keepdims=True)
    parts = jnp.exp(logits - largest)
    first = jax.nn.one_hot(logits.argmax(-1), logits.shape[-1], dtype=bool)
    rest = jax.nn.logsumexp(jnp.where(first, -jnp.inf, logits), -1, keepdims=True)
    others = largest + jnp.log(parts.sum(-1, keepdims=True) - parts)
    return logits - jnp.where(first, rest, others)


def _auc(kept):
    """Returns the mean over classes of the share of pairs in their right order.

    A pair is an example of the class and one of the others; of equal scores half is
    right. Classes that nobody or everybody has do not count.
    """
    scores, true, weights = kept

    def of_class(scores, true):
        order = jnp.argsort(scores)
        ranked, others = scores[order], ((1 - true) * weights)[order]
        below = jnp.concatenate([jnp.zeros(1), jnp.cumsum(others)])
        before = below[jnp.searchsorted(ranked, scores, side="left")]
        through = below[jnp.searchsorted(ranked, scores, side="right")]
        right = (true * weights * (before + through)).sum() / 2
        return right, (true * weights).sum() * below[-1]

    right, pairs = jax.vmap(of_class, in_axes=1)(scores, true)
    there = pairs > 0
    each = jnp.where(there, right / jnp.where(there, pairs, 1), 0)
    return each.sum() / there.sum()


def _r2(kept):
    """Returns one minus the share of the targets' variance that is left.

    Where the targets have none it is 1 for a model that is right, and else 0.
    """
    outputs, targets, weights = kept
    each = weights[:, None]
    # Around one of them: a mean of large numbers would lose what they differ in.
    near = targets[weights.argmax()]
    outputs, targets = outputs - near, targets - near
    center = (each * targets).sum(0) / each.sum()
    left = (each * (outputs - targets) ** 2).sum()
    whole = (each * (targets - center) ** 2).sum()
    alike = jnp.where(left > 0, 0.0, 1.0)
    return jnp.where(whole > 0, 1 - left / jnp.where(whole > 0, whole, 1), alike)


def _cross_entropy(outputs, targets):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, targets)


def _kept(outputs, targets, weights):
    return outputs, targets, weights


_error = _mean_of(lambda outputs, targets: ((outputs - targets) ** 2).mean(-1))
_entropy = _mean_of(_cross_entropy)

METRICS: dict[str, Metric] = {
    "accuracy": Metric(**_mean_of(_right), targets=(CLASSES, LABELS)),
    "top5": Metric(**_mean_of(_among_five), targets=(CLASSES,)),
    "f1": Metric(_f1_sums, _f1, (CLASSES, LABELS)),
    "auc": Metric(_scores, _auc, (CLASSES, LABELS), whole=True),
    "perplexity": Metric(
        _entropy["sums"],
        lambda sums: jnp.exp(_entropy["value"](sums)),
        (CLASSES,),
        higher=False,
        percent=False,
    ),
    "mae": Metric(
        **_mean_of(lambda outputs, targets: jnp.abs(outputs - targets).mean(-1)),
        targets=(NUMBERS,),
        higher=False,
        percent=False,
    ),
    "rmse": Metric(
        _error["sums"],
        lambda sums: jnp.sqrt(_error["value"](sums)),
        (NUMBERS,),
        higher=False,
        percent=False,
    ),
    "r2": Metric(_kept, _r2, (NUMBERS,), whole=True, percent=False),
}
