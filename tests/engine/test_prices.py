"""What a client fetches, and which way of fetching is the cheapest."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import engine
from fl_sketch.core.protocols import Channel
from fl_sketch.engine import costs as traffic
from fl_sketch.engine import ledger, prices
from tests.quadratics import CATALOGUE, COCKTAIL, PARAMS, STEPS, TOP
from tests.quadratics import D as SIZE

BATCHES = jnp.zeros((STEPS, SIZE))


@pytest.mark.parametrize(
    ("name", "beside", "begin", "missed", "always"),
    [
        ("fedadam", 0, 2 * SIZE + 1, SIZE, 0),
        # Momentum for a client's message; to follow, also the second moment and a
        # count. The error of the server's own message stays there.
        ("onebit_adam", SIZE, 2 * SIZE + 1, (SIZE + 32) / 32, 0),
        ("cocktail_sgd", 0, 0, COCKTAIL.bits(SIZE) / 32, 0),
        # What is known of the mean, and three moments; the mean is the server's.
        ("cd_adam", 0, 4 * SIZE, TOP.bits(SIZE) / 32, 0),
        # Beside the mean, its denominator and how many there were.
        ("ef21", 0, SIZE, SIZE + 2, 0),
        ("scaffold", SIZE, SIZE, SIZE + 2, 0),
        ("marina", SIZE, SIZE, SIZE, 0),
        ("sketched_sgd", 0, 0, 4 * 36 / 32, 0),
        ("fetch_sgd", 0, 0, 4 * 36 / 32, 0),
        ("heaprix", 0, 0, 40, 0),
    ],
)
def test_a_client_fetches_what_it_reads(name, beside, begin, missed, always):
    algorithm = CATALOGUE[name]
    found = traffic.measure_traffic(algorithm, PARAMS, BATCHES)
    both = traffic.prices(algorithm, PARAMS, found, download="model", rounds=10)
    assert (both.params, both.read, both.followed) == (4 * SIZE, 4 * beside, False)
    expected = (4 * begin, -(-4 * missed // 1), 4 * always)
    assert (both.follow.begin, both.follow.missed, both.follow.always) == expected
    followed = traffic.prices(algorithm, PARAMS, found, download="messages", rounds=10)
    assert followed == both._replace(followed=True)


def test_the_cheapest_way_depends_on_how_often_a_client_is_drawn():
    algorithm = CATALOGUE["safl"]
    found = traffic.measure_traffic(algorithm, PARAMS, BATCHES)

    def price(download, rounds=1000, gap=1.0):
        return traffic.prices(
            algorithm, PARAMS, found, download=download, rounds=rounds, gap=gap
        )

    gaps = [price("cheapest", gap=gap).followed for gap in (1, 2.0, 2.5, 100)]
    assert gaps == [True, True, False, False]
    # Who comes once must be sent more than the model: moments, or earlier rounds.
    assert not price("cheapest", rounds=2, gap=100.0).followed
    with pytest.raises(ValueError, match="download='post'"):
        price("post")


def test_the_cheapest_way_counts_warm_up_and_newcomers_as_the_ledger_does():
    follow = prices.Follow(begin=200, missed=5, early=100, warmup=20)
    model = prices.Prices(100, follow=follow)
    followed = model._replace(followed=True)
    drawn = np.random.default_rng(0)
    for rounds, gap in ((10, 1), (25, 1), (60, 2), (400, 3)):
        for price in (model, followed):
            book, visits = ledger.empty(120), 0
            for number in range(rounds):
                who = drawn.permutation(120)[: 120 // gap]
                visits += who.size
                one = engine.SimulatorOnly(who, np.ones(who.size, bool), 0, 0, {})
                ledger.record(book, price, number, one)
            mean = book.down.sum() / visits
            exact = gap == 1  # else it depends on who is drawn
            found = price.average(rounds, gap)
            np.testing.assert_allclose(found, mean, rtol=0 if exact else 0.01)
    assert followed.average(20, 1) > model.average(20, 1)
    assert followed.average(60, 1) < model.average(60, 1)
    assert model.average(10, 1e6) == 100  # the few that are drawn


def test_nobody_follows_a_server_that_draws_by_itself():
    def update(updates, state, params=None, *, key, **extra):
        del params, extra
        noise = jax.random.normal(key, ())
        return jax.tree.map(lambda leaf: -leaf + noise, updates), state

    def shaken(inner, memory, keys, round):
        delivery, memory = yield from plain.protocol(inner, memory, keys, round)
        noise = jax.random.normal(keys.server, ())
        moved = jax.tree.map(lambda leaf: leaf + noise, delivery.estimate)
        return delivery._replace(estimate=moved), memory

    own = optax.GradientTransformationExtraArgs(lambda params: (), update)
    plain = CATALOGUE["safl"].uplink
    for change in ({"server": own}, {"uplink": Channel(shaken)}):
        algorithm = CATALOGUE["safl"]._replace(**change)
        found = traffic.measure_traffic(algorithm, PARAMS, BATCHES)
        price = functools.partial(traffic.prices, algorithm, PARAMS, found, rounds=1000)
        assert not price(download="cheapest").followed
        with pytest.raises(ValueError, match="download='model' with a server"):
            price(download="messages")
