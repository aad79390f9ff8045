"""Channels with one exchange and no memory."""

import jax
import jax.numpy as jnp
import optax

from fl_sketch.core import trees, validate
from fl_sketch.core.protocols import (
    Channel,
    Code,
    Coded,
    Compressor,
    Delivery,
    Field,
    Halves,
    Key,
    Linear,
    Memory,
    Sketch,
    Tree,
)
from fl_sketch.core.wire import FLOAT_BITS, Chosen

READS = ("transpose", "estimate", "message")


def exact() -> Channel:
    """Sends the update itself: 32 bits a number, and the estimate is the mean."""

    def protocol(update, memory, keys, round):
        del keys
        mean = yield update
        return Delivery(mean, round.counted(update)), memory

    return Channel(protocol)


def sketched(op: Sketch, *, read: str = "transpose") -> Channel:
    """Sends R x; all clients and the server share the round's R.

    Args:
      read: "transpose": the estimate is R^T of the mean message, which is unbiased.
        "estimate": the operator's own estimate, such as a median of its rows.
        "message": the mean message itself, for servers that work in sketch space.
    """
    validate.one_of(READS, read=read)
    back = op.transpose if read == "transpose" else op.estimate
    unbiased = read != "message" and back is op.transpose

    def protocol(update, memory, keys, round):
        def sketch(x):
            return op.apply(keys.shared, x)

        mean = yield Linear(sketch, update)
        own = round.counted(sketch(update))
        if read == "message":
            return Delivery(mean, own), memory
        estimate = back(keys.shared, mean, update)
        return Delivery(estimate, back(keys.shared, own, update)), memory

    def contracts(params):
        return not unbiased or op.size(params) >= trees.size(params)

    return Channel(protocol, contracts=contracts)


def halves(op: Sketch) -> Channel:
    """Sends two sketches of half the size; the estimate is `Halves`, R^T of each mean.

    The two share nothing, so that the errors of one are independent of the other's.
    """
    if op.fixed_key:
        msg = "Expected a sketch with a new key in every round, whose halves are "
        raise ValueError(msg + "independent, got a fixed key (or sketch.stored=True).")

    def half_of(like):
        return op.resize(max(1, op.size(like) // 2))

    def init(params):
        whole, both = op.size(params), 2 * half_of(params).size(params)
        if both > whole:
            msg = "Expected a sketch that can be halved, got one of "
            raise ValueError(msg + f"{whole} entries, whose halves have {both}.")
        return Memory()

    def protocol(update, memory, keys, round):
        half = half_of(update)
        first, second = jax.random.split(keys.shared)

        def sketch(x):
            return half.apply(first, x), half.apply(second, x)

        def back(message):
            pair = zip((first, second), message, strict=True)
            return Halves(*(half.transpose(key, part, update) for key, part in pair))

        mean = yield Linear(sketch, update)
        return Delivery(back(mean), back(round.counted(sketch(update)))), memory

    return Channel(protocol, init, contracts=lambda params: False)


def compressed(compressor: Compressor) -> Channel:
    """Sends the compressor's message of the whole update as one vector.

    The compressor uses the client's own key. The server averages the expanded messages.
    """

    def protocol(update, memory, keys, round):
        message = coded(compressor, keys.own, update)
        mean = yield message
        return Delivery(mean, round.counted(message.value)), memory

    return Channel(protocol, contracts=lambda params: compressor.contraction)


def coded(compressor: Compressor, key: Key, tree: Tree) -> Coded:
    """Returns the compressor's message of a tree as one vector."""
    vector, unravel = trees.ravel(tree), trees.unraveler(tree)
    code = Code(
        compressor.fields(vector.size),
        lambda: compressor.compress(key, vector),
        lambda arrays: unravel(compressor.expand(arrays, vector.size)),
    )
    value = unravel(compressor.apply(key, vector))
    return Coded(value, compressor.bits(vector.size), (code,))


def whole_or(whole: jax.Array, tree: Tree, short: Coded) -> Coded:
    """Returns `tree` as it is, in floats, in a `whole` round, and else `short`."""
    size, unravel = trees.size(tree), trees.unraveler(tree)
    floats = Code(
        (Field(size, FLOAT_BITS, "float"),),
        lambda: (trees.ravel(tree),),
        lambda arrays: unravel(arrays[0]),
    )
    value = jax.tree.map(lambda a, b: jnp.where(whole, a, b), tree, short.value)
    bits = Chosen(whole, (short.bits, FLOAT_BITS * size))
    return Coded(value, bits, (*short.codes, floats))


def clipped(channel: Channel, limit: float | jax.Array) -> Channel:
    """Scales an update down to the norm `limit` if it is longer; 0: never.

    This is no privacy mechanism, which must bound the message after the sketch.
    """
    if validate.is_off(limit):
        return channel

    def protocol(update, memory, keys, round):
        # In float32, since squares of float16 overflow from 256 on.
        norm = optax.tree.norm(optax.tree.cast(update, jnp.float32))
        scale = jnp.where((limit > 0) & (norm > limit), limit / norm, 1)
        update = jax.tree.map(lambda leaf: (leaf * scale).astype(leaf.dtype), update)
        return (yield from channel.protocol(update, memory, keys, round))

    return channel._replace(protocol=protocol)
