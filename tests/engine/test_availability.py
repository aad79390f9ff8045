"""Who is there, who answers in time, and how long a round lasts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.engine import availability
from fl_sketch.engine.availability import Clock

KEYS = jax.random.split(jax.random.key(0), 400)
TRACE = [(0, 1, 3), (1, 1, 1), (2, 2, 4), (3, 2, 4), (4, 2, 3), (5, 3, 3), (4, 2, 2)]
THERE = [{0, 1}, {0, 2, 3, 4}, {0, 2, 3, 4, 5}, {2, 3}]


def drawn(cohort):
    return cohort.ids[np.asarray(cohort.weights) > 0].tolist()


@pytest.mark.parametrize("number", range(9))
def test_a_cohort_is_of_those_who_are_there_in_its_round(number):
    sampler = availability.present(7, 3, first_and_last=TRACE, rounds=4)
    draw = jax.jit(sampler)
    there, counts = THERE[number % 4], np.zeros(7)
    for key in KEYS:
        cohort = draw(key, number)
        ids = drawn(cohort)
        assert len(set(ids)) == len(ids) == min(3, len(there)) == cohort.denominator
        assert set(ids) <= there and cohort.population == 7
        counts[ids] += 1
    shares = counts[sorted(there)] / len(KEYS)
    expected = min(1, 3 / len(there))
    assert np.abs(shares - expected).max() < 0.12  # four deviations and more


def test_everyone_who_is_there_comes_where_everyone_is_asked():
    sampler = availability.present(7, 7, first_and_last=TRACE, rounds=4)
    for number in range(4):
        assert set(drawn(sampler(KEYS[0], number))) == THERE[number]


def test_a_round_of_nobody_moves_nothing():
    sampler = availability.present(3, 2, first_and_last=[(1, 2, 2)], rounds=3)
    cohort = sampler(KEYS[0], 0)
    assert drawn(cohort) == [] and 0 < cohort.denominator < 1e-6


def test_those_who_are_late_have_the_model_and_do_not_count():
    seconds = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    clock = Clock(seconds, deadline=2.5)
    everyone = engine.everyone(4)
    sampler = availability.in_time(everyone, clock)
    cohort = sampler(KEYS[0], 0)
    assert drawn(cohort) == [0, 1] and cohort.denominator == 2
    assert cohort.asked.all()
    assert sampler.sampling == ""  # no accountant knows it
    assert availability.lasting(everyone, clock)(KEYS[0], 0) == 2.5
    assert availability.lasting(everyone, Clock(seconds))(KEYS[0], 0) == 4
    assert availability.lasting(everyone, Clock(seconds, deadline=9))(KEYS[0], 0) == 4
    slow = Clock(seconds, sending=1.0, deadline=2.5)
    assert drawn(availability.in_time(everyone, slow)(KEYS[0], 0)) == [0]


def test_times_vary_from_round_to_round_around_the_median():
    clock = Clock(np.array([2.0], np.float32), jitter=0.5)
    times = jax.vmap(lambda key: clock.times(key, jnp.zeros(1, int))[0])(KEYS)
    logs = np.log(np.asarray(times) / 2)
    assert abs(logs.mean()) < 0.1 and abs(logs.std() - 0.5) < 0.07


def test_sending_takes_the_same_time_in_every_round():
    clock = Clock(np.array([0.0, 2.0], np.float32), jitter=0.5, sending=3.0)
    times = jax.vmap(lambda key: clock.times(key, jnp.arange(2)))(KEYS)
    np.testing.assert_array_equal(times[:, 0], 3.0)
    logs = np.log((np.asarray(times[:, 1]) - 3) / 2)
    assert logs.std() == pytest.approx(0.5, abs=0.07)


def test_a_round_lasts_as_long_as_the_slowest_who_was_asked():
    """Answered or not: the server does not know who is still at work."""
    seconds = np.array([1.0, 2.0, 7.0, 9.0], np.float32)
    cohort = engine.Cohort(
        jnp.arange(4), jnp.array([1.0, 1, 0, 0]), 2.0, jnp.arange(4) < 3
    )
    sampler = dataclasses.replace(
        engine.everyone(4), draw=lambda key, number: cohort, timed=True
    )
    assert availability.lasting(sampler, Clock(seconds))(KEYS[0], 0) == 7


def test_what_is_late_by_chance_is_late_in_the_clock_too():
    seconds = np.linspace(1, 3, 30).astype(np.float32)
    clock = Clock(seconds, jitter=0.3, deadline=2.0)
    fixed = engine.fixed_size(30, 5)
    sampler, lasting = (
        availability.in_time(fixed, clock),
        availability.lasting(fixed, clock),
    )
    for key in KEYS[:50]:
        cohort, took = sampler(key, 0), float(lasting(key, 0))
        times = np.asarray(clock.times(key, cohort.ids))
        np.testing.assert_array_equal(times <= 2, np.asarray(cohort.weights) > 0)
        assert took == pytest.approx(min(2.0, times.max()))


@pytest.mark.parametrize(
    "row", [(3, 1, 1), (-1, 1, 1), (0, 0, 1), (0, 2, 1), (0, 1, 5)]
)
def test_a_trace_of_others_is_refused_by_its_row(row):
    with pytest.raises(ValueError, match="got .* in row 2"):
        availability.present(3, 2, first_and_last=[(0, 1, 1), row], rounds=4)
