"""Losses: a flax model as pure functions of its parameters.

>>> import jax, jax.numpy as jnp
>>> from fl_sketch import models
>>> loss = models.classification(models.build("logistic", 3))
>>> images, labels = jnp.ones((4, 2, 2, 1)), jnp.array([0, 1, 2, 0])
>>> params = loss.init(jax.random.key(0), images)
>>> loss.value(params, images, labels).round(4)  # log 3: nothing is learnt yet
Array(1.0986, dtype=float32)
>>> sums = loss.metrics(params, images, labels, weights=jnp.array([1, 1, 1, 0]))
>>> {name: f"{value:.4f}" for name, value in loss.report(sums).items()}
{'loss': '1.0986', 'accuracy': '0.3333'}
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fl_sketch.core import validate
from fl_sketch.core.keys import require_key
from fl_sketch.core.protocols import Key, Tree
from fl_sketch.core.trees import Stateful, trained
from fl_sketch.models import metrics as all_metrics
from fl_sketch.models.metrics import CLASSES, LABELS, NUMBERS, Metric


class Loss(NamedTuple):
    """What training and evaluation need to know of a model and its task.

    Attributes:
      init: `(key, example_inputs) -> params`. Only the shape and the dtype of the
        inputs are read, so a `jax.ShapeDtypeStruct` works. A model with statistics
        returns `Stateful`.
      value: `(params, inputs, targets, weights=None, key=None) -> scalar`, the weighted
        mean over examples, to be differentiated. The weight of a padded example is 0.
        If all weights are 0, the value and its gradient are 0. With a key there is
        dropout. With `Stateful` it returns (scalar, the statistics after the batch);
        with `still=True` these do not change, and the model runs in evaluation mode.
      metrics: `(params, inputs, targets, weights=None) -> dict` of sums over the
        examples: "loss", "count", and those of each metric. Sums of batches may be
        added, so an evaluation over padded batches is exact.
      measured: the metrics by name; models are chosen by the first.
      random: whether `value` wants a key.
    """

    init: Callable[[Key, jax.Array | jax.ShapeDtypeStruct], Tree]
    value: Callable[..., Any]
    metrics: Callable[..., dict[str, Any]]
    measured: Mapping[str, Metric] = {}
    random: bool = False

    def report(self, sums: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Returns the mean loss, and each metric by its name, of `sums` of all."""
        loss = {"loss": sums["loss"] / sums["count"]}
        return loss | {name: m.value(sums[name]) for name, m in self.measured.items()}


class Kind(NamedTuple):
    """A loss for each target, what targets are, and the metrics by default."""

    each: Callable[[jax.Array, jax.Array], jax.Array]
    targets: str
    metrics: tuple[str, ...]


def _cross_entropy(logits, targets):
    legal = (targets >= 0) & (targets < logits.shape[-1])
    each = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return each * jnp.where(legal, 1, jnp.nan)  # -1 would count from the end


def _binary(logits, targets):
    return optax.sigmoid_binary_cross_entropy(logits, targets).mean(-1)


def _squared(outputs, targets):
    return optax.squared_error(outputs, targets).mean(-1)


TYPES = ("float32", "bfloat16")
KINDS: dict[str, Kind] = {
    "cross_entropy": Kind(_cross_entropy, CLASSES, ("accuracy",)),
    "binary": Kind(_binary, LABELS, ("accuracy",)),
    "squared": Kind(_squared, NUMBERS, ("rmse",)),
}


def classification(model: nn.Module, **options: Any) -> Loss:
    """Returns the cross-entropy of a model's logits with integer labels.

    The options are those of `supervised`. With smoothing a and C classes the target of
    label y is (1 - a) e_y + a/C. Labels may have any shape: one for an example, or for
    each position of a text. Weights may leave out trailing axes of that shape. A label
    outside of the classes makes the loss NaN.
    """
    return supervised(model, "cross_entropy", **options)


def supervised(
    model: nn.Module,
    kind: str,
    *,
    metrics: Sequence[str] = (),
    label_smoothing: jax.typing.ArrayLike = 0.0,
    weight_decay: jax.typing.ArrayLike = 0.0,
    padding: int | None = None,
    classes: int = 0,
    dtype: str = "float32",
) -> Loss:
    """Returns a loss of a model's outputs and their targets, of one of `KINDS`.

    "cross_entropy" has classes as targets, "binary" a zero or one for each of several
    labels, "squared" numbers, one or several for an example. The decay adds
    `weight_decay/2 |params|^2`. Decay and smoothing may be traced, and are part of
    `value` and not of `metrics`, whose loss is comparable between settings.

    Args:
      model: a flax module, which may keep statistics. If its `__call__` has an argument
        `train`, that is true in training.
      metrics: names of metrics; by default those of the kind.
      label_smoothing: the smoothing a, in [0, 1], of "cross_entropy".
      padding: a label that does not count, after the end of a text; or None.
      classes: the number of classes of the targets, for which a model must have as many
        outputs at least; 0: whatever it has.
      dtype: the type in which the model is computed in training, one of `TYPES`.
        Parameters and their gradients, statistics, the loss and metrics stay float32.
    """
    validate.one_of(tuple(KINDS), loss=kind)
    validate.in_range(0, 1, label_smoothing=label_smoothing)
    validate.in_range(0, float("inf"), weight_decay=weight_decay)
    validate.one_of(TYPES, dtype=dtype)
    each, targets_are, names = KINDS[kind]
    if targets_are != CLASSES and not validate.is_off(label_smoothing):
        msg = f"Expected label_smoothing=0 with loss={kind}, got {label_smoothing}."
        raise ValueError(msg)
    measured = all_metrics.named(metrics or names, targets_are)
    has_train = "train" in inspect.signature(type(model).__call__).parameters

    def matched(outputs, targets, weights):
        """Returns outputs and targets of shapes that fit, and a weight per target."""
        least = classes if targets_are == CLASSES else 0
        if outputs.ndim < 1 or outputs.shape[-1] < least:
            msg = f"Expected a model with {least} outputs, one for each class, "
            raise ValueError(msg + f"got outputs of shape {outputs.shape}.")
        outputs, targets, weights = _matched(outputs, targets, weights, targets_are)
        if padding is not None:
            weights = weights * (targets != padding)
        return outputs, targets, weights

    def value(params, inputs, targets, weights=None, key=None, still=False):
        in_training = key is not None or isinstance(params, Stateful)
        train = has_train and in_training and not still
        low, seen = _cast(params, dtype), _cast(inputs, dtype)
        outputs, state = _applied(model, low, seen, key, train=train)
        outputs, targets, weights = matched(outputs, targets, weights)
        losses = each(outputs, targets)
        if not validate.is_off(label_smoothing):
            # The mean over classes of -log p: cross-entropy with a uniform target.
            uniform = jax.nn.logsumexp(outputs, -1) - outputs.mean(-1)
            losses = (1 - label_smoothing) * losses + label_smoothing * uniform
        total = weights.sum()
        mean = (losses * weights).sum() / jnp.where(total > 0, total, 1)
        if not validate.is_off(weight_decay):
            norm = optax.tree.norm(trained(params), squared=True)
            mean = mean + jnp.where(total > 0, weight_decay / 2 * norm, 0)
        return (mean, state) if isinstance(params, Stateful) else mean

    def sums(params, inputs, targets, weights=None):
        outputs, _ = _applied(model, params, inputs, None, train=False)
        outputs, targets, weights = matched(outputs, targets, weights)
        loss = (each(outputs, targets) * weights).sum()
        of_metrics = {
            name: metric.sums(outputs, targets, weights)
            for name, metric in measured.items()
        }
        return {"loss": loss, "count": weights.sum(), **of_metrics}

    random = has_train and bool(getattr(model, "dropout", True))
    return Loss(functools.partial(_initial, model), value, sums, measured, random)


def _cast(tree: Tree, dtype: str) -> Tree:
    """Returns a tree with its floats in a type, except the statistics of a model."""
    if isinstance(tree, Stateful):
        return tree._replace(params=_cast(tree.params, dtype))
    if dtype == "float32":
        return tree
    return jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )


def _initial(
    model: nn.Module, key: Key, example_inputs: jax.Array | jax.ShapeDtypeStruct
) -> Tree:
    """Returns a model's first parameters, and statistics if it has any."""
    require_key(key)
    inputs = jnp.zeros(example_inputs.shape, example_inputs.dtype)
    # Under jit the model's output is not needed, and so not computed.
    variables = dict(jax.jit(model.init)(key, inputs))
    params = variables.pop("params", None)
    types = {leaf.dtype for leaf in jax.tree.leaves(variables)}
    if params is None or not all(jnp.issubdtype(t, jnp.floating) for t in types):
        msg = (
            "Expected a model of params, or of params and statistics of floats, got "
            f"{sorted(variables)} of {sorted(t.name for t in types)}."
        )
        raise ValueError(msg)
    return Stateful(params, variables) if variables else params


def _applied(model: nn.Module, params: Tree, inputs, key, *, train: bool):
    """Returns (outputs as float32, the statistics after them)."""
    options: dict[str, Any] = {"train": True} if train else {}
    if train and key is not None:
        options["rngs"] = {"dropout": key}
    variables, state = {"params": params}, {}
    if isinstance(params, Stateful):
        variables, state = {"params": params.params, **params.state}, params.state
    options["mutable"] = list(state) if train else []
    outputs, moved = model.apply(variables, inputs, **options)
    return outputs.astype(jnp.float32), {**state, **moved}


def _matched(outputs, targets, weights, targets_are: str):
    """Returns outputs, targets and weights of shapes that go together."""
    targets = jnp.asarray(targets)
    if targets_are == CLASSES:
        shape = outputs.shape[:-1]
        if not jnp.issubdtype(targets.dtype, jnp.integer) or targets.shape != shape:
            msg = (
                f"Outputs of shape {outputs.shape} need integer labels {shape}, got "
                f"{targets.dtype} of shape {targets.shape}: loss=binary is for several "
                "labels of an example."
            )
            raise ValueError(msg)
    else:
        outputs = outputs.reshape(len(outputs), -1)
        targets = targets.astype(jnp.float32).reshape(len(targets), -1)
        shape = targets.shape[:1]
        if outputs.shape != targets.shape:
            msg = (
                f"Expected {targets_are} of shape {outputs.shape}, the model's "
                f"outputs, got {targets.shape}."
            )
            raise ValueError(msg)
    weights = jnp.ones(shape) if weights is None else jnp.asarray(weights, jnp.float32)
    if weights.shape != shape[: weights.ndim]:
        msg = f"Expected weights for labels of shape {shape}, got {weights.shape}."
        raise ValueError(msg)
    missing = (1,) * (len(shape) - weights.ndim)
    weights = weights.reshape(weights.shape + missing)
    return outputs, targets, jnp.broadcast_to(weights, shape)
