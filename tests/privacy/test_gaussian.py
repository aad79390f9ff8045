"""Noise is normal, to its tail, on a known grid, and its end is what is said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from fl_sketch.core import chacha
from fl_sketch.privacy import accounting, gaussian, tails
from fl_sketch.privacy.accounting import Plan

SECRET = chacha.key_of(bytes(range(32)))
MANY = 20_000_000


@pytest.fixture(scope="module")
def numbers():
    return np.asarray(jax.jit(gaussian.standard, static_argnums=1)(SECRET, MANY))


def test_the_numbers_are_normal(numbers):
    assert stats.kstest(numbers[:1_000_000], "norm").pvalue > 1e-3
    assert abs(numbers.mean()) < 5 / MANY**0.5
    assert abs(numbers.std() - 1) < 5 / (2 * MANY) ** 0.5
    pairs = numbers[: MANY // 2], numbers[MANY // 2 :]
    assert abs(np.corrcoef(*pairs)[0, 1]) < 5 / (MANY / 2) ** 0.5


@pytest.mark.parametrize("size", [1.0, 2.0, 3.0, 4.0, 4.5, 5.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_its_tails_are_as_heavy_as_they_should_be(numbers, size, sign):
    count = int((sign * numbers > size).sum())
    assert stats.binomtest(count, MANY, tails.upper(size)).pvalue > 1e-4


def test_every_quantile_is_right_to_the_last_one():
    u = np.concatenate(
        [np.linspace(1e-6, 1 - 1e-6, 20_001), 2.0 ** -np.linspace(1, 112, 5000)]
    ).astype(np.float32)
    exact = np.where(
        u < 0.5,
        -special.ndtri_exp(np.log(np.minimum(u, 0.5).astype(float) / 2)),
        np.sqrt(2) * special.erfinv(1 - u.astype(float)),
    )
    assert np.abs(np.asarray(gaussian._size(u)) - exact).max() < 3e-6


def made_of(first, rest, high, low):
    words = [jnp.array([word], jnp.uint32) for word in (first, rest, high, low)]
    return float(gaussian.from_words(*words[:2], lambda: jnp.stack(words[2:]))[0])


def test_it_ends_where_the_accountant_thinks_and_far_beyond_a_float():
    last = made_of(0, 0, 0, 0)
    assert last == pytest.approx(tails.REACH, abs=1e-5)
    assert made_of(1 << 31, 0, 0, 0) == -last
    assert 2 * tails.upper(tails.REACH) == pytest.approx(tails.SMALLEST, rel=1e-6)
    # jax.random.normal ends at 5.42; the words for more than that are met here.
    assert 5.42 < made_of(1, 0, 7, 7) < made_of(0, 0xFFFF, 7, 7) < last
    assert made_of(0, 0, 1 << 31, 0) < made_of(0, 0, 1, 0) < made_of(0, 0, 0, 1) < last


def test_a_run_of_ordinary_draws_gets_beyond_the_end_of_a_float():
    # One number in 2^31 has its first bits zero; here a generator that makes many.
    rest = jax.random.bits(jax.random.key(0), (3, 100_000), jnp.uint32)
    far = gaussian.from_words(
        jnp.zeros(100_000, jnp.uint32), rest[0] >> 16, lambda: rest[1:]
    )
    sizes = np.abs(np.asarray(far))
    cut = float(special.ndtri(1 - 2.0**-32))
    assert sizes.min() > cut - 1e-4
    # Beyond the cut they are the normal's tail.
    chance = np.exp(special.log_ndtr(-sizes.astype(float)) + 32 * np.log(2))
    assert stats.kstest(chance, "uniform").pvalue > 1e-3


def test_noisy_sums_are_multiples_of_one_power_of_two_whatever_the_data():

    @jax.jit
    def noise_and_sum(data, scale):
        noise = gaussian.noise(SECRET, data, scale)
        return noise, gaussian.on_grid(data + noise, scale)

    for scale in np.float32([0.3, 1.0, 1.7, 123.0]):
        step = 2.0 ** np.floor(np.log2(scale)) / 16
        for number in (0.0, 1e-3, 7.7):
            data = np.full(1000, number, np.float32)
            noise, out = jax.device_get(noise_and_sum(data, scale))
            np.testing.assert_array_equal(out / step, np.round(out / step))
            assert np.abs(out - data - noise).max() <= step / 2 * 1.001


def test_without_the_grid_low_bits_would_say_what_was_added(numbers):
    """A number below one has bits that a sum with one cannot have."""
    noise = numbers[:100_000]
    beyond = np.float32(1) + noise
    fine = lambda x: np.mean(x * 2.0**24 % 1 != 0)  # noqa: E731
    assert fine(noise[np.abs(noise) < 0.25]) > 0.4
    assert fine(beyond[(np.abs(beyond) < 0.25)]) == 0


def test_what_the_end_of_the_noise_costs_is_the_mass_beyond_it():
    reach = 3.0  # where a Monte Carlo sees it
    random = np.random.default_rng(0)
    for shift, coordinates in ((0.0, 1), (1.0, 1), (1.5, 20)):
        x = random.normal(size=(200_000, coordinates))
        x[:, 0] += shift
        seen = (np.abs(x) > reach).any(axis=1).mean()
        bound = tails.missing(shift, coordinates, reach)
        room = 4 * (bound / 200_000) ** 0.5
        assert seen <= bound + room
        spread = random.normal(size=(200_000, coordinates)) + shift / coordinates**0.5
        assert (np.abs(spread) > reach).any(axis=1).mean() <= bound + room
    assert tails.missing(2.5, 1, reach) == 1.0


PLAN = Plan(500, 100, 100, coordinates=200)


@pytest.mark.parametrize("releases", [2, 5])
def test_every_release_pays_for_its_end(releases):
    once = accounting.beyond(PLAN._replace(coordinates=1), 0.3, 0.0)
    plan = PLAN._replace(coordinates=1, releases=releases)
    assert accounting.beyond(plan, 0.3, 0.0) / once == pytest.approx(releases)


def test_the_end_is_paid_from_delta_and_costs_nothing_to_speak_of():
    z, delta = 0.7, 1e-6
    old = PLAN.steps * (tails.upper(5.42 - 1 / z) + tails.upper(5.22 + 1 / z))
    assert old > 100 * delta  # what float32's own end cost
    extra = accounting.beyond(PLAN, z, 0.0)
    assert 0 < extra < delta / 1000
    exact = accounting.epsilon(PLAN, z, delta=delta - extra)
    assert accounting.spent(PLAN, z, delta=delta) == exact
    assert exact >= accounting.epsilon(PLAN, z, delta=delta)


def test_too_little_noise_for_its_end_is_no_promise():
    assert accounting.spent(PLAN, 0.1, delta=1e-6) == float("inf")
    with pytest.raises(ValueError, match="delta / 1000"):
        accounting.calibrate(PLAN._replace(steps=5), epsilon=1e4, delta=1e-6)


def test_samples_that_are_cut_are_paid_for():
    plan = Plan(1000, 50, 1000, cut=1e-9)
    assert accounting.spent(plan, 2.0, delta=1e-3) > accounting.epsilon(
        plan, 2.0, delta=1e-3
    )
    assert accounting.spent(plan, 2.0, delta=1e-5 / 2) == float("inf")


@pytest.mark.parametrize(("population", "expected"), [(1000, 50.0), (10**6, 1000.0)])
def test_a_cohort_has_the_fewest_places_but_one_that_are_enough(population, expected):
    places = tails.places_for(population, expected)
    larger = stats.binom.sf([places - 1, places - 2], population, expected / population)
    assert larger[0] <= tails.CUT < larger[1]
    assert tails.places_for(60, 50.0) == 60 and tails.cut_chance(60, 50.0) == 0


def test_the_chance_of_a_cut_is_that_of_others_who_leave_no_place(monkeypatch):
    """Or the last one, at a chance that a Monte Carlo sees."""
    monkeypatch.setattr(tails, "CUT", 0.01)
    places = tails.places_for(200, 30.0)
    others = np.random.default_rng(0).binomial(199, 30 / 200, 200_000)
    seen = (others >= places - 1).mean()
    assert seen <= tails.cut_chance(200, 30.0) < 1.3 * seen


def test_shares_of_many_are_paid_for_at_e_to_the_epsilon():
    plan = Plan(50, 40, 40, "everyone", relation="replace_one", shares=40)
    least = 50 * 40 * 2 * 2 * tails.upper(tails.REACH)
    for epsilon in (0.0, 3.0):
        paid = accounting.beyond(plan, 5.0, epsilon) / least
        assert paid == pytest.approx((1 + np.e**epsilon) / 2)
