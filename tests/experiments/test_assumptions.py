"""Each assumption of a theorem is met, not met or not checked for a config."""

import inspect
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from fl_sketch import theory
from fl_sketch.core.mappings import flat
from fl_sketch.experiments import assumptions, plan
from fl_sketch.theory import Assumption, Constants
from tests.run.configs import config_with

PROBLEM = {name: default for name, (default, _) in plan.CONSTANTS.items()}
WHOLE: dict[str, Any] = {"client__batches": "whole"}
SONG = {"algorithm": "iterative_sketching"}
DAS = {"algorithm": "dp_fedavg"}
MLP = {"model__name": "mlp"}
DECAY = {"model__weight_decay": 0.1}
ALL = {"cohort__sampling": "everyone"}


def verdict(about, value=math.nan, **changes):
    """Returns how a config stands to an assumption: the verdict, and its reason."""
    one = Assumption(about, "THE SENTENCE", value)
    (line,) = assumptions.lines(config_with(**changes), PROBLEM, [one])
    found = re.fullmatch(r"(.*\S) +THE SENTENCE \[(.*)\]", line)
    assert found, line
    status, why = found.groups()
    return status, why


@pytest.mark.parametrize(
    ("about", "value", "met", "unmet", "numbers"),
    [
        ("convex", math.nan, {}, MLP, "model.name=mlp"),
        ("strongly_convex", 0.1, DECAY, {}, "model.weight_decay=0.1"),
        ("full_gradients", math.nan, WHOLE, {}, "client.batches=whole"),
        ("plain", math.nan, SONG, SONG | {"client__optimizer": "adamw"},
         "client.optimizer=adamw; met by client.optimizer=sgd"),
        ("plain", math.nan, {"algorithm": "fedavg"},
         {"algorithm": "fedavg", "client__proximal": 0.1}, "client.proximal=0.1"),
        ("bare", math.nan, {}, {"privacy__bound": "clip"}, "privacy.bound=clip"),
        ("bare", math.nan, {}, {"client__clip": 2.0}, "client.clip=2"),
        ("everyone", math.nan, ALL, {}, "10 of 20 clients"),
        ("everyone", math.nan, {"cohort__size": 20}, {}, "10 of 20 clients"),
        ("everyone", math.nan, ALL, ALL | {"cohort__dropout": 0.1}, "dropout=0.1"),
        ("fixed_cohorts", math.nan, {}, {"cohort__sampling": "poisson"}, "poisson"),
        ("server_rate", 1.0, SONG | {"server__rate": 1.0}, SONG,
         "server.rate=0.01; met by server.rate=1"),
        ("server_rate", 1.0, DAS | {"server__rate": 1.0, "server__optimizer": "sgd"},
         DAS | {"server__rate": 1.0}, "server.optimizer=adam"),
        ("amsgrad", math.nan, {"server__optimizer": "paper_amsgrad"}, {}, "=adam"),
        ("fresh_sketch", math.nan, {}, {"algorithm": "fetchsgd"}, "fetchsgd has one"),
        ("shared_sketch", math.nan, {}, {"sketch__operator": "srht"}, "=srht"),
        ("fresh_values", math.nan,
         {"algorithm": "fedsketch", "sketch__heavy_values": "fresh"},
         {"algorithm": "fedsketch"}, "met by sketch.heavy_values=fresh"),
        ("rows", 25, {"sketch__rows": 25}, {}, "=1; met by sketch.rows=25"),
        ("step_most", 0.1, {}, {"client__rate": 0.11}, "met by client.rate=0.1"),
        ("step_product", 0.001, {}, {"server__rate": 1.0}, "by client.rate=0.001"),
        ("step", 0.2, {"client__rate": 0.2}, {}, "met by client.rate=0.2"),
        ("steps", 1, {"client__steps": 1}, {}, "met by client.steps=1"),
        ("rounds", 100.5, {"rounds": 101}, {}, "=100; met by rounds=101"),
        ("threshold", 2, {"privacy__threshold": 2.0}, {}, "privacy.threshold=2"),
        ("homogeneous", math.nan, {"data__clients": 1},
         {"data__partition": "dirichlet"}, "=iid comes closest"),
    ],
)  # fmt: skip
def test_keys_decide_and_say_what_would_meet_it(about, value, met, unmet, numbers):
    assert verdict(about, value, **met)[0] == "met"
    status, why = verdict(about, value, **unmet)
    assert status == "not met" and numbers in why


@pytest.mark.parametrize(
    ("about", "changes", "flag"),
    [
        ("smooth", {}, "L=1 is --smoothness"),
        ("gradient", {}, "G=1 is --gradient"),
        ("intrinsic", {}, "I=10"),
        ("variance", {}, "sigma=1 is --noise"),
        ("subgaussian", {}, "sigma=1 is --noise"),
        ("homogeneous", {}, "data.partition=iid"),
        ("pl", MLP, "--convexity"),
        ("convex", MLP | {"client__trains": "head"}, "client.trains=head"),
        ("convex", {"model__name": "own.py:MODEL"}, "own.py:MODEL is your own"),
        ("strongly_convex", {"model__loss": "squared"}, "model.weight_decay=0"),
    ],
)
def test_what_no_config_decides_is_not_checked(about, changes, flag):
    status, why = verdict(about, 0.1, **changes)
    assert status == "not checked" and flag in why


def test_full_gradients_have_no_noise_to_bound():
    assert verdict("variance", **WHOLE)[0] == "met"
    assert verdict("variance", **WHOLE, data__augment="flip")[0] == "not checked"


def test_a_value_that_would_meet_it_does():
    most = 0.12346
    _, why = verdict("step_most", most, client__rate=1.0)
    rate = float(why.rpartition("=")[2])
    assert rate == 0.1234 and verdict("step_most", most, client__rate=rate)[0] == "met"


def bounds():
    """Returns a bound of each theorem that `launch.plan` knows."""
    c = Constants(
        smoothness=1.0, convexity=0.1, distance=1.0, start=1.0, spread=0.0, gap=0.0,
        gradient=1.0, intrinsic=1.0, noise=1.0, operator="srht", d=100, b=50, clients=2,
        steps=2, server_rate=9.0, b1=0.0, eps=1.0, threshold=1e3, rho=1e-6,
    )  # fmt: skip
    yield theory.adaptive_long_run(c, 0.5)
    yield theory.clipped(c, 1.0)
    yield theory.normalised(c, 1.0)
    yield theory.fedavg_nonconvex(c, 0.1)
    yield theory.fedsketchgate(c, 0.1, objective="pl", variant="heaprix", cols=50)
    for objective in ("pl", "nonconvex"):
        kind = {"objective": objective, "variant": "heaprix"}
        yield theory.fedsketch(c, 0.1, **kind, cols=50)
    for objective in ("strongly_convex", "convex", "nonconvex"):
        for steps in (1, 2):
            now = replace(c, steps=steps)
            yield theory.iterative_sketching(now, objective, 0.1)


def test_every_assumption_has_its_check_and_its_keys_exist():
    names = {one.about for bound in bounds() for one in bound.assumptions}
    assert names == assumptions.CHECKS.keys()
    keys = re.findall(r'"([a-z]+\.[a-z_0-9]+)"', inspect.getsource(assumptions))
    assert set(keys) <= flat(config_with()).keys()
