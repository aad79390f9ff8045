"""Clients' batches: drawn and gathered on the device, one client at a time.

The data set is on the device once, however many clients share it, and so is the
partition: 4 bytes per example and 4 per client. A round touches only its cohort: each
example of a batch costs a few integer operations and two gathers, and nothing depends
on the number of clients. Batching over clients is the caller's `vmap`.
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
ROUNDS = 24  # of the shuffle; tests of uniformity fail up to 8 and pass from 10 on
_OUT_OF_RANGE = np.int32(2**31 - 1)  # an index of zeros


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["numbers"], meta_fields=["shape"]
)
@dataclasses.dataclass(frozen=True)
class Rows:
    """Examples of several axes, stored as one row of numbers each.

    A TPU pads the last axis of an array to 128 numbers: images 32 pixels wide would
    take four times their size, their rows take no more.
    """

    numbers: Any  # [examples, numbers of each]
    shape: tuple[int, ...]  # of an example


class Resident(NamedTuple):
    """A data set and its partition on the device: a pytree to hand to a jitted step."""

    examples: Any  # a tree of arrays with a row for each example, or of `Rows`
    indices: jax.Array  # int32 [total], one client's examples after the other's
    starts: jax.Array  # int32 [clients + 1], the first of each client, and their number


class Weighted(NamedTuple):
    """A batch whose examples have a weight: 1, or 0 for what fills up a short batch."""

    examples: Any
    weights: jax.Array  # float32 [batch]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["data", "start", "size", "key"],
    meta_fields=["epochs", "batch"],
)
@dataclasses.dataclass(frozen=True)
class Passes:
    """A client's batches of several passes over its examples, made one at a time.

    Each pass has its own random order, and its last batch is short. Batches as arrays
    would have one length for all clients; these are as many as the client needs.
    """

    data: Resident
    start: jax.Array  # the client's first place in `data.indices`
    size: jax.Array  # the number of its examples
    key: Key
    epochs: int
    batch: int

    @property
    def steps(self) -> jax.Array:
        """The number of all batches, int32 []."""
        return self.epochs * -(-self.size // self.batch)

    def at(self, step: jax.typing.ArrayLike) -> Weighted:
        """Returns the batch of a step, which may be traced."""
        size = jnp.maximum(self.size, 1)
        each = -(-size // self.batch)
        place = step % each * self.batch + jnp.arange(self.batch, dtype=jnp.int32)
        numbers = place % size, step // each, size
        unsigned = (jnp.asarray(number, jnp.uint32) for number in numbers)
        chosen = self.start + _shuffle(self.key, *unsigned).astype(jnp.int32)
        weights = jnp.asarray(place < self.size, jnp.float32)
        return Weighted(_take(self.data, chosen), weights)


def resident(examples: Any, partition: Partition, *, device=None) -> Resident:
    """Returns the data on a device, or laid out by a sharding.

    On CPUs they may share memory with the arrays, which must not be changed afterwards.
    """
    check(examples, partition)

    def shareable(leaf):
        return leaf if isinstance(leaf, jax.Array) else aligned(np.asarray(leaf))

    integers = (part.astype(np.int32) for part in (partition.indices, partition.starts))
    data = jax.tree.map(shareable, in_rows(examples)), *map(aligned, integers)
    return Resident(*jax.device_put(data, device))


def resident_shapes(examples: Any, partition: Partition) -> Resident:
    """Returns the shapes of what `resident` returns."""
    integers: Any = (
        jax.ShapeDtypeStruct(part.shape, jnp.int32)
        for part in (partition.indices, partition.starts)
    )
    return Resident(jax.eval_shape(in_rows, examples), *integers)


def in_rows(examples: Any) -> Any:
    """Returns examples as devices store them: as `Rows` if they have many axes."""

    def flat(leaf):
        if isinstance(leaf, Rows) or leaf.ndim < 3:
            return leaf
        return Rows(leaf.reshape(len(leaf), math.prod(leaf.shape[1:])), leaf.shape[1:])

    return jax.tree.map(flat, examples, is_leaf=_is_rows)


def _is_rows(node: Any) -> bool:
    return isinstance(node, Rows)


def check(examples: Any, partition: Partition) -> None:
    """Raises, as `resident` does, unless batches can be drawn from the examples."""
    leaves = jax.tree.leaves(examples)
    if any(leaf.dtype.kind in "OSUT" for leaf in leaves):
        msg = "Inputs must be numbers, got strings: encode them first."
        raise TypeError(msg)
    count, last = len(leaves[0]), int(partition.indices.max())
    if last >= count:
        msg = f"Expected a partition of {count} examples, got the index {last}."
        raise ValueError(msg)
    total = len(partition.indices)
    validate.at_most(2**31 - 1, "starts are int32 on the device", total=total)


def fetching(
    kind: str, *, steps: int, batch: int, epochs: int = 0
) -> Callable[..., Any]:
    """Returns a function `(data, client, plan, key) -> batches` for `make_round`.

    A plan that is not empty is what the client trains on: batches from the host. The
    kinds are "fresh": every example of every batch is drawn by itself; "subsets": a
    batch holds no example twice, as the privacy of examples needs it; "whole": each
    batch is all that the client has, in order, repeated up to the batch's size. With
    `epochs`, batches are `Passes`, and neither the kind nor the steps matter.
    """
    validate.one_of(KINDS, batches=kind)
    validate.at_least_one(steps=steps, batch=batch)
    if epochs:
        validate.at_least_one(epochs=epochs)

    def subset(data, client, key):
        distinct = batches(data, key, client, steps=1, batch=batch, replacement=False)
        return jax.tree.map(lambda leaf: leaf[0], distinct)

    def fetch(data, client, plan, key):
        if jax.tree.leaves(plan):
            return plan
        if epochs:
            start, end = data.starts[client], data.starts[client + 1]
            return Passes(data, start, end - start, key, epochs, batch)
        if kind == "fresh":
            return batches(data, key, client, steps=steps, batch=batch)
        if kind == "subsets":
            step_keys = jax.random.split(key, steps)
            return jax.vmap(lambda step_key: subset(data, client, step_key))(step_keys)
        start = data.starts[client]
        size = data.starts[client + 1] - start
        repeated = start + jnp.arange(batch, dtype=jnp.int32) % jnp.maximum(size, 1)
        whole = _take(data, jnp.where(size > 0, repeated, -1))
        return jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (steps, *leaf.shape)), whole
        )

    return fetch


def batches(
    data: Resident,
    key: Key,
    client: jax.typing.ArrayLike,
    *,
    steps: int,
    batch: int,
    replacement: bool = True,
) -> Any:
    """Returns the batches of one client: leaves [steps, batch, ...]; see `places`.

    A client without examples gets zeros, not the examples of another.
    """
    drawn = places(
        data.starts, key, client, steps=steps, batch=batch, replacement=replacement
    )
    return _take(data, drawn)


def _take(data: Resident, places: jax.Array) -> Any:
    """Returns the examples at these `places` of `data.indices`; zeros if negative."""
    chosen = jnp.where(places < 0, _OUT_OF_RANGE, data.indices[places])

    def rows_of(leaf):
        if isinstance(leaf, Rows):
            return rows_of(leaf.numbers).reshape(*places.shape, *leaf.shape)
        return leaf.at[chosen].get(mode="fill", fill_value=0)

    return jax.tree.map(rows_of, data.examples, is_leaf=_is_rows)


def places(
    starts: jax.Array,
    key: Key,
    client: jax.typing.ArrayLike,
    *,
    steps: int,
    batch: int,
    replacement: bool = True,
) -> jax.Array:
    """Returns the places of a client's batches in the partition's indices.

    With replacement, places are independent and uniform. Without, they go through all
    places in random order, and again in another order, as often as it takes: every run
    of as many draws as the client has examples, from the first draw on, holds each
    place once. A batch may span two such epochs.

    Returns int32 [steps, batch], negative for a client without examples. `starts` and
    `client` may be traced.
    """
    keys.require_key(key)
    validate.at_least_one(steps=steps, batch=batch)
    start = jnp.asarray(starts[client], jnp.int32)
    count = starts[client + 1] - starts[client]
    size = jnp.maximum(count, 1).astype(jnp.uint32)
    if replacement:
        offset = _scaled(jax.random.bits(key, (steps, batch), jnp.uint32), size)
    else:
        time = jnp.arange(steps * batch, dtype=jnp.uint32).reshape(steps, batch)
        offset = _shuffle(key, time % size, time // size, size)
    return jnp.where(count > 0, start + offset.astype(jnp.int32), -1)


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
