"""sketch -> aggregate -> desketch, as stateless optax gradient transformations."""

import jax
import jax.numpy as jnp
import optax
from jax.custom_batching import custom_vmap

from fl_sketch.core import trees, validate
from fl_sketch.core.protocols import Key, Sketch

NEED_KEY = "Expected the round's key: update(updates, state, params, key=key)."
NEED_PARAMS = (
    "Expected params, whose shapes the update takes: update(u, state, params)."
)


def sketch(op: Sketch) -> optax.GradientTransformationExtraArgs:
    """Turns an update into its message, R x."""

    def update(updates, state, params=None, *, key: Key | None = None, **extra_args):
        del params, extra_args
        return op.apply(require(key, NEED_KEY), updates), state

    def init(params):
        validate.warn_if_long(op.size(params), trees.size(params), stacklevel=3)
        return optax.EmptyState()

    return optax.GradientTransformationExtraArgs(init, update)


def desketch(op: Sketch) -> optax.GradientTransformationExtraArgs:
    """Turns a mean message of the same operator into an update: R^T s, unbiased."""

    def update(updates, state, params=None, *, key: Key | None = None, **extra_args):
        del extra_args
        key, params = require(key, NEED_KEY), require(params, NEED_PARAMS)
        return op.transpose(key, updates, params), state

    return optax.GradientTransformationExtraArgs(_no_state, update)


def aggregate(axis_name: str | tuple[str, ...]) -> optax.GradientTransformation:
    """Replaces each message by the mean over clients and devices.

    The clients on one device are those of an enclosing `vmap` (it needs no axis name).
    The devices are those of the mesh axis of `shard_map`, with the same number of
    clients each. Later transformations run once per device, not once per client, with
    the same result on all devices. With `vmap(..., out_axes=None)` and shard_map's
    replication check, jax refuses a step that uses anything of a client except this
    mean.

    Args:
      axis_name: the mesh axis or axes over which the devices differ; without a mesh
        the name of a `vmap` axis.
    """

    def update(updates, state, params=None):
        del params

        def mean(message):
            return jax.lax.pmean(mean_over_clients(message), axis_name)

        return jax.tree.map(mean, updates), state

    return optax.GradientTransformation(_no_state, update)


@custom_vmap
def mean_over_clients(message: jax.Array) -> jax.Array:
    """Returns the mean of `message` over the enclosing vmap; without one, the message.

    shard_map's replication check refuses `lax.pmean` over the names of a vmap and of a
    mesh together, but not a batching rule that averages.
    """
    return message


@mean_over_clients.def_vmap
def _mean_over_clients_batched(axis_size, in_batched, message):
    del axis_size
    return (jnp.mean(message, axis=0) if in_batched[0] else message), False


def require(value, complaint: str):
    """Returns `value`, or raises a ValueError of this `complaint` if it is None."""
    if value is None:
        raise ValueError(complaint)
    return value


def _no_state(params) -> optax.EmptyState:
    del params
    return optax.EmptyState()
