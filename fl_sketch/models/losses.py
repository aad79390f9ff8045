"""Losses: a flax model as pure functions of its parameters.

>>> import jax, jax.numpy as jnp
>>> from fl_sketch import models
>>> loss = models.classification(models.build("logistic", 3))
>>> images, labels = jnp.ones((4, 2, 2, 1)), jnp.array([0, 1, 2, 0])
>>> params = loss.init(jax.random.key(0), images)
>>> loss.value(params, images, labels).round(4)  # log 3: nothing is learnt yet
Array(1.0986, dtype=float32)
>>> sums = loss.metrics(params, images, labels, weights=jnp.array([1, 1, 1, 0]))
>>> int(sums["correct"]), int(sums["count"])  # the fourth is padding
(1, 3)
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from fl_sketch import validate
from fl_sketch.keys import require_key
from fl_sketch.protocols import Key, Tree


class Loss(NamedTuple):
    """What training and evaluation need to know of a model and its task.

    Attributes:
      init: `(key, example_inputs) -> params`; of the inputs only shape and dtype
        are read, so a `jax.ShapeDtypeStruct` will do.
      value: `(params, inputs, targets, weights=None) -> scalar`, the mean over
        examples, to be differentiated. Weights say how much an example counts: a
        padded one counts 0. If none counts the value and its gradient are zero.
      metrics: `(params, inputs, targets, weights=None) -> dict` of sums over the
        examples: "loss", "correct" and "count". Sums of batches may be added up,
        so an evaluation over padded batches is exact.
    """

    init: Callable[[Key, jax.Array | jax.ShapeDtypeStruct], Tree]
    value: Callable[..., jax.Array]
    metrics: Callable[..., dict[str, jax.Array]]


def _initial(
    model: nn.Module, key: Key, example_inputs: jax.Array | jax.ShapeDtypeStruct
) -> Tree:
    """Returns a model's first parameters, which must be all that it keeps."""
    require_key(key)
    inputs = jnp.zeros(example_inputs.shape, example_inputs.dtype)
    # Under jit the model's output is not needed, and so not computed.
    variables = jax.jit(model.init)(key, inputs)
    if set(variables) != {"params"}:
        msg = f"Expected a model of params only, got {sorted(variables)}."
        raise ValueError(msg)
    return variables["params"]


def classification(
    model: nn.Module,
    *,
    label_smoothing: jax.typing.ArrayLike = 0.0,
    weight_decay: jax.typing.ArrayLike = 0.0,
    padding: int | None = None,
) -> Loss:
    """Returns the cross-entropy of a model's logits with integer labels.

    With smoothing a and C classes the target of label y is (1 - a) e_y + a/C; the
    decay adds `weight_decay/2 |params|^2`, so that its gradient is weight_decay times
    the parameters. Both belong to what is trained and not to what is reported:
    `metrics` gives the plain cross-entropy, comparable between settings. Labels may
    have any shape whose predictions the model gives (an example, or each place of a
    text); weights may leave out trailing axes of it. A label outside of the classes
    makes the loss NaN.

    Args:
      model: a flax module from inputs to logits, its parameters its only state.
      label_smoothing: the smoothing a, in [0, 1]. May be traced, for a sweep.
      weight_decay: the factor of the decay, at least 0. May be traced, for a sweep.
      padding: a label that does not count, after the end of a text; or None.
    """
    validate.in_range(0, 1, label_smoothing=label_smoothing)
    validate.in_range(0, float("inf"), weight_decay=weight_decay)

    def predict(params, inputs, targets, weights):
        """Returns (logits, labels, one weight for each label)."""
        logits = model.apply({"params": params}, inputs).astype(jnp.float32)  # pyright: ignore[reportAttributeAccessIssue]
        targets = _labels(targets, logits.shape[:-1])
        weights = _weights(weights, targets.shape)
        if padding is not None:
            weights = weights * (targets != padding)
        return logits, targets, weights

    def value(params, inputs, targets, weights=None):
        logits, targets, weights = predict(params, inputs, targets, weights)
        each = _smoothed(logits, targets, label_smoothing)
        total = weights.sum()
        mean = (each * weights).sum() / jnp.where(total > 0, total, 1)
        if validate.is_off(weight_decay):
            return mean
        decay = weight_decay / 2 * optax.tree.norm(params, squared=True)
        return mean + jnp.where(total > 0, decay, 0)

    def metrics(params, inputs, targets, weights=None):
        logits, targets, weights = predict(params, inputs, targets, weights)
        each = _smoothed(logits, targets, 0.0)
        correct = logits.argmax(-1) == targets
        return {
            "loss": (each * weights).sum(),
            "correct": (correct * weights).sum(),
            "count": weights.sum(),
        }

    return Loss(functools.partial(_initial, model), value, metrics)


def _smoothed(logits, targets, smoothing) -> jax.Array:
    legal = (targets >= 0) & (targets < logits.shape[-1])
    each = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    each = each * jnp.where(legal, 1, jnp.nan)  # -1 would count from the end
    if validate.is_off(smoothing):
        return each
    # The mean over classes of -log p is the cross-entropy with a uniform target.
    uniform = jax.nn.logsumexp(logits, -1) - logits.mean(-1)
    return (1 - smoothing) * each + smoothing * uniform


def _labels(targets, shape: tuple[int, ...]) -> jax.Array:
    targets = jnp.asarray(targets)
    if not jnp.issubdtype(targets.dtype, jnp.integer) or targets.shape != shape:
        msg = (
            f"Expected integer labels of shape {shape}, the model's, "
            f"got {targets.dtype} of shape {targets.shape}."
        )
        raise ValueError(msg)
    return targets


def _weights(weights, shape: tuple[int, ...]) -> jax.Array:
    """Returns one weight for each label."""
    weights = jnp.ones(shape) if weights is None else jnp.asarray(weights, jnp.float32)
    if weights.shape != shape[: weights.ndim]:
        msg = f"Expected weights for labels of shape {shape}, got {weights.shape}."
        raise ValueError(msg)
    missing = (1,) * (len(shape) - weights.ndim)
    return jnp.broadcast_to(weights.reshape(weights.shape + missing), shape)
