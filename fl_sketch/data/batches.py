"""Clients' batches: drawn and gathered on the device, one client at a time.

The whole data set lives on the device once, however many clients share it, and with
it the partition: 4 bytes an example and 4 a client. A round touches only its cohort:
a batch costs a few integer operations and two gathers for each example in it, and
nothing depends on the number of clients. Batching over clients is the caller's `vmap`.

>>> from fl_sketch.data.examples import Examples
>>> examples = Examples(np.zeros((6, 2), np.uint8), np.arange(6, dtype=np.int32))
>>> dealt = Partition(np.arange(6, dtype=np.int32), np.array([0, 2, 6]))
>>> data = resident(examples, dealt)
>>> keys, cohort = jax.random.split(jax.random.key(0), 3), jnp.array([1, 0, 1])
>>> draw = lambda key, client: batches(data, key, client, steps=5, batch=4)
>>> jax.tree.map(jnp.shape, jax.jit(jax.vmap(draw))(keys, cohort))
Examples(inputs=(3, 5, 4, 2), targets=(3, 5, 4))
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import hashing, keys, validate
from fl_sketch.core.protocols import Key
from fl_sketch.data.examples import aligned
from fl_sketch.data.partition import Partition

KINDS = ("fresh", "subsets", "whole")
TABLE_UP_TO = 2**26  # entries, a quarter of a GiB
_NOWHERE = np.int32(2**31 - 1)  # the index of an example that is not there
ROUNDS = 24  # of the shuffle; tests of uniformity fail up to 8 and pass from 10 on


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["numbers"], meta_fields=["shape"]
)
@dataclasses.dataclass(frozen=True)
class Rows:
    """Examples of several axes as one row of numbers each.

    A TPU fills up an axis of an array to 128 numbers: of images 32 pixels wide that is
    four times what they have, and of their rows nothing.

    Attributes:
      numbers: the rows, shape=(examples, numbers of each).
      shape: the shape of an example.
    """

    numbers: Any
    shape: tuple[int, ...]


class Resident(NamedTuple):
    """A data set and its partition on the device: a pytree to hand to a jitted step.

    Attributes:
      examples: arrays with a row for each example, or `Rows`; `Examples` say.
      indices: int32 [total], the examples of every client one after the other.
      starts: int32 [clients + 1], the place of each client's first index, and their
        number.
    """

    examples: Any
    indices: jax.Array
    starts: jax.Array


def resident(examples: Any, partition: Partition, *, device=None) -> Resident:
    """Returns the data on a device, or laid out by a sharding.

    On CPUs they may be the arrays themselves, which must not be changed afterwards.

    Args:
      examples: a tree of arrays with a row for each example.
      partition: the partition that says whose they are.
      device: a device or a sharding; None: jax's default.

    Raises:
      TypeError: for text, which no device holds.
      ValueError: for a partition of other examples, or of 2^31 indices or more.
    """
    check(examples, partition)
    examples = in_rows(examples)
    dealt = (part.astype(np.int32) for part in (partition.indices, partition.starts))
    whole = jax.tree.map(_shareable, examples), *map(aligned, dealt)
    return Resident(*jax.device_put(whole, device))


def in_rows(examples: Any) -> Any:
    """Returns examples as devices are to have them, `Rows` where they have many axes.

    Args:
      examples: a tree of arrays with a row for each example, or of `Rows`.
    """

    def flat(leaf):
        if isinstance(leaf, Rows) or leaf.ndim < 3:
            return leaf
        return Rows(leaf.reshape(len(leaf), math.prod(leaf.shape[1:])), leaf.shape[1:])

    return jax.tree.map(flat, examples, is_leaf=_is_rows)


def _is_rows(node: Any) -> bool:
    return isinstance(node, Rows)


def _shareable(leaf):
    return leaf if isinstance(leaf, jax.Array) else aligned(np.asarray(leaf))


def check(examples: Any, partition: Partition) -> None:
    """Raises, as `resident` does, unless batches can be drawn from `examples`.

    Args:
      examples: a tree of arrays with a row for each example.
      partition: the partition that says whose they are.
    """
    leaves = jax.tree.leaves(examples)
    if any(leaf.dtype.kind in "OSUT" for leaf in leaves):
        msg = "Expected inputs of numbers, got strings: encode them first."
        raise TypeError(msg)
    count = len(leaves[0])
    if int(partition.indices.max()) >= count:
        msg = (
            f"Expected a partition of {count} examples, got the index "
            f"{partition.indices.max()}."
        )
        raise ValueError(msg)
    total = len(partition.indices)
    validate.at_most(2**31 - 1, "starts are int32 on the device", total=total)


def batches(
    data: Resident,
    key: Key,
    client: jax.typing.ArrayLike,
    *,
    steps: int,
    batch: int,
    replacement: bool = True,
) -> Any:
    """Returns the batches of one client: leaves [steps, batch, ...]; see `draw`.

    A client without examples has zeros: it must not learn from another's.

    Args:
      data: the data set, made by `resident`.
      key: a key, used up by this call.
      client: the number of the client; may be traced.
      steps: the number of batches.
      batch: the number of examples in each.
      replacement: a choice as in `draw`.
    """
    drawn = places(
        data.starts, key, client, steps=steps, batch=batch, replacement=replacement
    )
    return taken(data, drawn)


def taken(data: Resident, places: jax.Array) -> Any:
    """Returns the examples of `data` at these `places` of its indices.

    Zeros stand where a place is negative. The leaves have the axes of `places` first.
    """
    chosen = jnp.where(places < 0, _NOWHERE, data.indices[places])

    def of(leaf):
        if isinstance(leaf, Rows):
            return of(leaf.numbers).reshape(*places.shape, *leaf.shape)
        return leaf.at[chosen].get(mode="fill", fill_value=0)

    return jax.tree.map(of, data.examples, is_leaf=_is_rows)


def fetching(kind: str, *, steps: int, batch: int) -> Callable[..., Any]:
    """Returns what gives a client its batches, as `engine.make_round` wants it.

    A plan, where there is one, is what the client trains on: batches from the host.

    Args:
      kind: the kind of batches. "fresh": every example of every batch is drawn by
        itself. "subsets": a batch holds no example twice, as a client's own privacy
        wants it. "whole": each is all that the client has, in order, repeated up to the
        batch's size.
      steps: the number of batches.
      batch: the number of examples in each.
    """
    validate.one_of(KINDS, batches=kind)
    validate.at_least_one(steps=steps, batch=batch)

    def subset(data, client, key):
        distinct = batches(data, key, client, steps=1, batch=batch, replacement=False)
        return jax.tree.map(lambda leaf: leaf[0], distinct)

    def whole(data, client):
        start = data.starts[client]
        size = data.starts[client + 1] - start
        own = start + jnp.arange(batch, dtype=jnp.int32) % jnp.maximum(size, 1)
        return taken(data, jnp.where(size > 0, own, -1))

    def fetch(data, client, plan, key):
        if jax.tree.leaves(plan):
            return plan
        if kind == "fresh":
            return batches(data, key, client, steps=steps, batch=batch)
        if kind == "subsets":
            own = jax.random.split(key, steps)
            return jax.vmap(lambda one: subset(data, client, one))(own)
        return jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (steps, *leaf.shape)),
            whole(data, client),
        )

    return fetch


def places(
    starts: jax.Array,
    key: Key,
    client: jax.typing.ArrayLike,
    *,
    steps: int,
    batch: int,
    replacement: bool = True,
) -> jax.Array:
    """Returns where in the partition's indices a client's batches are; see `draw`.

    Places of a client without examples are negative.

    Args:
      starts: int32 [clients + 1], as in `Resident`.
      key: a key, used up by this call.
      client: the number of the client; may be traced.
      steps: the number of batches.
      batch: the number of examples in each.
      replacement: a choice as in `draw`.

    Returns:
      int32 [steps, batch].
    """
    start = starts[client]
    size = starts[client + 1] - start
    drawn = draw(key, start, size, steps=steps, batch=batch, replacement=replacement)
    return jnp.where(size > 0, drawn, -1)


def draw(
    key: Key,
    start: jax.typing.ArrayLike,
    size: jax.typing.ArrayLike,
    *,
    steps: int,
    batch: int,
    replacement: bool = True,
) -> jax.Array:
    """Returns int32 [steps, batch], places in start ... start + size - 1.

    With replacement they are independent and uniform. Without, they go through all
    places in random order, and again in another order, as often as it takes: every
    run of `size` draws that begins at a multiple of `size` holds each place once. A
    batch may span two such epochs.

    Args:
      key: a key, used up by this call.
      start: the client's entry in `Partition.starts`; may be traced, as may `size`.
      size: the number of examples that the client has. For 0 the places are all
        `start`.
      steps: the number of batches.
      batch: the number of examples in each.
      replacement: whether a place may return before all others have come.
    """
    keys.require_key(key)
    validate.at_least_one(steps=steps, batch=batch)
    size = jnp.maximum(jnp.asarray(size), 1).astype(jnp.uint32)
    if replacement:
        offset = _scaled(jax.random.bits(key, (steps, batch), jnp.uint32), size)
    else:
        time = jnp.arange(steps * batch, dtype=jnp.uint32).reshape(steps, batch)
        offset = _shuffle(key, time % size, time // size, size)
    return jnp.asarray(start, jnp.int32) + offset.astype(jnp.int32)


def index_table(partition: Partition) -> tuple[np.ndarray, np.ndarray]:
    """Returns int32 [clients, most] of every client's examples, and int32 [clients].

    The second array says how many entries of a row count; the others repeat the
    client's first example, so that they may be gathered. For small populations only.

    Args:
      partition: the examples of every client.

    Raises:
      ValueError: for a table of more than 2^26 entries.
    """
    sizes = partition.sizes
    width = int(sizes.max())
    if len(sizes) * width > TABLE_UP_TO:
        msg = (
            f"Expected clients x the largest size <= {TABLE_UP_TO}, got {len(sizes)} x "
            f"{width}: draw batches with draws.batches instead of a table."
        )
        raise ValueError(msg)
    column = np.arange(width)
    column = np.where(column < sizes[:, None], column, 0)
    places = np.minimum(
        partition.starts[:-1, None] + column, len(partition.indices) - 1
    )
    return partition.indices[places], sizes.astype(np.int32)


def _shuffle(
    key: Key, value: jax.Array, epoch: jax.Array, size: jax.Array
) -> jax.Array:
    """Returns the image of `value` under one permutation of [0, size) for each epoch.

    The swap-or-not shuffle (Hoang, Morris and Rogaway 2012): a round pairs x with
    k - x modulo `size` for a random k, and exchanges the two or not by a hashed coin
    of the pair. Each round is a permutation for any size, which may be traced, and
    a place costs the same however large the client is.
    """
    epoch = hashing.mix(epoch + jnp.uint32(1))
    for seed in jax.random.bits(key, (ROUNDS, 2), jnp.uint32):
        pivot = _scaled(hashing.mix(seed[0] ^ epoch), size)
        partner = jnp.where(pivot >= value, pivot - value, pivot + size - value)
        larger = jnp.maximum(value, partner)
        coin = hashing.mix(hashing.mix(larger ^ seed[1]) ^ epoch) >> 31
        value = jnp.where(coin == 1, partner, value)
    return value


def _scaled(word: jax.Array, size: jax.Array) -> jax.Array:
    """Returns word * size / 2^32, uniform below `size`, from 16-bit halves.

    A division, as in word % size, is the slowest instruction of the shuffle: it has
    no vector form on CPUs.
    """
    w1, w0, s1, s0 = word >> 16, word & 0xFFFF, size >> 16, size & 0xFFFF
    middle = w1 * s0 + (w0 * s0 >> 16)
    return w1 * s1 + (middle >> 16) + (w0 * s1 + (middle & 0xFFFF) >> 16)
