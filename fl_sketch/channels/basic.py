"""Channels with one exchange and no memory."""

from fl_sketch.core import trees, validate
from fl_sketch.core.protocols import (
    Channel,
    Coded,
    Compressor,
    Delivery,
    Linear,
    Sketch,
)

READS = ("transpose", "estimate", "message")


def exact() -> Channel:
    """Sends the update itself: 32 bits a number, and the estimate is the mean."""

    def talk(update, memory, keys, round):
        del keys
        average = yield update
        return Delivery(average, round.counted(update)), memory

    return Channel(talk)


def sketched(op: Sketch, *, read: str = "transpose") -> Channel:
    """Sends R x; all clients and the server share the round's R.

    Args:
      op: the operator.
      read: "transpose": the estimate is R^T of the mean message, which is unbiased.
        "estimate": what the operator makes of it, a median of its rows, say. "message":
        the mean message as it is, for servers that work in sketch space.
    """
    validate.one_of(READS, read=read)

    def talk(update, memory, keys, round):
        def sketch(x):
            return op.apply(keys.shared, x)

        average = yield Linear(sketch, update)
        own = round.counted(sketch(update))
        if read == "message":
            return Delivery(average, own), memory
        back = op.transpose if read == "transpose" else op.estimate
        estimate = back(keys.shared, average, update)
        return Delivery(estimate, back(keys.shared, own, update)), memory

    return Channel(talk)


def compressed(compressor: Compressor) -> Channel:
    """Sends the compressor's message; the server averages what they stand for.

    Args:
      compressor: a compressor, applied to the whole update as one vector, with the
        client's own key.
    """

    def talk(update, memory, keys, round):
        vector = trees.ravel(update)
        seen = trees.unraveler(update)(compressor.apply(keys.own, vector))
        average = yield Coded(seen, compressor.bits(vector.size))
        return Delivery(average, round.counted(seen)), memory

    return Channel(talk)
