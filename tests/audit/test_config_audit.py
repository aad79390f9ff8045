"""An audit of a config finds less than it claims, unless the claim is wrong."""

import dataclasses
import functools

import pytest

from fl_sketch.audit import canaries, config_audit
from fl_sketch.config import privacy as protection
from fl_sketch.privacy import accounting
from fl_sketch.privacy.lattice import Integers
from fl_sketch.run import prepare
from tests.run.configs import config_with

pytestmark = pytest.mark.slow

FEW = config_audit.Audit(trials=2**15, rounds=2)
POISSON = {
    "data__clients": 400,
    "cohort__sampling": "poisson",
    "cohort__size": 100,
    "client__batch": 3,
    "client__batches": "whole",
    "rounds": 5,
    "privacy__bound": "clip",
    "privacy__noise_multiplier": 1.5,
    "privacy__delta": 1e-3,
}
EVERYONE = {"cohort__sampling": "everyone", "data__clients": 100}
REPLACED = {"privacy__relation": "replace_one", "privacy__noise_multiplier": 3.0}
SKELLAM = {
    "privacy__noise": "skellam",
    "privacy__bits": 16,
    "privacy__smallest_cohort": 80,
}
FETCHSGD = {"algorithm": "fetchsgd", "sketch__rows": 5, "server__optimizer": "sgd"}
# Every sampling, relation, bound and kind of noise is in a row.
CONFIGS = {
    "fixed, replaced, normalised": POISSON
    | REPLACED
    | FETCHSGD
    | {"cohort__sampling": "fixed", "privacy__bound": "normalise"},
    "poisson, replaced, adaptive": POISSON | REPLACED | {"privacy__bound": "adaptive"},
    "integers of clients": POISSON | EVERYONE | REPLACED | SKELLAM,
    "integers of the server": POISSON | EVERYONE | {"privacy__bits": 16},
    "two exchanges of integers": POISSON
    | {"algorithm": "fedsketch", "sketch__query": "heaprix", "sketch__rows": 5}
    | {"privacy__bits": 14},
    "two exchanges": POISSON
    | {"algorithm": "fedsketch", "sketch__query": "heaprix", "sketch__rows": 5},
}

# What is known of fixed samples is a bound by moments, which is not tight.
LEAST = {
    "poisson, replaced, adaptive": 0.2,
    "fixed, replaced, normalised": 0.2,
    "two exchanges of integers": 0.2,
}


@functools.cache
def played(name, **changes):
    return config_audit.play(prepare(config_with(**CONFIGS[name] | changes)), FEW)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_game_stays_below_the_claim(name):
    row = played(name)
    assert LEAST.get(name, 0.6) < row.found_epsilon / row.claimed_epsilon <= 1
    assert row.claimed_epsilon < row.most_epsilon and row.trials >= FEW.trials


def halved(config, bare, z, numbers, params):
    return GUARDED(config, bare, z / 2, numbers, params)


GUARDED = protection.guarded


@pytest.mark.parametrize(
    "name", ["two exchanges", "integers of clients", "integers of the server"]
)
def test_a_config_with_half_the_noise_is_exposed(name, monkeypatch):
    monkeypatch.setattr(protection, "guarded", halved)
    twice = 2 * CONFIGS[name]["privacy__noise_multiplier"]  # its half is the row's
    assert played(name, privacy__noise_multiplier=twice).broken


def test_an_exchange_that_was_not_counted_is_exposed():
    setup = prepare(config_with(**CONFIGS["two exchanges"]))
    guarantee = setup.experiment.guarantee
    plan = guarantee.plan
    assert plan.releases == 2
    forgotten = guarantee._replace(plan=plan._replace(releases=1))
    own = {"make_guarantee": lambda algorithm, traffic: forgotten}
    vars(setup)["experiment"] = dataclasses.replace(setup.experiment, **own)
    assert config_audit.play(setup, FEW).broken


EXAMPLES = {
    "algorithm": "private_sketching",
    "privacy__unit": "example",
    "privacy__bound": "none",
    "data__clients": 3,
    "cohort__sampling": "everyone",
    "client__batch": 479,
}


@pytest.mark.parametrize(
    ("changes", "words"), [({}, "bound='none'"), (POISSON | EXAMPLES, "unit=client")]
)
def test_what_claims_nothing_of_clients_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        config_audit.run(config_with(**changes), FEW)


@pytest.mark.parametrize(
    ("sampling", "sample", "population", "few"),
    [
        ("everyone", 400, 400, (4, 4)),
        ("poisson", 37, 1000, (0.148, 4)),
        ("fixed", 100, 400, (1, 4)),
        ("fixed", 30, 60, (2, 4)),
        ("fixed", 100, 1437, (3, 43)),  # nearly
        ("fixed", 1, 1000, (1, 64)),  # by far not
    ],
)
def test_few_units_have_the_rate_of_many(sampling, sample, population, few):
    plan = accounting.Plan(1, sample, population, sampling)
    found = canaries.few(plan)
    assert (found.sample, found.population) == pytest.approx(few)
    shared = plan._replace(integers=Integers(16, 100, smallest=100))
    if sampling == "fixed":  # noise in shares is that of two clients at least
        assert canaries.few(shared).sample == max(2, few[0])
