"""Every byte of a round stands in the ledger of the client that sent or got it."""

import types

import numpy as np
import pytest

from fl_sketch.engine import ledger
from fl_sketch.engine.prices import Follow, Prices
from fl_sketch.engine.round import SimulatorOnly
from fl_sketch.run import continued

pytestmark = pytest.mark.fast

FOLLOWED = Prices(100, follow=Follow(0, 30), followed=True)


def report(clients, answered=None, up=40, received=0):
    answered = [True] * len(clients) if answered is None else answered
    return SimulatorOnly(np.array(clients), np.array(answered), up, received, {})


def test_fetching_the_model_costs_the_model_every_time():
    book, prices = ledger.empty(4), Prices(100)
    first = ledger.record(book, prices, 0, report([1, 3, -1]))
    second = ledger.record(book, prices, 1, report([3, 2], [True, False], received=8))
    assert first == (80, 200, 2) and second == (40, 208, 1)
    assert book.up.tolist() == [0, 40, 0, 80]
    assert book.down.tolist() == [0, 100, 100, 208]


def test_a_client_that_was_away_fetches_what_it_missed_or_everything():
    book, prices = ledger.empty(3), FOLLOWED
    asked = [[0, 1], [0], [0], [0, 1], [1, 2], [2], [2], [2], [0, 2]]
    down = [
        ledger.record(book, prices, t, report(ids)).down for t, ids in enumerate(asked)
    ]
    # Client 1 returns after 3 rounds (90 < 100), client 0 after 5 (150 > 100).
    assert down == [200, 30, 30, 30 + 90, 30 + 100, 30, 30, 30, 100 + 30]
    assert book.down.sum() == sum(down)


def test_what_was_heard_in_the_last_round_is_not_fetched_again():
    book, prices = (
        ledger.empty(2),
        Prices(100, received=20, follow=Follow(0, 30), followed=True),
    )
    ledger.record(book, prices, 0, report([0, 1], [True, False], received=20))
    again = ledger.record(book, prices, 1, report([0, 1], received=20))
    # The first received 20 of 30 bytes at once; the second dropped out: none.
    assert again.down == (30 - 20) + 30 + 2 * 20


def test_a_client_drawn_twice_speaks_twice():
    book = ledger.empty(2)
    assert ledger.record(book, Prices(100), 0, report([1, 1])).up == 80
    assert book.up.tolist() == [0, 80] and book.down.tolist() == [0, 200]
    assert book.asked.tolist() == book.answered.tolist() == [0, 2]


def test_totals_pass_four_gigabytes():
    book, big = ledger.empty(1), np.uint32(2**32 - 1)
    for number in range(3):
        ledger.record(book, Prices(2**33), number, report([0], up=big))
    assert book.up[0] == 3 * (2**32 - 1) and book.down[0] == 3 * 2**33


def test_a_newcomer_fetches_all_rounds_or_the_state_of_the_server():
    """All begin with the same parameters, and with nothing else."""
    prices = Prices(100, follow=Follow(begin=50, missed=30), followed=True)
    book = ledger.empty(4)
    down = [
        ledger.record(book, prices, number, report([client])).down
        for number, client in ((0, 0), (1, 1), (3, 2), (9, 0))
    ]
    assert down == [100, 100 + 30, 100 + 50, 150]


def test_what_followers_do_not_know_is_fetched_every_time():
    prices = Prices(100, follow=Follow(0, 30, always=4), followed=True)
    book = ledger.empty(1)
    down = [ledger.record(book, prices, n, report([0])).down for n in (0, 1, 2)]
    assert down == [104, 34, 34]


def test_who_did_not_follow_is_a_newcomer_once_it_does():
    """It has a model and no moments, and what it received is of no use to it."""
    first = Prices(100, received=20, follow=Follow(50, 30))
    book = ledger.empty(2)
    ledger.record(book, first, 0, report([0], received=20))
    assert book.received[0] == 20
    standing = types.SimpleNamespace(prices=first, ledger=book)
    followed = first._replace(followed=True)
    after = continued.ledger_of(followed, standing)
    assert not after.received.any() and (after.last == -1).all()
    assert after.up.tolist() == book.up.tolist() and book.received[0] == 20
    assert continued.ledger_of(first, standing).received[0] == 20
    with pytest.raises(ValueError, match="got 31 instead of 30"):
        more = followed._replace(follow=Follow(50, 31))
        continued.ledger_of(more, standing)


def test_what_does_not_train_is_fetched_at_the_first_visit_alone():
    for more in ({}, {"follow": Follow(0, 30), "followed": True}):
        plain, parted = (ledger.empty(3), Prices(100, **more)), ledger.empty(3)
        for number, ids in enumerate([[0, 1], [1, 1, 0], [2, 2], [2]]):
            before = ledger.record(*plain, number, report(ids)).down
            price = plain[1]._replace(once=1000)
            after = ledger.record(parted, price, number, report(ids)).down
            new = {0: 2, 2: 1}.get(number, 0)
            assert after - before == 1000 * new
        assert (parted.down - plain[0].down).tolist() == [1000] * 3
