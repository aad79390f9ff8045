"""Noise is normal, to its tail, on a known grid, and its end is what is said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from fl_sketch.core import chacha
from fl_sketch.privacy import accounting, gaussian

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
    assert stats.binomtest(count, MANY, accounting.upper(size)).pvalue > 1e-4


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
    assert last == pytest.approx(accounting.REACH, abs=1e-5)
    assert made_of(1 << 31, 0, 0, 0) == -last
    assert 2 * accounting.upper(accounting.REACH) == pytest.approx(
        accounting.SMALLEST, rel=1e-6
    )
    # jax.random.normal ends at 5.42; words that are met less often lead further.
    rare = {(0, 1, 0, 0): -47, (0, 0, 1 << 31, 0): -48, (0, 0, 1, 0): -79}
    for words, power in (rare | {(0, 0, 0, 1 << 31): -80}).items():
        exact = -special.ndtri_exp((power - 1) * np.log(2))
        assert made_of(*words) == pytest.approx(exact, abs=1e-5) and exact > 5.42


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
