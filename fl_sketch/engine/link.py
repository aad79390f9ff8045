"""The verb `link.mean`, as the engine plays it: pass by pass over the clients.

An algorithm calls `link.mean(message)` as if all clients spoke at once. The engine
visits them a few at a time. So it runs a client's part once for each exchange: in
pass k the first k - 1 calls are answered with the means already known, the k-th call
hands over the client's message, and the engine goes on to the next client. When all
means are known, the rest of the round is the same for everyone and is run once.

Where the message is a linear map of something, the same map for all, a client may hand
over what it is a map of, and the engine maps the sum: a sketch of many rows, or a dense
one, then costs a device one sketch a round and not one for each client.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from fl_sketch.protocols import Link


class _MessageSent(Exception):
    """Raised where a client would wait for the others."""

    def __init__(self, sent, linear):
        super().__init__("a client's message; the engine should have caught this")
        self.sent = sent
        self.linear = linear


def message_after(known: Sequence[Any], client: Callable[[Link], Any]) -> Any:
    """Returns the message that a client sends when it knows the first means.

    Args:
      known: the means of the earlier exchanges.
      client: runs the client's part, given the link.
    """
    addend, linear = addend_after(known, client)
    return linear(addend)


def addend_after(
    known: Sequence[Any], client: Callable[[Link], Any]
) -> tuple[Any, Callable[[Any], Any]]:
    """Returns what to add up over clients, and the linear map from it to messages.

    Args:
      known: the means of the earlier exchanges.
      client: runs the client's part, given the link.
    """
    answers = iter(known)

    def mean_of(linear, addend):
        for answer in answers:
            return answer
        raise _MessageSent(addend, linear)

    def mean(message):
        return mean_of(lambda message: message, message)

    try:
        client(Link(mean, of_linear=mean_of))
    except _MessageSent as sent:
        return sent.sent, sent.linear
    msg = f"Expected an exchange after {len(known)} means, and the client made none."
    raise RuntimeError(msg)


def answering(known: Sequence[Any], **of_link: Any) -> Link:
    """Returns the link when the means of all exchanges are known."""
    answers = iter(known)

    def mean(message):
        answer = next(answers)
        shapes = jax.tree.map(jax.numpy.shape, (message, answer))
        assert shapes[0] == shapes[1], "a channel must send the same in every pass"
        return answer

    return Link(mean, **of_link)


def count_exchanges(client: Callable[[Link], Any]) -> int:
    """Returns how many exchanges a client's part makes, from shapes alone."""
    count = 0

    def mean(message):
        nonlocal count
        count += 1
        return message

    jax.eval_shape(lambda: client(Link(mean)))
    return count
