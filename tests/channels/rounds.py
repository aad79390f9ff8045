"""Rounds of four clients: of each channel one program, of which laws ask everything."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fl_sketch.channels import player
from fl_sketch.core import trees
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Delivery, Keys, Linear, Memory, Round
from tests import effort
from tests.channels.cases import CHANNELS, COMPRESSORS, D

CLIENTS = 4
# Compiling is all that these programs cost: nothing that makes them run faster.
quickly = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
        **effort.OPTIONS,
    },
)
LIKE = {
    "w": np.zeros((4, 4), np.float32),
    "b": np.zeros(15, np.float32),
    "s": np.zeros((), np.float32),
}


def single_client(channel, update, keys, memory=Memory(), round=Round()):  # noqa: B008
    """Returns the turn of a round with one client, whose messages are their means."""
    arguments = (update, memory, keys, round)
    means = player.messages(channel, arguments)
    return player.ended(channel, player.play(channel, arguments, means))


class Received(NamedTuple):
    """What came of a round; every leaf has a leading axis of clients."""

    messages: tuple  # what each client sent in each exchange
    delivery: Delivery  # what came of it, as each client works it out
    memory: Memory  # of each client, and of the server as the client works it out
    bits: Any  # of its messages
    replies: tuple  # of the server
    code: tuple = ()  # the arrays of the compressor's message, where one made it
    received: Any = ()  # what these stand for
    means: tuple = ()  # of the messages that were counted, by exchange
    added: tuple = ()  # the same where the sum is made before linear messages


class Counts(NamedTuple):
    """Who is in a sum, and what the mean divides it by."""

    weights: np.ndarray  # shape=(CLIENTS,); 0: absent
    denominator: float
    population: float


def first(tree):
    return jax.tree.map(lambda leaf: leaf[0], tree)


def number_of(bits):
    """Returns a length, which is short here, as one number also where it is traced."""
    if isinstance(bits, int):
        return bits
    return jnp.asarray(bits.lengths)[bits.which.astype(int)]


@functools.cache
def channel(name):
    return CHANNELS[name].make(D)


@functools.cache
def keys(number):
    """Returns the keys of all clients in a round; only `own` has an axis of them."""
    with jax.ensure_compile_time_eval():  # the first to ask may be traced
        made = _keys(np.int32(number))
        return Keys(made.shared[0], made.own, made.server[0])


@quickly
def _keys(number):
    clients = jnp.arange(CLIENTS)
    return jax.vmap(lambda client: round_keys(jax.random.key(8), number, client))(
        clients
    )


def some(seed, size=1.0):
    """Returns updates of all clients, with numbers of unlike sizes."""
    draw = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: draw.normal(
            0, size * 3.0 ** draw.integers(-1, 2, leaf.shape), (CLIENTS, *leaf.shape)
        ).astype(np.float32),
        LIKE,
    )


def counts(weights, denominator=None, population=None):
    """Returns the counts of a round in which all weigh so much."""
    weights = np.asarray(weights, np.float32)
    total = np.float32(weights.sum())
    return Counts(
        weights,
        total if denominator is None else np.float32(denominator),
        total if population is None else np.float32(population),
    )


@functools.cache
def start(name):
    """Returns the memories before the first round."""
    memory = channel(name).init(jax.tree.map(jnp.asarray, LIKE))
    memory = jax.tree.map(np.asarray, memory)
    spread = jax.tree.map(lambda leaf: np.stack([leaf] * CLIENTS), memory.client)
    return Memory(spread, memory.server)


@functools.cache
def program(name):
    """Returns the compiled round of a channel."""
    row, protocol = CHANNELS[name], channel(name)

    def one_round(updates, before, memory, keys, number, counts, bound):
        def counted(message):
            shorter = jnp.minimum(1, bound / optax.tree.norm(message))
            return jax.tree.map(lambda leaf: leaf * shorter, message)

        def average(leaf):
            shape = (CLIENTS, *[1] * (leaf.ndim - 1))
            weights = counts.weights.reshape(shape)
            present = jnp.where(weights > 0, leaf, 0)  # absent ones may be anything
            return jnp.sum(weights * present, axis=0) / counts.denominator

        def arguments(update, before, client, own):
            known = Round(
                number,
                counted,
                counts.denominator,
                jnp.sum(counts.weights),
                counts.population,
            )
            given = row.asked(update, before), Memory(client, memory.server)
            return *given, keys._replace(own=own), known

        def sent(client):
            return player.message(
                player.next_message(protocol, arguments(*client), means)
            )

        def received(client):
            (given, memory, keys, _), replies = (here := arguments(*client)), []

            def note(reply):
                replies.append(reply.value)
                return reply.value

            turn = player.ended(
                protocol, player.play(protocol, here, means, receive=note)
            )
            bits = number_of(turn.bits_up)
            found = Received((), turn.delivery, turn.memory, bits, tuple(replies))
            if not row.compressor:
                return found
            compressor = COMPRESSORS[row.compressor].at(D)
            vector = trees.ravel(row.given(given, memory.client))
            code = compressor.compress(keys.own, vector)
            return found._replace(code=code, received=compressor.expand(code, D))

        def added():
            """Returns the mean with the sum made first, where that may be done."""
            one = player.next_message(protocol, arguments(*first(clients)), means)
            if not isinstance(one, Linear):
                return means_of(messages[-1])
            parts = jax.vmap(
                lambda c: player.next_message(protocol, arguments(*c), means).of
            )
            return one.map(jax.tree.map(average, parts(clients)))

        def means_of(message):
            return jax.tree.map(average, jax.vmap(counted)(message))

        means, messages, sums = (), (), ()
        clients = updates, before, memory.client, keys.own
        for _ in range(row.messages):
            messages += (jax.vmap(sent)(clients),)
            sums += (added(),)
            means += (means_of(messages[-1]),)
        of_all = jax.tree.map(lambda leaf: jnp.stack([leaf] * CLIENTS), (means, sums))
        found = jax.lax.map(received, clients)
        return found._replace(messages=messages, means=of_all[0], added=of_all[1])

    return quickly(one_round)


def play(name, updates, memory, *, number, counts, before=None, bound=np.inf):
    """Returns what came of a round of a channel, in numpy.

    Updates and memories of clients have a leading axis. `before` are the updates of the
    round before (None: zeros), `bound` the largest norm that is counted as it is.
    """
    if before is None:
        before = jax.tree.map(np.zeros_like, updates)
    given = updates, before, memory, keys(number), np.int32(number), counts
    return jax.tree.map(np.asarray, program(name)(*given, np.float32(bound)))


def remembered(memory, received, weights):
    """Returns the memories after a round: those of absent clients as they were."""
    present = np.asarray(weights) > 0

    def kept(new, old):
        return np.where(present.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    client = jax.tree.map(kept, received.memory.client, memory.client)
    first = int(np.argmax(present))
    return Memory(
        client, jax.tree.map(lambda leaf: leaf[first], received.memory.server)
    )


class Past(NamedTuple):
    """One round of a history: what it began with, and what came of it."""

    updates: Any
    memory: Memory
    counts: Counts
    received: Received
    after: Memory


WEIGHTS = np.array([1.0, 2.0, 0.5, 1.5])
PRESENT = np.array(
    [[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]], bool
)


@functools.cache
def history(name, bound=np.inf):
    """Returns rounds with clients that count differently and are absent now and then.

    Where some are absent the sum is divided by what was expected, as Poisson cohorts
    want it, and not by what came.
    """
    memory, rounds, before = start(name), [], some(99)
    for number, present in enumerate(PRESENT):
        updates, weights = some(number), WEIGHTS * present
        denominator = WEIGHTS.sum() * (1.0 if present.all() else 0.75)
        known = counts(weights, denominator, WEIGHTS.sum())
        received = play(
            name,
            updates,
            memory,
            number=number,
            counts=known,
            before=before,
            bound=bound,
        )
        after = remembered(memory, received, weights)
        rounds.append(Past(updates, memory, known, received, after))
        memory, before = after, updates
    return rounds


def alone(name, updates, *, number=1):
    """Returns for each client what came of a round in which it alone took part."""
    ends = [
        play(name, updates, start(name), number=number, counts=counts(one))
        for one in np.eye(CLIENTS)
    ]
    own = [jax.tree.map(lambda leaf, i=i: leaf[i], end) for i, end in enumerate(ends)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *own)


def flat(tree):
    """Returns the numbers of each client as rows, in float64."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(CLIENTS, -1) for leaf in leaves], axis=1)
