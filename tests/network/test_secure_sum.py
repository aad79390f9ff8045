"""The masked sum is the clear one, to the bit, whoever drops out and when."""

import itertools
import time

import numpy as np
import pytest

from fl_sketch import network
from fl_sketch.network import formats
from fl_sketch.network.formats import STAGES
from fl_sketch.network.sums import simulate
from tests.network.parties import numbers, play, terms
from tests.refusals import refused


def equal(terms, messages, dropped):
    """Asserts that the masked sum is the clear one; returns the masked one."""
    plain = network.clear(length=terms.length, bits=terms.bits)
    masked = simulate(terms, messages, dropped)
    total = plain.sum(messages, round=terms.round, dropped=dropped).total
    assert masked.total.dtype == total.dtype == np.uint32
    np.testing.assert_array_equal(masked.total, total)
    return masked


def test_the_clear_sum_is_that_of_python_integers():
    messages = numbers(terms(length=50, bits=32), range(5))
    total = network.clear(length=50, bits=32).sum(messages, round=0).total
    whole = [sum(int(m[i]) for m in messages.values()) % 2**32 for i in range(50)]
    assert total.tolist() == whole


@pytest.mark.parametrize("bits", range(8, 33))
def test_sums_are_equal_for_all_bits_and_odd_lengths(bits):
    for length in (1, 7, 1001):
        agreed = terms(4, length, bits)
        messages = numbers(agreed, (0, 5, 77, 2**32 - 1), seed=length)
        equal(agreed, messages, {5: STAGES[(bits + length) % 4]})


def test_sums_are_equal_for_any_survivors_that_are_enough():
    agreed, ids = terms(6), (2, 3, 5, 7, 11, 13)
    messages, rng = numbers(agreed, ids), np.random.default_rng(0)
    for size in range(agreed.threshold, 7):
        for staying in itertools.combinations(ids, size):
            gone = [i for i in ids if i not in staying]
            equal(agreed, messages, {i: str(rng.choice(STAGES)) for i in gone})


@pytest.mark.parametrize("stage", STAGES)
def test_clients_may_drop_out_at_each_stage_until_too_few_stay(stage):
    agreed = terms(7)
    messages = numbers(agreed, range(7))
    most = 7 - agreed.threshold
    equal(agreed, messages, dict.fromkeys(range(most), stage))
    with refused(agreed.threshold, stage):
        simulate(agreed, messages, dict.fromkeys(range(most + 1), stage))


def test_clients_of_weight_zero_take_part_and_add_nothing():
    agreed = terms(6, length=33, bits=20)
    messages = numbers(agreed, range(6))
    weights = {i: np.uint32(i % 2) for i in messages}
    weighted = {i: weights[i] * message for i, message in messages.items()}
    masked = equal(agreed, weighted, {1: "numbers"})
    total = messages[3].astype(np.int64) + messages[5]
    np.testing.assert_array_equal(masked.total, total % 2**20)


@pytest.mark.parametrize("stage", STAGES)
def test_few_neighbours_are_enough_while_each_group_stays(stage):
    agreed = terms(20, length=13, bits=12, neighbours=8, threshold=5)
    messages = numbers(agreed, range(100, 120))
    equal(agreed, messages, {103: stage, 110: stage, 117: stage})


def test_a_group_that_is_too_small_is_one_line():
    agreed = terms(8, neighbours=2, threshold=3)
    with refused("group", 3):
        simulate(agreed, numbers(agreed, range(8)), {2: "numbers"})


def test_a_cohort_of_more_than_a_hundred_has_few_neighbours():
    agreed = network.terms_of(
        round=0, clients=120, length=5, bits=24, colluding=0.05, dropping=0.05
    )
    assert agreed.neighbours < 20
    masked = network.masked(length=5, bits=24, colluding=0.05, dropping=0.05)
    messages = numbers(agreed, range(120))
    dropped = {7: "shares", 70: "numbers"}
    plain = network.clear(length=5, bits=24).sum(messages, round=0, dropped=dropped)
    total = masked.sum(messages, round=0, dropped=dropped).total
    np.testing.assert_array_equal(total, plain.total)


@pytest.mark.parametrize("few", [None, 4])
@pytest.mark.parametrize("length, bits", [(1, 8), (13, 17), (100, 32)])
def test_counted_bytes_are_those_of_the_messages(few, length, bits):
    options = {"neighbours": few, "threshold": 4} if few else {}
    agreed = terms(9, length, bits, **options)
    messages = numbers(agreed, range(9))
    played, counted = play(agreed, messages), formats.traffic(agreed)
    for stage in STAGES:
        assert {len(data) for data in played.up[stage].values()} == {counted[stage].up}
        down = {len(data) for data in played.down[stage].values()} or {0}
        assert down == {counted[stage].down}
    summed = simulate(agreed, messages, {})
    assert summed.bytes_up == 9 * sum(each.up for each in counted.values())
    assert summed.bytes_down == 9 * sum(each.down for each in counted.values())
    fewer = simulate(agreed, messages, {3: "numbers"})
    assert fewer.bytes_up < summed.bytes_up and fewer.bytes_down < summed.bytes_down


def test_sums_say_what_a_client_sends():
    plain = network.clear(length=100, bits=12)
    summed = plain.sum(numbers(terms(5, 100, 12), range(5)), round=0)
    assert plain.traffic(5) == {"numbers": (150, 0)}
    assert (summed.bytes_up, summed.bytes_down) == (5 * 150, 0)
    masked = network.masked(length=100, bits=12)
    assert masked.traffic(5) == formats.traffic(terms(5, 100, 12))


@pytest.mark.parametrize("form", [network.clear, network.masked])
def test_messages_and_drop_outs_that_are_none_are_refused(form):
    secure = form(length=9, bits=16)
    good = numbers(terms(), range(5))
    with refused("2**16"):
        wide = good[0].copy()
        wide[3] = 2**16
        secure.sum({**good, 0: wide}, round=0)
    with refused("9 unsigned", "float32"):
        secure.sum({**good, 0: good[0].astype(np.float32)}, round=0)
    with refused("dropped[1]", "never", "answer"):
        secure.sum(good, round=0, dropped={1: "never"})
    with refused("cohort", 8):
        secure.sum(good, round=0, dropped={8: "keys"})


@pytest.mark.slow
@pytest.mark.parametrize("dropped", [{}, dict.fromkeys(range(20), "numbers")])
def test_a_hundred_clients_with_1e5_numbers_take_five_seconds(dropped):
    """Processor time of all clients and the server, in one thread."""
    messages = numbers(terms(length=100_000, bits=32), range(100))
    masked = network.masked(length=100_000, bits=32)
    start = time.process_time()
    total = masked.sum(messages, round=0, dropped=dropped).total
    assert time.process_time() - start <= 5
    plain = network.clear(length=100_000, bits=32)
    np.testing.assert_array_equal(
        total, plain.sum(messages, round=0, dropped=dropped).total
    )
