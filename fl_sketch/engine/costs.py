"""The messages of clients and server in a round, from shapes alone, and their bytes.

Nothing is declared. What a client reads of the server, and whether it needs a mean
before the round is over, is found in its traced program.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.interpreters import partial_eval

from fl_sketch.channels import player
from fl_sketch.core import files, trees, validate
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Algorithm, Memory, Round, Server, Tree
from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.engine import programs
from fl_sketch.engine.clients import played
from fl_sketch.engine.prices import Follow, Prices
from fl_sketch.engine.round import initial_server
from fl_sketch.models import plain_convolutions

FLOAT_BYTES = FLOAT_BITS // 8
COUNTED = ("denominator", "present", "population")  # what a `Round` has of weights
COUNTS_BYTES = 2 * FLOAT_BYTES  # the denominator, and the weight of those present
DOWNLOADS = ("cheapest", "model", "messages")


class Traffic(NamedTuple):
    """What one client sends and receives in a round.

    Attributes:
      sent: the numbers of each message; one entry for each exchange, and so for each
        release of a mechanism.
      bits_up: the bits that it sends; None: they depend on the round.
      bits_reply: the bits of the server's replies between exchanges.
      stateful: whether there is any client state.
      received: bytes of the means that a client needs within the round.
      read: a bool for each leaf of the server: whether clients read it, apart from the
        parameters.
      counts: whether the server's step depends on the weight of all, or of the cohort.
      server_is_random: whether the server's step depends on the server's own key.
      working: bytes that local work writes in one pass, which is about its peak memory.
      coded: whether a message is not floats as they are, of which sums are made.
    """

    sent: tuple[int, ...]
    bits_up: int | None
    bits_reply: int
    stateful: bool
    received: int
    read: Server
    counts: bool
    server_is_random: bool
    working: int
    coded: bool


def measure_traffic(algorithm: Algorithm, params: Tree, batches: Any) -> Traffic:
    """Returns the traffic of a client with such batches; nothing is computed.

    Args:
      params: the model, or its shapes.
      batches: those of one client in a round, or their shapes, [steps, batch, ...].
    """
    bits: list[tuple[Any, int]] = []

    def messages_as_means(server, client, batches):
        """Returns a client's messages, each its own mean, and the server's replies."""
        replies: list[Any] = []
        arguments = _work(algorithm, server, client, batches)[1]
        means = player.messages(algorithm.uplink, arguments)

        def noted(reply):
            replies.append(reply.value)
            return reply.value

        turn = player.play(algorithm.uplink, arguments, means, receive=noted)
        end = player.ended(algorithm.uplink, turn)
        before, after = (
            (jax.tree.structure(one), [*map(np.shape, jax.tree.leaves(one))])
            for one in (arguments[1], end.memory)
        )
        if before != after:
            name = player.name_of(algorithm.uplink)
            msg = f"Expected {name} to return a Memory as its init does, got another."
            raise ValueError(msg)
        bits.append((end.bits_up, end.bits_reply))
        return means, replies

    start = jax.eval_shape(lambda p: initial_server(algorithm, p), params)
    algorithm, working = _with_work_traced(algorithm, start, batches)
    means, replies = jax.eval_shape(messages_as_means, *start, batches)
    part, after = (functools.partial(f, algorithm) for f in (_part, _after))
    read, received, *_ = _used(part, start[0], means, replies, start[1], batches)
    server_key = jax.eval_shape(lambda: round_keys(jax.random.key(0), 0, 0).server)
    weights = dict.fromkeys(COUNTED, jax.ShapeDtypeStruct((), np.float32))
    replay = means, replies
    alone, counts, *_ = _used(after, server_key, weights, start, batches, replay)
    up, down = bits[-1]
    sent = up
    if algorithm.mechanism:
        sent = algorithm.mechanism.wire(up, tuple(map(_numbers, means)))
    return Traffic(
        sent=tuple(map(_numbers, means)),
        bits_up=int(sent) if isinstance(sent, int) else None,
        coded=up != FLOAT_BITS * _numbers(means),
        bits_reply=down,
        stateful=bool(jax.tree.leaves(start[1])),
        received=FLOAT_BYTES * _numbers(means, received),
        read=read,
        counts=any(counts.values()),
        server_is_random=alone,
        working=working,
    )


def prices(
    algorithm: Algorithm,
    params: Tree,
    traffic: Traffic,
    *,
    download: str,
    rounds: int,
    gap: float = 1.0,
    once: int = 0,
) -> Prices:
    """Returns the prices of a way to download the model.

    Args:
      download: "model": every client of a round downloads the model. "messages": the
        server sends the round's means, or its downlink's output, and every client
        replays the server's step. A client that was away or is new
        downloads what it missed, or the model if that is smaller. "cheapest": the
        smaller of the two for an average client; if both are equal, "messages" where
        no client fetches more. A server that draws from its own key cannot be replayed.
      rounds: the number of rounds of the run.
      gap: the average number of rounds between two draws of a client.
      once: the bytes of the arrays that do not train.
    """
    validate.one_of(DOWNLOADS, download=download)
    server = jax.eval_shape(lambda p: initial_server(algorithm, p), params)[0]
    read = {
        name: FLOAT_BYTES * _numbers(getattr(server, name), getattr(traffic.read, name))
        for name in ("opt", "memory", "guard")
    }
    means, opt = FLOAT_BYTES * sum(traffic.sent), FLOAT_BYTES * _numbers(server.opt)
    if algorithm.downlink is None:
        memory = FLOAT_BYTES * _numbers(server.memory)
        means += COUNTS_BYTES * traffic.counts
        follow = Follow(opt + memory, means, always=read["guard"])
    else:
        short = -(-algorithm.downlink.bits(trees.size(params)) // 8)
        warmup, always = algorithm.downlink.warmup, read["guard"] + read["memory"]
        follow = Follow(opt, short, means - short, warmup, always)
    size = FLOAT_BYTES * trees.size(params)
    received, replies = traffic.received, -(-traffic.bits_reply // 8)
    model = Prices(size, sum(read.values()), received, replies, follow, once=once)
    ways = {"messages": model._replace(followed=True), "model": model}
    if traffic.server_is_random:
        ways = {"model": model}
    if download == "cheapest":
        return min(ways.values(), key=lambda way: (way.average(rounds, gap), way.most))
    if download not in ways:
        msg = (
            "Expected download='model' with a server whose step is random, so that no "
            f"client can repeat it, got download={download!r}."
        )
        raise ValueError(msg)
    return ways[download]


def _with_work_traced(algorithm, start, batches) -> tuple[Algorithm, int]:
    """Returns the algorithm with its local work traced, and the bytes it writes."""
    (server, client), local = start, algorithm.local
    keys = jax.eval_shape(lambda: round_keys(jax.random.key(0), 0, 0))
    arguments = server, client.local, batches, keys
    program, work = jax.make_jaxpr(local.run, return_shape=True)(*arguments)
    _require_numbers(work.diagnostics)
    if jax.default_backend() == "cpu":
        plain_convolutions.hint_at(program)
    local = local._replace(run=played(program, work))
    return algorithm._replace(local=local), programs.bytes_written(program)


def _require_numbers(diagnostics: Any) -> None:
    """Raises unless what clients return of their work are numbers by name."""
    named = diagnostics if isinstance(diagnostics, Mapping) else {"": diagnostics}
    for name, value in named.items():
        if not files.is_column(name) or getattr(value, "shape", None) != ():
            msg = (
                "Expected the diagnostics of a client to be a dictionary of numbers by "
                f"names without commas, got {diagnostics!r}."
            )
            raise TypeError(" ".join(msg.split()))


def _after(algorithm: Algorithm, server_key, weights, start, batches, replay):
    """Returns the server after a round, in which only it knows `server_key`.

    Draws that a server with a downlink makes before it sends need no repetition.
    """
    (server, client), (means, replies) = start, replay
    _, (update, memory, keys, round) = _work(algorithm, server, client, batches)
    alone, down = keys._replace(server=server_key), algorithm.downlink
    arguments = update, memory, keys if down else alone, round._replace(**weights)
    turn = player.play(algorithm.uplink, arguments, means, receive=_again(replies))
    end = player.ended(algorithm.uplink, turn)
    sent, server = end.delivery.estimate, server._replace(memory=end.memory.server)
    if down:
        key = keys.server
        sent, _ = down.transform.update(sent, server.down, server.params, key=key)
    after = player.step(algorithm, server, sent, alone)
    return after.params, after.opt, after.memory


def _work(algorithm: Algorithm, server: Server, client, batches):
    """Returns a client's work, and the arguments of its channel."""
    keys = round_keys(jax.random.key(0), 0, 0)
    work = algorithm.local.run(server, client.local, batches, keys)
    memory, known = Memory(client.memory, server.memory), Round(server.round)
    if algorithm.mechanism:
        bounded = algorithm.mechanism.bounded
        known = known._replace(counted=lambda m: bounded(server.guard, m).summand)
    return work, (work.update, memory, keys, known)


def _part(algorithm: Algorithm, server: Server, means, replies, client, batches):
    """Returns all that a client sends in a round, and its state afterwards."""
    work, arguments = _work(algorithm, server, client, batches)
    mechanism, messages = algorithm.mechanism, []

    def turn(known):
        return player.play(algorithm.uplink, arguments, known, receive=_again(replies))

    for number in range(len(means)):
        message = player.message(turn(means[:number]).sent)
        if mechanism:
            message = mechanism.encode(server.guard, number, message, arguments[2])
        messages.append(message)
    end = player.ended(algorithm.uplink, turn(means))
    return messages, algorithm.local.finish(work.state, end.delivery), end.memory.client


def _again(replies: Any) -> Callable[[Any], Any]:
    """Returns a `receive` for `player.play` that gives these replies in order."""
    remaining = iter(replies)
    return lambda _: next(remaining)


def _used(function: Callable, *arguments: Any) -> Any:
    """Returns for each leaf of the arguments whether the result depends on it."""
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    used = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))[1]
    return jax.tree.unflatten(jax.tree.structure(arguments), used)


def _numbers(shapes: Any, counted: Any = None) -> int:
    """Returns the count of numbers in a tree, or in those of its leaves that count."""
    leaves = jax.tree.leaves(shapes)
    flags = [True] * len(leaves) if counted is None else jax.tree.leaves(counted)
    return sum(leaf.size for leaf, flag in zip(leaves, flags, strict=True) if flag)
