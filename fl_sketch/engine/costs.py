"""What clients and server say to each other, found from shapes alone, and its price.

Nothing is declared: what a client reads of the server, and whether it must hear a mean
before the round is over, is seen in its program as traced.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

from fl_sketch.channels import player
from fl_sketch.core import trees, validate
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Algorithm, Channel, Memory, Round, Server, Tree
from fl_sketch.core.wire import FLOAT_BITS
from fl_sketch.engine.clients import traced
from fl_sketch.engine.relays import Relay
from fl_sketch.engine.round import initial_server

FLOAT_BYTES = FLOAT_BITS // 8
COUNTED = ("denominator", "present", "population")  # what a round knows of weights
COUNTS_BYTES = 2 * FLOAT_BYTES  # the mean's denominator, and what those present weigh
DOWNLOADS = ("cheapest", "model", "messages")


class Traffic(NamedTuple):
    """What one client says and hears in a round.

    Attributes:
      sent: numbers in each message, as the mean is taken of them; one entry for each
        exchange, and so for each release of a mechanism.
      bits_up: the bits that it sends; None: it depends on the round.
      bits_told: the bits that the server says between exchanges.
      stateful: whether clients or the channel keep something of each client.
      heard: bytes of the means that a client must hear within the round.
      read: the leaves that clients read of the server beside the parameters; each a
        bool.
      counts: whether the server's step depends on what all clients weigh, or those who
        took part.
      alone: whether the server's step depends on the key that it alone has.
    """

    sent: tuple[int, ...]
    bits_up: int | None
    bits_told: int
    stateful: bool
    heard: int
    read: Server
    counts: bool
    alone: bool


class Follow(NamedTuple):
    """What it costs to follow the server, in bytes.

    Attributes:
      begin: the bytes beside the parameters, to go on from a round that is not the
        first.
      missed: the bytes for every round since the last one.
      early: the bytes more for each of the first rounds.
      warmup: the number of these first rounds.
      always: the bytes that clients read and those who follow do not know.
    """

    begin: int
    missed: int
    early: int = 0
    warmup: int = 0
    always: int = 0


class Prices(NamedTuple):
    """What a client is sent, in bytes.

    Attributes:
      params: the parameters.
      read: the rest of what it reads, if it fetches them.
      heard: the means that it must hear within the round, instead of what is told.
      follow: the prices of following the server.
      followed: whether it follows.
      relay: the relay by which messages reach all clients without a server.
      exchanges: the messages of a client in a round, where there is a relay.
    """

    params: int
    read: int = 0
    heard: int = 0
    follow: Follow = Follow(0, 0)
    followed: bool = False
    relay: Relay | None = None
    exchanges: int = 1

    def sent(self, clients: Any, message: Any) -> Any:
        """Returns the bytes that `clients` send, whose `message` has so many."""
        if self.relay is None:
            return message
        each = message + self.exchanges * self.relay.extra
        return self.relay.sent[clients] * each

    def told(self, reply: Any) -> Any:
        """Returns the bytes that clients hear from a server between exchanges."""
        return 0 if self.relay else self.heard or reply

    @property
    def model(self) -> int:
        """What a client fetches that does not follow."""
        return self.params + self.read

    def fetched(self, last: Any, heard: Any, number: Any) -> np.ndarray:
        """Returns what clients fetch before their work in a round.

        Args:
          last: the round in which each of them last had the model; -1: never.
          heard: bytes of that round's means that it heard at once.
          number: the number of this round.
        """
        last = np.asarray(last, np.int64)
        if not self.followed:
            return np.full(last.shape, self.model, np.int64)
        whole = self.params + self.follow.begin
        # Who had the model of round m lacks the steps of rounds m to number - 1.
        since = self._sent(number) - self._sent(np.maximum(last, 0)) - heard
        # All begin with the same parameters, and with nothing else.
        new = np.minimum(whole, self.params + self._sent(number))
        least = np.where(last < 0, new, np.clip(since, 0, whole))
        return least + self.follow.always

    def in_a_run(self, rounds: int, gap: float) -> int:
        """Returns the bytes that a client fetches in a run.

        It is drawn every `gap` of the `rounds`, for the first time after half of one.
        """
        visits = np.arange(gap / 2, rounds, gap).astype(np.int64)
        last = np.append(-1, visits)[: visits.size]
        heard = np.where(last < 0, 0, self.heard)
        return int(self.fetched(last, heard, visits).sum())

    def _sent(self, rounds: Any) -> Any:
        """Returns the bytes of what the server sent in so many first rounds."""
        follow = self.follow
        return follow.missed * rounds + follow.early * np.minimum(rounds, follow.warmup)


def measure_traffic(algorithm: Algorithm, params: Tree, batches: Any) -> Traffic:
    """Returns what a client with such batches would say; nothing is computed.

    Args:
      algorithm: the work of clients and server.
      params: the model; as of the batches, only shapes and types are read.
      batches: the batches of one client in a round, leaves [steps, batch, ...].

    Raises:
      TypeError, ValueError: in one line, for a talk that no network can hold, or a
        message that the mechanism refuses.
    """
    bits: list[tuple[Any, int]] = []

    def echoed(server, client, batches):
        """Returns a client's messages, each its own mean, and what it is told."""
        told: list[Any] = []
        arguments = _work(algorithm, server, client, batches)[1]
        means = player.messages(algorithm.uplink, arguments)

        def noted(said):
            told.append(said.value)
            return said.value

        turn = player.play(algorithm.uplink, arguments, means, receive=noted)
        end = player.ended(algorithm.uplink, turn)
        _require_same_memory(algorithm.uplink, arguments[1], end.memory)
        bits.append((end.bits_up, end.bits_reply))
        return means, told

    def part(server, means, told, client, batches):
        return _part(algorithm, server, client, batches, means, told)

    start = jax.eval_shape(lambda p: initial_server(algorithm, p), params)
    algorithm = _with_work_traced(algorithm, start, batches)
    means, told = jax.eval_shape(echoed, *start, batches)
    read, heard, *_ = _used(part, start[0], means, told, start[1], batches)
    served = jax.eval_shape(lambda: round_keys(jax.random.key(0), 0, 0).server)
    weights = dict.fromkeys(COUNTED, jax.ShapeDtypeStruct((), np.float32))
    after = functools.partial(_after, algorithm)
    alone, counts, *_ = _used(after, served, weights, start, batches, (means, told))
    (up, down), guard = bits[-1], algorithm.mechanism
    up = guard.wire(up, _numbers(means)) if guard else up
    return Traffic(
        sent=tuple(_numbers(mean) for mean in means),
        bits_up=int(up) if isinstance(up, int) else None,
        bits_told=down,
        stateful=bool(jax.tree.leaves(start[1])),
        heard=FLOAT_BYTES * _numbers(means, heard),
        read=read,
        counts=any(counts.values()),
        alone=alone,
    )


def prices(
    algorithm: Algorithm,
    params: Tree,
    traffic: Traffic,
    *,
    download: str,
    rounds: int,
    gap: float = 1.0,
) -> Prices:
    """Returns the prices of a way to hand the model to clients.

    Args:
      algorithm: the algorithm as it is run.
      params: the parameters of the model.
      traffic: the traffic of this algorithm.
      download: "model": every client of a round fetches the model. "messages": the
        server sends the round's means, or what its downlink made of them, and every
        client takes the server's step itself (`player.replay`). A client that was away,
        or comes for the first time, fetches what it missed, or everything where that is
        less. "cheapest": whichever is less for a client that is drawn every `gap`
        rounds. A server that draws from a key of its own nobody follows.
      rounds: the number of rounds of the run.
      gap: the number of rounds from one time that a client is drawn to the next, on
        average.

    Raises:
      ValueError: for a way that there is not.
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
    size, beside = FLOAT_BYTES * trees.size(params), sum(read.values())
    model = Prices(size, beside, traffic.heard, follow)
    ways = {"model": model, "messages": model._replace(followed=True)}
    if traffic.alone:
        ways = {"model": model}
    if download == "cheapest":
        return min(ways.values(), key=lambda way: way.in_a_run(rounds, gap))
    if download not in ways:
        msg = (
            "Expected download='model' where the server's step draws from its own key, "
            f"so that nobody can take it as well, got download={download!r}."
        )
        raise ValueError(msg)
    return ways[download]


def _with_work_traced(algorithm: Algorithm, start, batches) -> Algorithm:
    """Returns the same algorithm, whose local work Python need not go through again."""
    (server, client), local = start, algorithm.local
    keys = jax.eval_shape(lambda: round_keys(jax.random.key(0), 0, 0))
    run, _ = traced(local.run, server, client.local, batches, keys)
    return algorithm._replace(local=local._replace(run=run))


def _after(algorithm: Algorithm, own, weights, start, batches, heard):
    """Returns the server after a round, with this key that it alone has.

    What a downlink's server draws before it sends something nobody has to draw again.
    """
    (server, client), (means, told) = start, heard
    _, (update, memory, keys, round) = _work(algorithm, server, client, batches)
    mine, down = keys._replace(server=own), algorithm.downlink
    known = round._replace(**weights)
    arguments = update, memory, keys if down else mine, known
    turn = player.play(algorithm.uplink, arguments, means, receive=_again(told))
    end = player.ended(algorithm.uplink, turn)
    sent, server = end.delivery.estimate, server._replace(memory=end.memory.server)
    if down:
        key = keys.server
        sent, _ = down.transform.update(sent, server.down, server.params, key=key)
    after = player.step(algorithm, server, sent, mine)
    return after.params, after.opt, after.memory


def _work(algorithm: Algorithm, server: Server, client, batches):
    """Returns a client's work, and the arguments of its talk."""
    keys = round_keys(jax.random.key(0), 0, 0)
    work = algorithm.local.run(server, client.local, batches, keys)
    memory, known = Memory(client.memory, server.memory), Round(server.round)
    if algorithm.mechanism:
        bounded = algorithm.mechanism.bounded
        known = known._replace(counted=lambda m: bounded(server.guard, m).summand)
    return work, (work.update, memory, keys, known)


def _part(algorithm: Algorithm, server: Server, client, batches, means, told):
    """Returns all that a client sends in a round, and what it remembers of it."""
    work, arguments = _work(algorithm, server, client, batches)
    mechanism, said = algorithm.mechanism, []

    def turn(known):
        return player.play(algorithm.uplink, arguments, known, receive=_again(told))

    for number in range(len(means)):
        message = player.message(turn(means[:number]).sent)
        if mechanism:
            message = mechanism.told(number, message, work.diagnostics)
            message = mechanism.encode(server.guard, number, message, arguments[2])
        said.append(message)
    end = player.ended(algorithm.uplink, turn(means))
    return said, algorithm.local.finish(work.state, end.delivery), end.memory.client


def _again(told: Any) -> Callable[[Any], Any]:
    """Returns what hands out what the server said, in the same order."""
    answers = iter(told)
    return lambda _: next(answers)


def _require_same_memory(channel: Channel, before: Memory, after: Memory) -> None:
    """Raises for a talk that remembers what its channel's `init` has no place for."""
    one, other = (
        [(jax.tree_util.keystr(path), jnp.shape(leaf)) for path, leaf in leaves]
        for leaves in map(jax.tree.leaves_with_path, (before, after))
    )
    if one != other:
        msg = (
            f"Expected {player.name_of(channel)} to return a Memory like that of its "
            f"init, got {other} after {one}."
        )
        raise ValueError(msg)


def _used(function: Callable, *arguments: Any) -> Any:
    """Returns which leaves of the arguments decide anything that a function returns."""
    traced = jax.make_jaxpr(function)(*arguments).jaxpr
    kept = partial_eval.dce_jaxpr(traced, [True] * len(traced.outvars))[1]
    return jax.tree.unflatten(jax.tree.structure(arguments), kept)


def _numbers(shapes: Any, counted: Any = None) -> int:
    """Returns how many numbers a tree holds, or those of its leaves that count."""
    leaves = jax.tree.leaves(shapes)
    flags = [True] * len(leaves) if counted is None else jax.tree.leaves(counted)
    return sum(leaf.size for leaf, flag in zip(leaves, flags, strict=True) if flag)
