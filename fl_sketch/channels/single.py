"""Channels with one exchange and no memory."""

from fl_sketch import trees
from fl_sketch.protocols import Channel, Compressor, Delivery, Memory, Sketch
from fl_sketch.wire import FLOAT_BITS


def exact() -> Channel:
    """Sends the update itself."""

    def mean(update, memory, keys, link_mean):
        del keys
        bits = FLOAT_BITS * trees.size(update)
        return Delivery(link_mean(update), update, bits), memory

    return Channel(no_memory, mean)


def sketched(op: Sketch, *, desketch: bool = True) -> Channel:
    """Sends R x; all clients and the server share the round's R.

    Args:
      op: the operator.
      desketch: whether the estimate is an update again. If not it is the mean
        message, for servers that work in sketch space.
    """

    def mean(update, memory, keys, link_mean):
        message = op.apply(keys.shared, update)
        average = link_mean(message)
        bits = FLOAT_BITS * op.size(update)
        if not desketch:
            return Delivery(average, message, bits), memory
        estimate = op.estimate(keys.shared, average, update)
        own = op.estimate(keys.shared, message, update)
        return Delivery(estimate, own, bits), memory

    return Channel(no_memory, mean)


def compressed(compressor: Compressor) -> Channel:
    """Sends the compressor's message; the server averages what they stand for."""

    def mean(update, memory, keys, link_mean):
        vector = trees.ravel(update)
        seen = trees.unraveler(update)(compressor.apply(keys.own, vector))
        return Delivery(link_mean(seen), seen, compressor.bits(vector.size)), memory

    return Channel(no_memory, mean)


def no_memory(params) -> Memory:
    """Returns the memory of a channel that has none."""
    del params
    return Memory((), ())
