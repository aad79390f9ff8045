"""One round on a device: exchanges of messages, the server's step, clients' memories.

In an exchange the messages of all clients are added up, and everybody receives the
mean. All means together make the estimate, along which the server takes its step.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch.channels import player
from fl_sketch.core import trees
from fl_sketch.core.protocols import Message, Round, Server
from fl_sketch.core.trees import varying_like
from fl_sketch.core.wire import traced_bytes
from fl_sketch.engine.clients import Client, DeviceRound, Slot, first, traced, zeros
from fl_sketch.engine.mesh import over_rows

MECHANISM = "mechanism_"  # before the names of a mechanism's facts


class Exchanged(NamedTuple):
    """What is known after all exchanges of a round.

    Attributes:
      means: the mean of each exchange.
      blank: zeros, shaped like a client's work.
      works: the work of the device's clients, or () if it is not kept.
      diagnostics: means over clients, and the mechanism's facts.
      released: numbers that the mechanism released with the means.
      guard: the mechanism's state afterwards.
    """

    means: tuple[Message, ...]
    blank: Any
    works: Any
    diagnostics: dict[str, jax.Array]
    released: dict[str, jax.Array]
    guard: Any


class Served(NamedTuple):
    """The server after its step, and how it got there.

    Attributes:
      bytes_up: bytes that each client sent, as `wire.traced_bytes` has them.
      bytes_reply: bytes of the server's replies to each, between exchanges.
    """

    server: Server
    estimate: Any
    bytes_up: jax.Array
    bytes_reply: jax.Array


def exchange(device: DeviceRound, server: Server, slots: Slot) -> Exchanged:
    """Plays all exchanges, with a pass over the device's clients for each.

    Args:
      server: the server before the round, the same on all devices.
    """
    one = first(slots)
    play, shapes = traced(device.work, one)
    blank, plain = zeros(shapes), device.algorithm.mechanism is None
    messages = jax.eval_shape(
        lambda: player.messages(*device.turn(one, blank, Round()))
    )
    passes = len(messages) + bool(jax.tree.leaves(slots.client))
    state, keep = server.guard, passes > 1
    works, means, diagnostics, facts, released = (), (), {}, {}, {}
    for number in range(len(messages)):

        def send(slot, work, number=number, means=means):
            earlier, work = work, work or play(slot)
            sent = player.next_message(*device.turn(slot, work, device.round), means)
            # Without a mechanism only sums matter, and a linear map can be applied to
            # them.
            sent = player.parts(sent)[0] if plain else player.message(sent)
            encoded = device.encode(number, sent, slot)
            shown = () if number else work.diagnostics
            if not plain:  # nor does what a rejected message's client measured count
                rejected = encoded.rejected > 0
                shown = jax.tree.map(lambda x: jnp.where(rejected, 0, x), shown)
            return (encoded, shown), (work if keep and not earlier else ())

        (total, sums), kept = device.each(send, slots, works)
        works = kept or works
        if plain:
            sent = player.next_message(*device.turn(one, blank, device.round), means)
            total = total._replace(summand=player.parts(sent)[1](total.summand))
        total, sums = over_rows((total, sums))
        if not number:
            diagnostics = device.mean_diagnostics(sums, total.rejected)
        release = device.release(number, total, state)
        means += (as_received(release.mean, server.round),)
        state, facts = release.state, added(facts, release.facts)
        released = added(released, release.released)
    diagnostics |= {f"{MECHANISM}{name}": value for name, value in facts.items()}
    return Exchanged(means, blank, works, diagnostics, released, state)


def as_received(mean: Message, number: jax.Array) -> Message:
    """Returns a mean with its numbers rounded, in the round of this number.

    A network transports numbers. If XLA rounded the division by the denominator
    together with the next operation (a multiply-add), receivers of the mean would get
    another model. Barriers are removed before CPU code is made, but no compiler knows
    that the numbers of rounds are not negative.
    """
    nothing = (number < 0).astype(jnp.uint32)

    def rounded(leaf):
        if leaf.dtype != jnp.float32:
            return leaf
        bits = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
        return jax.lax.bitcast_convert_type(bits ^ nothing, jnp.float32)

    return jax.tree.map(rounded, mean)


def added(totals: Mapping[str, Any], terms: Mapping[str, Any]) -> dict[str, Any]:
    """Returns both, with sums where they have the same name."""
    return {
        name: sum(part[name] for part in (totals, terms) if name in part)
        for name in {**totals, **terms}
    }


def serve(
    device: DeviceRound, server: Server, received: Exchanged, slots: Slot
) -> Served:
    """Returns the server after its step along the estimate.

    The channel is traced as one client's, with blank work along an axis of length one.
    With `out_axes=None`, jax refuses an algorithm in which the server would get
    anything of a client that did not go through a mean.
    """
    algorithm, here = device.algorithm, device._replace(server=server)
    known = device.round._replace(counted=Round().counted)

    def as_one(slot, work):
        turn = player.play(*here.turn(slot, work, known), received.means)
        end = player.ended(algorithm.uplink, turn)
        up = end.bits_up
        if algorithm.mechanism:
            up = algorithm.mechanism.wire(up, tuple(map(trees.count, received.means)))
        traffic = traced_bytes(up), traced_bytes(end.bits_reply)
        return end.delivery.estimate, end.memory.server, *traffic

    ids, blank = slots.id, received.blank
    blank = jax.tree.map(lambda leaf: varying_like(leaf[None], ids), blank)
    one = jax.tree.map(lambda leaf: leaf[:1], slots)
    try:
        estimate, memory, up, told = jax.vmap(as_one, out_axes=None)(one, blank)
    except ValueError as error:
        if "out_axes" not in str(error):
            raise
        msg = (
            f"Expected {player.name_of(algorithm.uplink)} to make the estimate and the "
            "server's memory from means only, got values of a single client in them."
        )
        raise ValueError(msg) from error
    after = server._replace(memory=memory, guard=received.guard)
    after = player.serve(algorithm, after, estimate, here.keys(0))
    return Served(after, estimate, up, told)


def finish(
    device: DeviceRound, received: Exchanged, served: Served, slots: Slot
) -> Client:
    """Returns the states of the device's clients after the round.

    All are given the server's estimate. If each client made it again, that would be
    the most expensive part of a round with client state.
    """

    def of_client(slot, work):
        work = work or device.work(slot)
        turn = player.play(*device.turn(slot, work, device.round), received.means)
        end = player.ended(device.algorithm.uplink, turn)
        delivery = end.delivery._replace(estimate=served.estimate)
        state = device.algorithm.local.finish(work.state, delivery)
        return (), Client(state, end.memory.client)

    return device.each(of_client, slots, received.works)[1]
