"""Every byte of a round stands in the ledger, and is that of a real message."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, channels, compressors, trees, wire
from fl_sketch.engine import ledger
from fl_sketch.engine.ledger import Prices
from fl_sketch.engine.round import SimulatorOnly
from fl_sketch.keys import round_keys
from fl_sketch.protocols import Field, Link, Memory
from fl_sketch.sketch import count_sketch, heavy_coordinates
from tests.quadratics import ALGORITHMS, COUNT, PARAMS, STEPS, loss
from tests.quadratics import D as SIZE

KEYS = round_keys(jax.random.key(3), 0, 0)
UPDATE = jax.tree.map(lambda leaf: jax.random.normal(KEYS.own, leaf.shape), PARAMS)
VECTOR = trees.ravel(UPDATE)
BATCHES = jnp.zeros((STEPS, SIZE))


def compressed(compressor):
    arrays = compressor.compress(KEYS.own, VECTOR)
    return [wire.encode(compressor.fields(SIZE), arrays)]


def heavy(k):
    message = COUNT.apply(KEYS.shared, VECTOR)
    index = heavy_coordinates(COUNT, KEYS.shared, message, SIZE, k)
    return [wire.encode_floats(message), wire.encode_floats(VECTOR[index])]


QSGD, TOP = compressors.qsgd(4), compressors.top_k(3)
SMALL = count_sketch(5)
THEN = compressors.then(compressors.top_k(5), compressors.scaled_sign())
CHANNELS = {
    "exact": (channels.exact(), lambda: [wire.encode_floats(UPDATE)]),
    "sketched": (
        channels.sketched(SMALL),
        lambda: [wire.encode_floats(SMALL.apply(KEYS.shared, UPDATE))],
    ),
    "raw sketch": (
        channels.sketched(SMALL, desketch=False),
        lambda: [wire.encode_floats(SMALL.apply(KEYS.shared, UPDATE))],
    ),
    "qsgd": (channels.compressed(QSGD), lambda: compressed(QSGD)),
    "indices": (channels.compressed(TOP), lambda: compressed(TOP)),
    "two of them": (channels.compressed(THEN), lambda: compressed(THEN)),
    "seed": (
        channels.compressed(compressors.random_k(3)),
        lambda: compressed(compressors.random_k(3)),
    ),
    "second exchange": (
        channels.heaprix(COUNT, 3),
        lambda: heavy(3),
    ),
    "second exchange alone": (
        channels.heavy_values(COUNT, 3),
        lambda: heavy(3),
    ),
    "estimated values": (
        channels.heaprix(COUNT, 3, values="estimated"),
        lambda: heavy(3)[:1],
    ),
    "fresh hashes": (
        channels.heaprix(COUNT, 3, values="fresh"),
        lambda: [*heavy(3), wire.encode_floats(COUNT.apply(KEYS.shared, VECTOR))],
    ),
    "memory": (
        channels.error_feedback(channels.compressed(TOP)),
        lambda: compressed(TOP),
    ),
    "difference": (channels.difference(channels.compressed(TOP)), None),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_what_a_channel_counts_is_the_length_of_its_encoded_messages(name):
    channel, messages = CHANNELS[name]
    delivery, _ = channel.mean(UPDATE, channel.init(PARAMS), KEYS, Link(lambda m: m))
    messages = messages or (lambda: compressed(TOP))
    assert -(-delivery.bits // 8) == sum(len(message) for message in messages())


def test_what_comes_back_between_exchanges_is_where_the_heavy_values_are():
    delivery, _ = channels.heaprix(COUNT, 3).mean(
        UPDATE, Memory((), ()), KEYS, Link(lambda m: m)
    )
    message = COUNT.apply(KEYS.shared, VECTOR)
    index = heavy_coordinates(COUNT, KEYS.shared, message, SIZE, 3)
    told = wire.encode([Field(3, (SIZE - 1).bit_length(), "uint")], [index])
    assert -(-delivery.bits_heard // 8) == len(told)


def report(clients, answered=None, up=40, heard=0):
    answered = [True] * len(clients) if answered is None else answered
    return SimulatorOnly(np.array(clients), np.array(answered), up, heard, {})


def test_fetching_the_model_costs_the_model_every_time():
    book, prices = ledger.empty(4), Prices(100, None)
    first = ledger.record(book, prices, 0, report([1, 3, -1]))
    second = ledger.record(book, prices, 1, report([3, 2], [True, False], heard=8))
    assert first == (80, 200, 2) and second == (40, 208, 1)
    assert book.up.tolist() == [0, 40, 0, 80]
    assert book.down.tolist() == [0, 100, 100, 208]


def test_a_client_that_was_away_fetches_what_it_missed_or_everything():
    book, prices = ledger.empty(3), Prices(100, missed=30)
    asked = [[0, 1], [0], [0], [0, 1], [1, 2], [2], [2], [2], [0, 2]]
    down = [
        ledger.record(book, prices, t, report(ids)).down for t, ids in enumerate(asked)
    ]
    # Client 1 returns after 3 rounds (90 < 100), client 0 after 5 (150 > 100).
    assert down == [200, 30, 30, 30 + 90, 30 + 100, 30, 30, 30, 100 + 30]
    assert book.down.sum() == sum(down)


def test_what_was_heard_in_the_last_round_is_not_fetched_again():
    book, prices = ledger.empty(2), Prices(100, missed=30, hears_means=True)
    ledger.record(book, prices, 0, report([0, 1], [True, False], heard=20))
    again = ledger.record(book, prices, 1, report([0, 1], heard=20))
    # The first heard 20 of 30 bytes at once; the second dropped out and heard none.
    assert again.down == (30 - 20) + 30 + 2 * 20


def test_what_was_only_told_is_no_part_of_the_means():
    book, prices = ledger.empty(2), Prices(100, missed=30)
    ledger.record(book, prices, 0, report([0, 1], heard=20))
    assert ledger.record(book, prices, 1, report([0, 1], heard=20)).down == 2 * 50


def test_a_client_drawn_twice_speaks_twice():
    book = ledger.empty(2)
    assert ledger.record(book, Prices(100, None), 0, report([1, 1])).up == 80
    assert book.up.tolist() == [0, 80] and book.down.tolist() == [0, 200]


def test_totals_pass_four_gigabytes():
    book, big = ledger.empty(1), np.uint32(2**32 - 1)
    for number in range(3):
        ledger.record(book, Prices(2**33, None), number, report([0], up=big))
    assert book.up[0] == 3 * (2**32 - 1) and book.down[0] == 3 * 2**33


@pytest.mark.parametrize(
    ("name", "sent", "bits", "stateful"),
    [
        ("fedavg", (16,), 32 * 16, False),
        ("safl", (8,), 32 * 8, False),
        ("heaprix", (36, 4), 32 * 40, False),
        ("sketched_sgd", (36, 4), 32 * 40, True),
        ("gradient_tracking", (36,), 32 * 36, True),
        ("fetch_sgd", (36,), 32 * 36, False),
    ],
)
def test_the_talk_of_an_algorithm_is_known_before_it_runs(name, sent, bits, stateful):
    talk = traffic.measure_traffic(ALGORITHMS[name], PARAMS, BATCHES)
    assert talk == (sent, bits, stateful)


def test_bits_that_depend_on_a_coin_are_not_known_beforehand():
    exact = channels.exact()

    def mean(update, memory, keys, link):
        delivery, memory = exact.mean(update, memory, keys, link)
        coin = jax.random.bernoulli(keys.shared)
        return delivery._replace(bits=jnp.where(coin, 512, 64)), memory

    algorithm = ALGORITHMS["fedavg"]._replace(uplink=exact._replace(mean=mean))
    assert traffic.measure_traffic(algorithm, PARAMS, BATCHES).bits_up is None


def test_prices_of_messages_hold_the_state_that_a_client_must_have():
    algorithm = ALGORITHMS["fedadam"]
    talk = traffic.measure_traffic(algorithm, PARAMS, BATCHES)
    model = traffic.prices(algorithm, PARAMS, talk, download="model")
    assert model == Prices(4 * SIZE, None)
    messages = traffic.prices(algorithm, PARAMS, talk, download="messages")
    carried = 4 * (3 * SIZE + 1)  # parameters, two moments, a count
    assert messages == Prices(carried, 4 * SIZE)
    with pytest.raises(ValueError, match="download='post'"):
        traffic.prices(algorithm, PARAMS, talk, download="post")


COCKTAIL = compressors.then(
    compressors.random_k(8, unbiased=False),
    compressors.top_k(3),
    compressors.nearest(3),
)


@pytest.mark.parametrize(
    ("algorithm", "model", "messages"),
    [
        # Momentum for a client's message; to follow the server, also the second moment
        # and a count. The server's error stays there.
        (ALGORITHMS["onebit_adam"], 2 * SIZE, 3 * SIZE + 1),
        (algorithms.cocktail_sgd(
            loss, cocktail=COCKTAIL, client_rate=0.1, server_rate=0.1
        ), SIZE, SIZE),
        # What is known of the mean and three moments; the mean itself is the server's.
        (algorithms.cd_adam(loss, compressor=TOP, server_rate=0.1), SIZE, 5 * SIZE),
        # Without compression down, clients add the mean messages up as the server does.
        (algorithms.ef21(loss, compressor=TOP, server=optax.sgd(0.1)), SIZE, 2 * SIZE),
        (algorithms.scaffold(
            loss, client_rate=0.1, server_rate=1.0, steps=3, population=4
        ), 2 * SIZE, 2 * SIZE),
    ],
    ids=["onebit_adam", "cocktail_sgd", "cd_adam", "ef21", "scaffold"],
)  # fmt: skip
def test_a_client_fetches_what_it_reads(algorithm, model, messages):
    talk = traffic.measure_traffic(algorithm, PARAMS, BATCHES)
    for download, numbers in (("model", model), ("messages", messages)):
        whole = traffic.prices(algorithm, PARAMS, talk, download=download).whole
        assert whole == 4 * numbers
