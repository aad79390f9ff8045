"""The laws that channels keep: what is sent, what is remembered, what comes of it."""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import channels
from fl_sketch.channels import player
from fl_sketch.core import wire
from fl_sketch.core.protocols import Channel, Halves, Keys, Memory, Round, ServerReply
from tests.channels.cases import CHANNELS, COMPRESSORS, Claim, D
from tests.channels.rounds import (
    CLIENTS,
    LIKE,
    WEIGHTS,
    alone,
    channel,
    counts,
    flat,
    history,
    keys,
    number_of,
    play,
    quickly,
    remembered,
    single_client,
    some,
    start,
)
from tests.operators import encoded
from tests.quick import some_fast

QUICK = (
    "exact", "sketched", "compressed", "heavy_values", "heaprix_fresh", "marina",
    "feedback_top_k", "difference_top_k",
)  # fmt: skip
every_channel = pytest.mark.parametrize("name", some_fast(CHANNELS, QUICK))
DRAWS = 4000


def rows(holds):
    """Returns the mark of a law that is one of some channels only."""
    names = [name for name, row in CHANNELS.items() if holds(row)]
    assert names
    return pytest.mark.parametrize("name", some_fast(names, {*QUICK} & {*names}))


def near(one, other, tolerance=1e-5):
    """Returns whether two arrays are the same but for rounding."""
    size = max(np.abs(one).max(), np.abs(other).max(), 1e-30)
    return bool(np.abs(one - other).max() <= tolerance * size)


def numbers(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def arguments(name, update, number=1):
    """Returns the arguments of the protocol of the first client of a round."""
    made = CHANNELS[name].make(sum(np.size(leaf) for leaf in jax.tree.leaves(update)))
    memory, own = made.init(update), keys(number)
    one = np.float32(1)
    known = Round(np.int32(number), denominator=one, present=one, population=one)
    nothing = jax.tree.map(jnp.zeros_like, update)
    asked = CHANNELS[name].asked(update, nothing)
    return asked, memory, own._replace(own=own.own[0]), known


def test_every_public_channel_has_a_row():
    public = {
        name
        for name, made in inspect.getmembers(channels, inspect.isfunction)
        if inspect.signature(made).return_annotation in (Channel, inspect._empty)
    }
    found = {player.name_of(channel(name)) for name in CHANNELS}
    assert public and public <= found


# What comes of messages.


@every_channel
def test_a_client_alone_hears_what_its_message_stood_for(name):
    ends = alone(name, some(1), number=0)
    assert near(flat(ends.delivery.estimate), flat(ends.delivery.own))


@every_channel
def test_what_a_message_stood_for_is_its_own_where_nobody_chooses(name):
    """Whatever others send; but not where the server asks for some of it."""
    updates = some(1)
    together = play(name, updates, start(name), number=1, counts=counts(WEIGHTS))
    own = flat(together.delivery.own), flat(alone(name, updates).delivery.own)
    assert near(*own) == (not CHANNELS[name].chosen)


@every_channel
@pytest.mark.parametrize("bound", [np.inf, 1.0])
def test_estimates_are_means_of_what_was_stood_for_where_it_is_claimed(name, bound):
    """Whatever clients weigh, in every round, and where a bound cuts messages off."""
    whole = [past for past in history(name, bound) if past.counts.weights.all()]
    means = [
        near(
            WEIGHTS @ flat(past.received.delivery.own) / WEIGHTS.sum(),
            flat(past.received.delivery.estimate)[0],
        )
        for past in whole
    ]
    assert all(means) == (Claim.MEAN in CHANNELS[name].claims)


@every_channel
def test_the_estimate_of_a_sum_is_the_sum_of_estimates_where_it_is_claimed(name):
    def combined(leaf):
        return np.stack([leaf[0], leaf[1], 2 * leaf[0] - leaf[1], 0 * leaf[0]])

    ends = alone(name, jax.tree.map(combined, some(2)))
    x, y, both, _ = flat(ends.delivery.estimate)
    assert near(both, 2 * x - y) == (Claim.ADDITIVE in CHANNELS[name].claims)


@rows(lambda row: row.told)
def test_what_the_server_asks_for_arrives_exactly(name):
    """The largest numbers, and nothing is left of them to blur the others."""
    updates = jax.tree.map(np.zeros_like, some(0))
    for client in range(CLIENTS):
        updates["w"][client].flat[3 * client] = 2.0 - client
    ends = alone(name, updates)
    assert near(flat(ends.delivery.estimate), flat(updates))


@rows(lambda row: Claim.UNBIASED in row.claims)
def test_over_keys_the_estimate_is_the_update_where_it_is_claimed(name):
    """Of a channel that remembers an earlier update: whatever is received now."""
    update, before = (jax.tree.map(lambda leaf: leaf[0], some(seed)) for seed in (3, 4))
    asked, memory = CHANNELS[name].asked(update, before), channel(name).init(before)
    if jax.tree.leaves(memory.server):
        memory = memory._replace(server=before)

    @quickly
    @jax.vmap
    def estimates(key):
        known = Round(np.int32(1))
        turn = single_client(channel(name), asked, Keys(key, key, key), memory, known)
        return turn.delivery.estimate

    draws = estimates(_keys())
    for leaf, drawn in zip(*map(jax.tree.leaves, (update, draws)), strict=True):
        drawn = np.asarray(drawn, np.float64)
        doubt = 4 * drawn.std(axis=0) / DRAWS**0.5 + 1e-4
        assert np.all(np.abs(drawn.mean(axis=0) - leaf) <= doubt)


@functools.cache
def _keys():
    return jax.random.split(jax.random.key(11), DRAWS)


@every_channel
def test_all_work_out_the_same_estimate_from_what_they_hear(name):
    """To the bit, with keys and memories of their own."""
    for past in history(name):
        common = (
            past.received.delivery.estimate,
            past.received.memory.server,
            past.received.replies,
        )
        for leaf in jax.tree.leaves(common):
            np.testing.assert_array_equal(leaf, np.stack([leaf[0]] * CLIENTS))


# What is sent.


@every_channel
def test_the_map_of_the_sum_is_the_sum_of_the_messages_where_they_are_linear(name):
    for past in history(name):
        assert near(flat(past.received.means), flat(past.received.added))


def encodings(name, received, client):
    """Yields all that a client may have sent: bytes, and what the receiver has then."""
    sent = jax.tree.map(lambda leaf: leaf[client], received.messages)
    yield [encoded(part) for part in sent], sent
    if CHANNELS[name].compressor:
        fields = COMPRESSORS[CHANNELS[name].compressor].at(D).fields(D)
        data = wire.encode(fields, [array[client] for array in received.code])
        yield [data], received.received[client]


@every_channel
def test_bits_are_the_length_of_bytes_from_which_the_message_can_be_had(name):
    seen = set()
    for past in history(name):
        for client in range(CLIENTS):
            bits, message = (
                int(past.received.bits[client]),
                flat(past.received.messages),
            )
            assert any(
                sum(map(len, data)) == math.ceil(bits / 8)
                and near(numbers(received), message[client])
                for data, received in encodings(name, past.received, client)
            )
            seen.add(bits)
    assert seen == set(CHANNELS[name].bits)


@every_channel
def test_a_round_has_as_many_messages_and_answers_as_it_is_said_to(name):
    """And what is told between them has the length that is stated."""
    row, formats = CHANNELS[name], []
    here = arguments(name, jax.tree.map(jnp.asarray, LIKE))

    def noted(reply: ServerReply):
        formats.append(reply.fields)
        return reply.value

    def whole():
        sent = player.messages(channel(name), here)
        end = player.play(channel(name), here, sent, receive=noted)
        assert len(sent) == row.messages
        assert end.bits_reply == row.told
        return end.delivery

    jax.eval_shape(whole)
    assert len(formats) == row.messages - 1
    for past in history(name):
        replies = zip(formats, past.received.replies, strict=True)
        data = [wire.encode(fields, [value[0]]) for fields, value in replies]
        assert sum(map(len, data)) == math.ceil(row.told / 8)


# What is remembered.


@rows(lambda row: row.keeps == "errors")
@pytest.mark.parametrize("bound", [np.inf, 1.0])
def test_what_messages_stood_for_and_what_is_owed_add_up_to_the_updates(name, bound):
    """For those who are absent at times, and where a bound cuts messages off."""
    total = np.zeros((CLIENTS, D))
    for past in history(name, bound):
        present = past.counts.weights[:, None] > 0
        own = flat(past.received.delivery.own)
        total += np.where(present, flat(past.updates) - own, 0)
        assert near(flat(past.after.client[0]), total)
    assert np.abs(total).max() > 0.1


@rows(lambda row: row.keeps == "estimates")
@pytest.mark.parametrize("bound", [np.inf, 1.0])
def test_the_server_has_the_mean_of_what_clients_have(name, bound):
    """Whoever takes part, and whatever the sum is divided by."""
    for past in history(name, bound):
        own = flat(past.after.client[0])
        server = numbers(past.after.server[0])
        assert near(WEIGHTS @ own / WEIGHTS.sum(), server)
    assert np.abs(server).max() > 0.1


@rows(lambda row: row.keeps == "estimates")
def test_an_update_that_stays_is_known_better_in_every_round(name):
    """By what its compressor leaves of what is missing."""
    left = COMPRESSORS[CHANNELS[name].compressor].error
    memory, updates = start(name), some(6)
    known = counts(np.ones(CLIENTS))
    for number in range(6):
        missing = flat(updates) - flat(memory.client[0])
        received = play(name, updates, memory, number=number, counts=known)
        memory = remembered(memory, received, known.weights)
        after = flat(updates) - flat(memory.client[0])
        expected = [left(row) for row in missing]
        np.testing.assert_allclose(np.sum(after**2, axis=1), expected, rtol=1e-3)


@rows(lambda row: row.keeps)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_leaves_the_memories_as_they_were(name, bad):
    """Its client's; those of others stay finite, and find it in no later round."""
    memory, known = history(name)[-1].after, counts(WEIGHTS)
    for place in (0, -1):
        updates = jax.tree.map(np.copy, some(7))
        jax.tree.leaves(updates)[place][1].flat[2] = bad
        received = play(name, updates, memory, number=9, counts=known)
        kept = received.memory.client
        assert np.isfinite(flat(kept)).all()
        np.testing.assert_array_equal(flat(kept)[1], flat(memory.client)[1])


@every_channel
def test_a_nan_of_one_client_is_not_hidden(name):
    """One number, or all where numbers are sent by lot."""
    row, updates = CHANNELS[name], jax.tree.map(np.copy, some(7))
    by_lot = row.compressor and COMPRESSORS[row.compressor].lot
    for leaf in jax.tree.leaves(updates)[: None if by_lot else 1]:
        leaf[1].flat[: None if by_lot else 1] = np.nan
    received = play(name, updates, start(name), number=1, counts=counts(WEIGHTS))
    assert np.isnan(flat(received.delivery.estimate)).any(axis=1).all()


@every_channel
def test_nothing_comes_of_nothing(name):
    row, nothing = CHANNELS[name], jax.tree.map(np.zeros_like, some(0))
    received = play(name, nothing, start(name), number=1, counts=counts(WEIGHTS))
    expected = COMPRESSORS[row.compressor].nothing if row.compressor else 0.0
    np.testing.assert_allclose(flat(received.delivery.estimate), expected, rtol=1e-6)
    for leaf in jax.tree.leaves(received.memory):
        np.testing.assert_array_equal(leaf, 0)


# Whoever asks, and whatever the types.


@every_channel
@pytest.mark.parametrize("types", ["float32", "bfloat16", "float16", "one of each"])
def test_trees_keep_their_structure_and_types(name, types):
    """With leaves of no axis, of two, and without numbers; nothing is computed."""
    kinds = (
        ["float32", "bfloat16", "float16"] if types == "one of each" else [types] * 3
    )
    shapes = [(4, 4), (7,), ()]
    w, b, s = (jax.ShapeDtypeStruct(*pair) for pair in zip(shapes, kinds, strict=True))
    none = [jax.ShapeDtypeStruct((0, 3), kinds[0])] if CHANNELS[name].empty else []
    like = {"w": w, "rest": (b, [s]), "none": (none, None)}
    before = jax.eval_shape(channel(name).init, like)

    def end(update, memory):
        here = arguments(name, update)
        turn = single_client(channel(name), here[0], here[2], memory, here[3])
        return turn.delivery, turn.memory

    delivery, memory = jax.eval_shape(end, like, before)
    assert memory == before
    if "message" not in name:
        expected = Halves(like, like) if name == "halves" else like
        assert delivery.estimate == delivery.own == expected


# What is one channel's own.


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_long_update_of_16_bits_is_shortened_and_not_lost(kind):
    update = np.full(D, 300).astype(kind)
    clipped = channels.clipped(channels.exact(), 6.0)
    own = single_client(clipped, jnp.asarray(update), keys(0)).delivery.own
    assert np.linalg.norm(np.asarray(own, np.float64)) == pytest.approx(6, rel=0.01)


def test_what_marina_sends_first_is_whole_whatever_the_coin():
    row, update = COMPRESSORS["scaled_sign"], jnp.ones(D)
    rarely, memory = channels.marina(row.at(D), 1e-9), Memory(server=update)
    own = keys(0)._replace(own=keys(0).own[0])
    pair = update, update
    ends = [single_client(rarely, pair, own, memory, Round(n)) for n in range(3)]
    bits = [int(number_of(end.bits_up)) for end in ends]
    assert bits == [D * 32, row.bits, row.bits]
