"""Channels with one exchange and no memory."""

from fl_sketch import trees
from fl_sketch.protocols import Channel, Compressor, Delivery, Memory, Sketch
from fl_sketch.wire import FLOAT_BITS


def exact() -> Channel:
    """Sends the update itself."""

    def mean(update, memory, keys, link):
        del keys
        bits = FLOAT_BITS * trees.size(update)
        return Delivery(link.mean(update), link.counted(update), bits), memory

    return Channel(no_memory, mean)


def sketched(op: Sketch, *, desketch: bool = True) -> Channel:
    """Sends R x; all clients and the server share the round's R.

    Args:
      op: the operator.
      desketch: whether the estimate is an update again. If not it is the mean
        message, for servers that work in sketch space.
    """

    def mean(update, memory, keys, link):
        def sketch(x):
            return op.apply(keys.shared, x)

        average = link.mean_of(sketch, update)
        own = link.counted(sketch(update))
        bits = FLOAT_BITS * op.size(update)
        if not desketch:
            return Delivery(average, own, bits), memory
        estimate = op.estimate(keys.shared, average, update)
        own = op.estimate(keys.shared, own, update)
        return Delivery(estimate, own, bits), memory

    return Channel(no_memory, mean)


def compressed(compressor: Compressor) -> Channel:
    """Sends the compressor's message; the server averages what they stand for."""

    def mean(update, memory, keys, link):
        vector = trees.ravel(update)
        seen = trees.unraveler(update)(compressor.apply(keys.own, vector))
        bits = compressor.bits(vector.size)
        return Delivery(link.mean(seen), link.counted(seen), bits), memory

    return Channel(no_memory, mean)


def no_memory(params) -> Memory:
    """Returns the memory of a channel that has none."""
    del params
    return Memory((), ())
