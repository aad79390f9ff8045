"""The exchanges of a round: messages are added up, and all hear the mean."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch.channels import player
from fl_sketch.core.protocols import Message, Round, Server
from fl_sketch.engine.clients import Seat, Visitor, first, traced, zeros
from fl_sketch.engine.guard import Guard
from fl_sketch.engine.mesh import over_rows

MECHANISM = "mechanism_"  # before the names of a mechanism's facts


class Exchanged(NamedTuple):
    """What is known after the exchanges of a round.

    Attributes:
      means: the means of all exchanges.
      blank: zeros, shaped like a client's work.
      works: the work of all of the device's clients, or () where they are not kept.
      diagnostics: means of those of clients, and the mechanism's facts.
      released: numbers that the mechanism released beside the means.
      guard: the mechanism's state after them.
    """

    means: tuple[Message, ...]
    blank: Any
    works: Any
    diagnostics: dict[str, jax.Array]
    released: dict[str, jax.Array]
    guard: Any


def exchange(
    visitor: Visitor, guard: Guard, server: Server, seats: Seat, *, recompute: bool
) -> Exchanged:
    """Plays all exchanges, a pass over the device's clients for each.

    Args:
      visitor: the device's.
      guard: the guard of the messages.
      server: the server before the round, the same on all devices.
      seats: the device's.
      recompute: whether clients work again in every pass.
    """
    one = first(seats)
    play, shapes = traced(visitor.work, one)
    blank = zeros(shapes)
    shapes = jax.eval_shape(lambda: player.messages(*visitor.talk(one, blank, Round())))
    count = len(shapes)
    state, keep = (
        server.guard,
        not recompute and (count > 1 or bool(jax.tree.leaves(seats.client))),
    )
    works, means, seen, facts, released = (), (), {}, {}, {}
    for number in range(count):

        def said(seat, work, number=number, means=means):
            had, work = work, work or play(seat)
            sent = player.next_message(*visitor.talk(seat, work, guard.round), means)
            sent = player.parts(sent)[0] if guard.adds_first else player.message(sent)
            keys = visitor.keys(seat.id)
            encoded = guard.encode(number, sent, keys, work.diagnostics)
            seen = () if number else guard.seen(encoded, work.diagnostics)
            return (encoded, seen), (work if keep and not had else ())

        (total, sums), kept = visitor.each(said, seats, works)
        works = kept or works
        if guard.adds_first:
            sent = player.next_message(*visitor.talk(one, blank, guard.round), means)
            linear = player.parts(sent)[1]
            total = total._replace(summand=linear(total.summand))
        total, sums = over_rows((total, sums))
        if not number:
            seen = guard.averaged(sums, total.rejected)
        mean, state, *more = guard.release(number, total, state)
        means += (as_heard(mean, server.round),)
        facts, released = _added(facts, more[0]), _added(released, more[1])
    facts = {f"{MECHANISM}{name}": value for name, value in facts.items()}
    return Exchanged(means, blank, works, seen | facts, released, state)


def as_heard(mean: Message, number: jax.Array) -> Message:
    """Returns a `mean` with its numbers rounded, in the round of this `number`.

    What crosses a network is numbers. If XLA rounded the division by the denominator
    together with what comes after it (a multiply-add), whoever hears the mean would
    get another model. Barriers are gone before CPU code is made; it cannot know that
    rounds are not negative.
    """
    nothing = (number < 0).astype(jnp.uint32)

    def rounded(leaf):
        if leaf.dtype != jnp.float32:
            return leaf
        bits = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
        return jax.lax.bitcast_convert_type(bits ^ nothing, jnp.float32)

    return jax.tree.map(rounded, mean)


def _added(one: dict, other: dict) -> dict:
    """Returns both, sums where they have the same name."""
    return {
        name: sum(part[name] for part in (one, other) if name in part)
        for name in {**one, **other}
    }
