"""Attention of pretrained models, on queries, keys and values in heads."""

import jax
import jax.numpy as jnp


def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array
) -> jax.Array:
    """Returns what each place takes from the places that it may see.

    Args:
      query: [batch, length, heads, width].
      key: the same with as many heads, or a divisor of them: each is then used by
        several consecutive heads of queries.
      value: as `key`.
      mask: bool, [batch or 1, length or 1, length]: the positions to which each
        position attends.
    """
    batch, length, heads, width = query.shape
    groups = key.shape[2]
    query = query.reshape(batch, length, groups, heads // groups, width)
    scores = jnp.einsum("bqghd,bkgd->bghqk", query, key) * width**-0.5
    scores = jnp.where(mask[:, None, None], scores, jnp.finfo(scores.dtype).min)
    shares = jax.nn.softmax(scores)
    taken = jnp.einsum("bghqk,bkgd->bqghd", shares, value)
    return taken.reshape(batch, length, heads * width)
