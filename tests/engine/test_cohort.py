"""Samplers draw whom they say, and cost no more for a larger population."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fl_sketch import engine
from fl_sketch.engine.cohort import padded

KEYS = jax.random.split(jax.random.key(0), 4000)


def many(sampler):
    return jax.jit(jax.vmap(sampler))(KEYS)


def counts_of(cohorts, population):
    taking_part = np.asarray(cohorts.ids)[np.asarray(cohorts.weights) > 0]
    return np.bincount(taking_part, minlength=population)


def test_everyone_is_everyone():
    cohort = engine.everyone(5)(KEYS[0])
    assert cohort.ids.tolist() == [0, 1, 2, 3, 4]
    assert float(cohort.denominator) == 5


@pytest.mark.parametrize("population", [12, 5000])
def test_fixed_size_draws_different_clients_uniformly(population):
    cohorts = many(engine.fixed_size(population, 4))
    assert cohorts.ids.shape == (4000, 4)
    ordered = np.sort(cohorts.ids, axis=1)
    assert np.all(ordered[:, 1:] != ordered[:, :-1])
    groups = np.asarray(cohorts.ids).ravel() * 12 // population
    expected = 4000 * 4 / 12
    spread = (expected * (1 - 4 / 12)) ** 0.5 if population == 12 else expected**0.5
    assert np.all(np.abs(np.bincount(groups, minlength=12) - expected) < 4 * spread)


def test_replacement_draws_uniformly_and_may_repeat():
    cohorts = many(engine.with_replacement(6, 4))
    counts = counts_of(cohorts, 6)
    assert stats.chisquare(counts).pvalue > 1e-4
    ordered = np.sort(cohorts.ids, axis=1)
    repeats = np.any(ordered[:, 1:] == ordered[:, :-1], axis=1).mean()
    assert repeats == pytest.approx(1 - 6 * 5 * 4 * 3 / 6**4, abs=0.04)


@pytest.mark.parametrize(("population", "expected"), [(30, 6.0), (5000, 10.0)])
def test_poisson_sizes_are_binomial_and_its_denominator_fixed(population, expected):
    cohorts = many(engine.poisson(population, expected))
    assert np.all(np.asarray(cohorts.denominator) == expected)
    sizes = np.asarray(cohorts.weights).sum(axis=1).astype(int)
    rate = expected / population
    values = np.arange(sizes.max() + 1)
    probability = stats.binom.pmf(values, population, rate)
    seen = np.bincount(sizes, minlength=values.size)
    likely = probability * 4000 > 8
    tail = [seen[~likely].sum()], [4000 * (1 - probability[likely].sum())]
    observed = np.concatenate([seen[likely], tail[0]])
    wanted = np.concatenate([4000 * probability[likely], tail[1]])
    assert stats.chisquare(observed, wanted).pvalue > 1e-4
    if population == 30:
        taken = counts_of(cohorts, population)
        spread = (4000 * rate * (1 - rate)) ** 0.5
        assert np.all(np.abs(taken - 4000 * rate) < 4 * spread)


def test_poisson_may_bring_nobody():
    cohorts = many(engine.poisson(10, 1.0))
    nobody = np.asarray(cohorts.weights).sum(axis=1) == 0
    assert nobody.mean() == pytest.approx(0.9**10, abs=0.03)


def test_dropout_averages_over_those_who_answer_and_all_were_asked():
    cohorts = many(engine.with_dropout(engine.everyone(20), 0.25))
    answered = np.asarray(cohorts.weights).sum(axis=1)
    assert answered.mean() == pytest.approx(15, abs=0.2)
    np.testing.assert_allclose(cohorts.denominator, np.maximum(answered, 1e-9))
    assert cohorts.asked.all()


def test_padding_adds_places_without_weight():
    cohort = padded(engine.everyone(5)(KEYS[0]), 4)
    assert cohort.ids.shape == (8,) and cohort.asked.sum() == 5
    assert float(jnp.sum(cohort.weights)) == 5
    assert padded(cohort, 4) is cohort


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: engine.fixed_size(5, 6), "size"),
        (lambda: engine.everyone(0), "population"),
        (lambda: engine.poisson(5, 5.5), "expected"),
        (lambda: engine.with_dropout(engine.everyone(5), 1.0), "dropout"),
    ],
)
def test_bad_sizes_are_refused(make, name):
    with pytest.raises(ValueError, match=name):
        make()


def test_clients_count_with_their_own_weights():
    sizes = jnp.array([1.0, 2.0, 3.0, 6.0])
    cohort = engine.weighted(engine.everyone(4), lambda ids: sizes[ids])(KEYS[0])
    assert cohort.weights.tolist() == sizes.tolist()
    assert float(cohort.denominator) == 12
    cohort = engine.weighted(
        engine.poisson(4, 2.0), lambda ids: sizes[ids], average=3.0
    )(KEYS[0])
    np.testing.assert_array_equal(cohort.weights, sizes[cohort.ids] * cohort.asked)
    assert float(cohort.denominator) == 2 * 3
