"""A client is a generator: it yields its message and is sent the mean of all messages.

A channel is written as if all clients spoke at once. Whoever plays it visits them a
few at a time, and so plays a talk again in every pass, up to the message that it waits
with: the means of the earlier exchanges are known by then. When all means are known,
the rest of the round is the same for everyone.

>>> def talk(update, memory, keys, round):
...     average = yield 2 * update
...     return Delivery(average, update), memory
>>> play(Channel(talk), (3.0, Memory(), None, Round())).sent
6.0
>>> play(Channel(talk), (3.0, Memory(), None, Round()), (5.0,)).delivery.estimate
5.0
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch.core.lengths import Wide, wide
from fl_sketch.core.protocols import (
    Algorithm,
    Channel,
    Coded,
    Delivery,
    Key,
    Keys,
    Linear,
    Memory,
    Message,
    Round,
    Server,
    ServerReply,
)
from fl_sketch.core.wire import FLOAT_BITS, size_in_bits


class Turn(NamedTuple):
    """How far a talk comes with the means that are known.

    Attributes:
      sent: the message that it waits with, as it was yielded; None: it is over.
      delivery: what came of it, if it is over.
      memory: what is remembered of it, if it is over.
      bits_up: length on the wire of the messages that were answered.
      bits_told: length of what the server said in between.
    """

    sent: Any = None
    delivery: Delivery | None = None
    memory: Memory | None = None
    bits_up: int | Wide = 0
    bits_told: int = 0


class Ended(NamedTuple):
    """What is known of a talk that is over, with the fields of `Turn`.

    Attributes:
      delivery: the delivery that it returned.
      memory: the memory that it returned.
      bits_up: the length on the wire of the messages that were answered.
      bits_told: the length of what the server said in between.
    """

    delivery: Delivery
    memory: Memory
    bits_up: int | Wide
    bits_told: int


def play(
    channel: Channel,
    arguments: Sequence[Any],
    means: Sequence[Message] = (),
    *,
    told: Callable[[ServerReply], Any] = lambda told: told.value,
) -> Turn:
    """Plays a talk up to the first message whose mean is not known.

    Args:
      channel: the channel of the talk.
      arguments: the arguments of the talk.
      means: the means of the first exchanges, in order.
      told: the words of the server as clients hear them, `(told) -> value`.

    Raises:
      TypeError, ValueError: for a talk that no network can hold, naming it.
    """
    name, talk = name_of(channel), channel.talk(*arguments)
    if not inspect.isgenerator(talk):
        msg = f"Expected the talk of {name} to yield its messages, got none."
        raise TypeError(msg)
    known, turn = iter(means), Turn()
    try:
        said = next(talk)
        while True:
            if isinstance(said, ServerReply):
                bits = turn.bits_told + size_in_bits(said.fields)
                turn, answer = turn._replace(bits_told=bits), told(said)
            else:
                answer = next(known, None)
                if answer is None:
                    return turn._replace(sent=said)
                _require_same_shapes(name, said, answer)
                turn = turn._replace(bits_up=turn.bits_up + bits_of(said, answer))
            said = talk.send(answer)
    except StopIteration as end:
        if next(known, None) is not None:
            raise _unlike(channel) from None
        return turn._replace(**_returned(name, end.value))
    except jax.errors.ConcretizationTypeError as error:
        msg = (
            f"Expected {name} to make the same exchanges whatever it hears, got Python "
            f"that asks a traced value: {str(error).partition(chr(10))[0]}"
        )
        raise TypeError(msg) from error
    except (TypeError, DeprecationWarning) as error:
        if "generator" not in str(error):
            raise
        msg = (
            f"Expected {name} to yield from plain Python, got a yield inside a traced "
            "branch or loop, from where no message reaches the network, or an inner "
            "talk without `yield from`."
        )
        raise TypeError(msg) from None


def ended(channel: Channel, turn: Turn) -> Ended:
    """Returns the end of a talk of `channel`, if `turn` is one.

    Raises:
      ValueError: if the talk is not over, naming it.
    """
    if turn.delivery is None or turn.memory is None:
        raise _unlike(channel)
    return Ended(turn.delivery, turn.memory, turn.bits_up, turn.bits_told)


def next_message(
    channel: Channel, arguments: Sequence[Any], means: Sequence[Message]
) -> Any:
    """Returns what a client yields that knows the first means, of which one is left.

    Args:
      channel: the channel of the talk.
      arguments: the arguments of the talk.
      means: the means of the first exchanges, in order.

    Raises:
      ValueError: if the talk is over, naming it.
    """
    said = play(channel, arguments, means).sent
    if said is None:
        raise _unlike(channel)
    return said


def messages(channel: Channel, arguments: Sequence[Any]) -> tuple[Message, ...]:
    """Returns a client's messages of a round, each of which is its own answer.

    Args:
      channel: the channel of the talk.
      arguments: the arguments of the talk: (update, memory, keys, round).
    """
    sent: tuple[Message, ...] = ()
    while (said := play(channel, arguments, sent).sent) is not None:
        sent += (message(said),)
    return sent


def single_client(
    channel: Channel,
    update: Any,
    keys: Keys,
    memory: Memory = Memory(),  # noqa: B008 - immutable
    round: Round = Round(),  # noqa: B008 - immutable
) -> Ended:
    """Returns the end of the talk of a client whose messages are their own means.

    It is a round with one client, for tests and for studies of a channel's error.

    Args:
      channel: the channel of the talk.
      update: the client's update.
      keys: the keys of the client in the round.
      memory: the memory before the round; empty for a channel that keeps none.
      round: a description of its round; by default of one client in round zero.
    """
    arguments = (update, memory, keys, round)
    return ended(channel, play(channel, arguments, messages(channel, arguments)))


def parts(said: Any) -> tuple[Any, Callable[[Any], Message]]:
    """Returns what to add up over clients, and the linear map from it to messages.

    Args:
      said: a thing that a talk yielded: a message, `Coded`, or `Linear`, whose map is
        returned.
    """
    if isinstance(said, Linear):
        return said.of, said.map
    value = said.value if isinstance(said, Coded) else said
    return jax.tree.map(jnp.asarray, value), lambda total: total


def message(said: Any) -> Message:
    """Returns the message of `said`, what a talk yielded, whose mean is taken."""
    value, linear = parts(said)
    return linear(value)


def bits_of(said: Any, like: Message) -> int | Wide:
    """Returns the exact length of a message on the wire.

    Args:
      said: the message as a talk yielded it.
      like: a message of the same shape.
    """
    if isinstance(said, Coded):
        return said.bits if isinstance(said.bits, int) else wide(said.bits)
    return FLOAT_BITS * sum(jnp.size(leaf) for leaf in jax.tree.leaves(like))


def serve(algorithm: Algorithm, server: Server, estimate: Any, keys: Keys) -> Server:
    """Returns the server after a round.

    Args:
      algorithm: the algorithm of the round.
      server: the server before its step.
      estimate: the estimate that came of the messages.
      keys: the keys of the round.
    """
    if algorithm.downlink is None:
        return step(algorithm, server, estimate, keys)
    sent, down = algorithm.downlink.transform.update(
        estimate, server.down, server.params, key=keys.server
    )
    return step(algorithm, server._replace(down=down), sent, keys)


def step(algorithm: Algorithm, server: Server, sent: Any, keys: Keys) -> Server:
    """Returns the server after its step along what it sent to all.

    Args:
      algorithm: the algorithm of the round.
      server: the server before the step.
      sent: the estimate, or what the downlink made of it.
      keys: the keys of the round.
    """
    tx = optax.with_extra_args_support(algorithm.server)

    def taken(params, opt, sent):
        updates, opt = tx.update(sent, opt, params, key=keys.server)
        return optax.apply_updates(params, updates), opt

    def none(params, opt, sent):
        del sent
        return params, opt

    # A branch is a program of its own, so that its last bits do not depend on what is
    # compiled around it; that rounds are not negative no compiler knows.
    params, opt = jax.lax.cond(
        server.round >= 0, taken, none, server.params, server.opt, sent
    )
    return server._replace(params=params, opt=opt, round=server.round + 1)


def name_of(channel: Channel) -> str:
    """Returns the name of the function that made the talk of `channel`."""
    names = channel.talk.__qualname__.split(".")
    return names[0] if names[-1] == "talk" else names[-1]


def _returned(name: str, value: Any) -> dict[str, Any]:
    """Returns what a talk ended with, as fields of a turn."""
    if isinstance(value, tuple) and len(value) == 2:
        delivery, memory = value
        if isinstance(delivery, Delivery) and isinstance(memory, Memory):
            return {"delivery": delivery, "memory": memory}
    got = type(value).__name__
    msg = f"Expected the talk of {name} to return (Delivery, Memory), got {got}."
    raise TypeError(msg)


def _unlike(channel: Channel) -> ValueError:
    """Returns the error of a talk that is not the same in every pass."""
    msg = f"Expected {name_of(channel)} to make the same exchanges in every pass."
    return ValueError(msg)


def _require_same_shapes(name: str, said: Any, answer: Message) -> None:
    """Raises for a message whose shape is not that of an earlier pass."""
    shapes = (
        jax.tree.map(jnp.shape, jax.eval_shape(lambda: message(said))),
        jax.tree.map(jnp.shape, answer),
    )
    if jax.tree.flatten(shapes[0]) != jax.tree.flatten(shapes[1]):
        msg = (
            f"Expected {name} to send messages of one shape in every pass, got "
            f"{shapes[1]}, then {shapes[0]}."
        )
        raise ValueError(msg)


def replay(
    algorithm: Algorithm,
    server: Server,
    keys: Key,
    heard: Any,
    *,
    update: Any = None,
    known: Round = Round(),  # noqa: B008 - immutable
) -> Server:
    """Returns the server after some rounds, made of nothing but what it sent to all.

    It is what a client does that follows: params, moments and memory of the server are
    those of the run, to the bit on one platform.

    Args:
      algorithm: the algorithm as it is run; a server that draws from a key of its own
        nobody can follow.
      server: the server before the first of these rounds.
      keys: the shared key of each round, which comes with its mean: those of
        `keys.sketch_keys` if the first round is round zero.
      heard: what was sent in each round, along a leading axis: the mean message, for
        several exchanges a tuple of them; or, with a downlink, what came out of that.
      update: an example of a client's update, if it is not shaped like the parameters.
      known: the weights of all clients and of those present, and the denominator, for
        a channel whose server remembers all clients; of each round along a leading
        axis, or the same in all of them.
    """
    channel, client = algorithm.uplink, algorithm.uplink.init(server.params).client
    like = server.params if update is None else update
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)

    counts = {
        name: jnp.broadcast_to(jnp.float32(getattr(known, name)), keys.shape)
        for name in ("denominator", "present", "population")
    }

    def arguments(server, shared, counts):
        memory, here = Memory(client, server.memory), Keys(shared, shared, shared)
        return blank, memory, here, Round(server.round, **counts)

    def one(server, slices):
        shared, sent, counts = jax.lax.optimization_barrier(slices)
        if algorithm.downlink is None:
            means = sent if several else (sent,)
            turn = play(channel, arguments(server, shared, counts), means)
            end = ended(channel, turn)
            server = server._replace(memory=end.memory.server)
            sent = end.delivery.estimate
        return step(algorithm, server, sent, Keys(shared, shared, shared)), None

    several = False
    if algorithm.downlink is None:
        one_round = arguments(server, keys[0], dict.fromkeys(counts, 1.0))
        said = jax.eval_shape(lambda: messages(channel, one_round))
        several = len(said) > 1
    return jax.lax.scan(one, server, (keys, heard, counts))[0]
