"""The end of a round: the server's step, and what its clients remember."""

from typing import Any, NamedTuple

import jax

from fl_sketch.channels import player
from fl_sketch.core.protocols import Round, Server
from fl_sketch.core.trees import varying_like
from fl_sketch.core.wire import traced_bytes
from fl_sketch.engine.clients import Client, Seat, Visitor
from fl_sketch.engine.exchange import Exchanged
from fl_sketch.engine.guard import Guard


class Served(NamedTuple):
    """What came of a round at the server.

    Attributes:
      server: the server after its step.
      estimate: the estimate of the mean update.
      bytes_up: bytes that each client sent, as `wire.traced_bytes` has them.
      bytes_told: bytes that the server said to each between exchanges.
    """

    server: Server
    estimate: Any
    bytes_up: jax.Array
    bytes_told: jax.Array


def serve(
    visitor: Visitor, guard: Guard, server: Server, heard: Exchanged, seats: Seat
) -> Served:
    """Returns the server after its step along what was heard.

    The talk is traced as one client's, with blank work along an axis of length one.
    With `out_axes=None` jax refuses an algorithm in which the server would see anything
    of a client that did not go through a mean.

    Args:
      visitor: the device's.
      guard: the guard of the messages.
      server: the server before the step, the same on all devices.
      heard: the means of the round.
      seats: the device's.
    """
    algorithm, here = visitor.algorithm, visitor._replace(server=server)
    known = guard.round._replace(number=server.round, counted=Round().counted)

    def one(seat, work):
        turn = player.play(*here.talk(seat, work, known), heard.means)
        end = player.ended(algorithm.uplink, turn)
        up, numbers = (
            end.bits_up,
            sum(leaf.size for leaf in jax.tree.leaves(heard.means)),
        )
        if algorithm.mechanism:
            up = algorithm.mechanism.wire(up, numbers)
        traffic = traced_bytes(up), traced_bytes(end.bits_reply)
        return end.delivery.estimate, end.memory.server, *traffic

    ids = seats.id
    blank = jax.tree.map(lambda leaf: varying_like(leaf[None], ids), heard.blank)
    one_seat = jax.tree.map(lambda leaf: leaf[:1], seats)
    try:
        estimate, memory, up, told = jax.vmap(one, out_axes=None)(one_seat, blank)
    except ValueError as error:
        if "out_axes" not in str(error):
            raise
        msg = (
            f"Expected {player.name_of(algorithm.uplink)} to make the estimate and the "
            "server's memory of means alone, got something of one client's in them."
        )
        raise ValueError(msg) from error
    after = server._replace(memory=memory, guard=heard.guard)
    after = player.serve(algorithm, after, estimate, here.keys(0))
    return Served(after, estimate, up, told)


def finish(
    visitor: Visitor, guard: Guard, heard: Exchanged, served: Served, seats: Seat
) -> Client:
    """Returns what every client of the device remembers.

    The estimate is the same everywhere, so they are all given the server's: made by
    each client again, it was what a round with client state cost most.

    Args:
      visitor: the device's.
      guard: the guard of the messages.
      heard: the means of the round, and the works that were kept.
      served: the server's part of the round, made by `serve`.
      seats: the device's.
    """

    def one(seat, work):
        work = work or visitor.work(seat)
        turn = player.play(*visitor.talk(seat, work, guard.round), heard.means)
        end = player.ended(visitor.algorithm.uplink, turn)
        delivery = end.delivery._replace(estimate=served.estimate)
        state = visitor.algorithm.local.finish(work.state, delivery)
        return (), Client(state, end.memory.client)

    return visitor.each(one, seats, heard.works)[1]
