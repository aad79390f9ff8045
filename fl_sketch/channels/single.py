"""Channels with one exchange and no memory."""

from fl_sketch import trees
from fl_sketch.protocols import Channel, Coded, Compressor, Delivery, Linear, Sketch


def exact() -> Channel:
    """Sends the update itself."""

    def talk(update, memory, keys, round):
        del keys
        average = yield update
        return Delivery(average, round.counted(update)), memory

    return Channel(talk)


def sketched(op: Sketch, *, desketch: bool = True) -> Channel:
    """Sends R x; all clients and the server share the round's R.

    Args:
      op: the operator.
      desketch: whether the estimate is an update again. If not it is the mean
        message, for servers that work in sketch space.
    """

    def talk(update, memory, keys, round):
        def sketch(x):
            return op.apply(keys.shared, x)

        average = yield Linear(sketch, update)
        own = round.counted(sketch(update))
        if not desketch:
            return Delivery(average, own), memory
        estimate = op.estimate(keys.shared, average, update)
        own = op.estimate(keys.shared, own, update)
        return Delivery(estimate, own), memory

    return Channel(talk)


def compressed(compressor: Compressor) -> Channel:
    """Sends the compressor's message; the server averages what they stand for."""

    def talk(update, memory, keys, round):
        vector = trees.ravel(update)
        seen = trees.unraveler(update)(compressor.apply(keys.own, vector))
        average = yield Coded(seen, compressor.bits(vector.size))
        return Delivery(average, round.counted(seen)), memory

    return Channel(talk)
