"""Plays a channel: its generator yields messages and is sent the mean of all messages.

A channel is written as if all clients sent at once. An engine visits them a few at a
time, so it plays the generator again in every pass, up to the message whose mean is not
known yet. When all means are known, the rest of the round is the same for everyone.

>>> from fl_sketch.core.protocols import Round
>>> def protocol(update, memory, keys, round):
...     average = yield 2 * update
...     return Delivery(average, update), memory
>>> play(Channel(protocol), (3.0, Memory(), None, Round())).sent
6.0
>>> play(Channel(protocol), (3.0, Memory(), None, Round()), (5.0,)).delivery.estimate
5.0
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fl_sketch.core.protocols import (
    Algorithm,
    Channel,
    Coded,
    Delivery,
    Keys,
    Linear,
    Memory,
    Message,
    Server,
    ServerReply,
)
from fl_sketch.core.wire import FLOAT_BITS, Chosen, size_in_bits


class Turn(NamedTuple):
    """How far a channel gets with the means that are known."""

    sent: Any = None  # the message whose mean is missing; None: it has ended
    delivery: Any = None  # if it has ended
    memory: Any = None  # if it has ended
    bits_up: int | Chosen = 0  # of the messages whose means are known
    bits_reply: int = 0  # of the server, between them


def play(
    channel: Channel,
    arguments: Sequence[Any],
    means: Sequence[Message] = (),
    *,
    receive: Callable[[ServerReply], Any] = lambda reply: reply.value,
) -> Turn:
    """Plays a channel up to the first message whose mean is not known."""
    name, protocol = name_of(channel), channel.protocol(*arguments)
    if not inspect.isgenerator(protocol):
        msg = f"Expected the protocol of {name} to yield its messages, got none."
        raise TypeError(msg)
    remaining, turn = iter(means), Turn()
    try:
        yielded = next(protocol)
        while True:
            if isinstance(yielded, ServerReply):
                bits = turn.bits_reply + size_in_bits(yielded.fields)
                turn, answer = turn._replace(bits_reply=bits), receive(yielded)
            else:
                answer = next(remaining, None)
                if answer is None:
                    return turn._replace(sent=yielded)
                bits = turn.bits_up + bits_of(yielded, answer)
                turn = turn._replace(bits_up=bits)
            yielded = protocol.send(answer)
    except StopIteration as end:
        if next(remaining, None) is not None:
            raise _changed_exchanges(channel) from None
        result = end.value
    match result:
        case (Delivery() as delivery, Memory() as memory):
            return turn._replace(delivery=delivery, memory=memory)
    got = type(result).__name__
    msg = f"Expected the protocol of {name} to return (Delivery, Memory), got {got}."
    raise TypeError(msg)


def ended(channel: Channel, turn: Turn) -> Turn:
    """Returns the `turn` of a channel that has ended; raises a ValueError if not."""
    if turn.delivery is None:
        raise _changed_exchanges(channel)
    return turn


def next_message(
    channel: Channel, arguments: Sequence[Any], means: Sequence[Message]
) -> Any:
    """Returns a client's message after the first `means`; raises if it has ended."""
    sent = play(channel, arguments, means).sent
    if sent is None:
        raise _changed_exchanges(channel)
    return sent


def messages(channel: Channel, arguments: Sequence[Any]) -> tuple[Message, ...]:
    """Returns a client's messages of a round in which each is its own mean."""
    means: tuple[Message, ...] = ()
    while (sent := play(channel, arguments, means).sent) is not None:
        means += (message(sent),)
    return means


def parts(yielded: Any) -> tuple[Any, Callable[[Any], Message]]:
    """Returns the values to add up, and the linear map from them to messages."""
    if isinstance(yielded, Linear):
        return yielded.of, yielded.map
    value = yielded.value if isinstance(yielded, Coded) else yielded
    return jax.tree.map(jnp.asarray, value), lambda total: total


def message(yielded: Any) -> Message:
    """Returns the message, of which the mean is taken, of what a channel yielded."""
    value, linear = parts(yielded)
    return linear(value)


def bits_of(yielded: Any, like: Message) -> int | Chosen:
    """Returns the exact length on the wire of what a channel yielded."""
    if not isinstance(yielded, Coded):
        return FLOAT_BITS * sum(jnp.size(leaf) for leaf in jax.tree.leaves(like))
    if isinstance(yielded.bits, int | np.integer):
        return int(yielded.bits)
    if isinstance(yielded.bits, Chosen):
        return yielded.bits
    msg = f"Expected Coded.bits to be an int or Chosen, got bits={yielded.bits!r}."
    raise TypeError(msg)


def serve(algorithm: Algorithm, server: Server, estimate: Any, keys: Keys) -> Server:
    """Returns the server after a round: its downlink, then its step."""
    if algorithm.downlink is None:
        return step(algorithm, server, estimate, keys)
    sent, down = algorithm.downlink.transform.update(
        estimate, server.down, server.params, key=keys.server
    )
    return step(algorithm, server._replace(down=down), sent, keys)


def step(algorithm: Algorithm, server: Server, sent: Any, keys: Keys) -> Server:
    """Returns the server after its step along `sent`, what all clients received.

    That is the estimate, or what the downlink made of it.
    """
    tx = optax.with_extra_args_support(algorithm.server)

    def taken(params, opt, sent):
        updates, opt = tx.update(sent, opt, params, key=keys.server)
        return optax.apply_updates(params, updates), opt

    def skipped(params, opt, sent):
        del sent
        return params, opt

    # A branch is a program of its own, so that its last bits do not depend on what is
    # compiled around it. No compiler knows that round numbers are never negative.
    params, opt = jax.lax.cond(
        server.round >= 0, taken, skipped, server.params, server.opt, sent
    )
    return server._replace(params=params, opt=opt, round=server.round + 1)


def name_of(channel: Channel) -> str:
    """Returns the name of the function that made `channel`, for errors."""
    names = channel.protocol.__qualname__.split(".")
    return names[0] if names[-1] == "protocol" else names[-1]


def _changed_exchanges(channel: Channel) -> ValueError:
    """Returns the error of a channel that is not the same in every pass."""
    msg = f"Expected {name_of(channel)} to make the same exchanges in every pass."
    return ValueError(msg)
