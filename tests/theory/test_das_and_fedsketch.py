"""Das et al.'s and Haddadpour et al.'s numbers: as printed, and consistent."""

import math

import numpy as np
import pytest

from fl_sketch import theory
from tests.oracles import das

FEDSKETCH = {
    "target": 0.1, "smoothness": 2.0, "condition": 10.0, "clients": 4, "d": 1000,
    "cols": 100, "server_rate": 4.0,
}  # fmt: skip
OMEGA = math.e * 10


@pytest.mark.parametrize(
    ("objective", "variant", "rounds", "local"),
    [
        ("nonconvex", "privix", 10, (OMEGA + 1) / 0.4),
        ("nonconvex", "heaprix", 10, OMEGA / 0.4),
        ("pl", "privix", (OMEGA / 4 + 1) * 10 * math.log(10),
         (OMEGA + 1) / (4 * (OMEGA / 4 + 1) * 0.1)),
        ("convex", "heaprix", 20 * ((OMEGA - 1) / 4 + 1) * math.log(10),
         OMEGA**2 / (4 * ((OMEGA - 1) / 4 + 1) ** 2 * 0.01)),
    ],
)  # fmt: skip
def test_theorem_2_is_as_printed(objective, variant, rounds, local):
    plan = theory.fedsketch(objective, variant, **FEDSKETCH)
    assert plan.rounds == math.ceil(rounds - 1e-9)
    assert plan.local_steps == math.ceil(local)
    omega = OMEGA - (variant == "heaprix")
    if objective == "nonconvex":
        printed = math.sqrt(4 / (plan.rounds * plan.local_steps * (omega / 4 + 1)))
        assert plan.step == pytest.approx(printed / 8)
    else:
        printed = 1 / (2 * 2 * (omega / 4 + 1) * plan.local_steps * 4)
        assert plan.step == pytest.approx(printed)
    numbers = math.ceil(100 * math.log(1000 * plan.rounds / 1e-3))
    assert plan.bits == 32 * 4 * numbers * plan.rounds


@pytest.mark.parametrize(
    ("objective", "variant", "rounds", "local"),
    [
        ("nonconvex", "privix", (OMEGA + 1) / 0.1, 2.5),
        ("nonconvex", "heaprix", OMEGA / 0.1, 2.5),
        ("pl", "heaprix", OMEGA * 10 * math.log(10), 2.5),
        ("convex", "privix", 20 * (OMEGA + 1) * math.log(10), 25),
    ],
)
def test_theorem_3_is_as_printed(objective, variant, rounds, local):
    plan = theory.fedsketch(objective, variant, tracking=True, **FEDSKETCH)
    assert plan.rounds == math.ceil(rounds - 1e-9)
    assert plan.local_steps == math.ceil(local - 1e-9)


DAS = {"smoothness": 1.0, "distance": 4.0, "gap": 0.0}


def test_clipping_at_the_values_of_a_hand_calculation():
    # A: 20 / 5 (2 8 / 4 + 4 / 2) rho; B: 3 5 0.5 / (2 3) rho.
    assert clipping(alpha=3) == pytest.approx(0.1 * (4 * (4 + 2) + 15 * 0.5 / 6))


@pytest.mark.parametrize("gap", [0.0, 0.2])
@pytest.mark.parametrize("target", [0.09, 0.5])
def test_rounds_of_theorem_2_are_enough_by_its_bound(gap, target):
    same = DAS | {"gap": gap, "rho": 0.01, "steps": 5, "threshold": 10.0}
    plan = theory.clipped(target=target, clients=3, d=7, **same)
    alpha = 0.01 / (2 * plan.step)
    assert alpha >= 1 and alpha / (2 * 0.01) >= 5
    assert 0 <= plan.rounds - 2 * alpha * 2 / (10 * 0.01**2) <= 1 + 1e-6
    assert theory.clipped_error(alpha=alpha, gamma=2.0, **same) <= target * (1 + 1e-9)
    assert plan.bits == 32 * 3 * 7 * plan.rounds
    with pytest.raises(theory.Unreachable, match="cannot promise less than 0.08"):
        theory.clipped(target=0.08, clients=3, d=7, **same)


@pytest.mark.parametrize(
    ("clients", "apart"), [pytest.param(20, 0.05, marks=pytest.mark.slow), (60, 0.3)]
)
def test_the_measured_error_stays_below_the_bound_of_das_theorem_2(clients, apart):
    rng, d, steps = np.random.default_rng(3), 10, 4
    optima = 1 + apart * rng.normal(size=(clients, d))
    best = optima.mean(0)
    own = ((optima - best) ** 2).sum(1) / 2  # Delta of every client, L = 1
    known = DAS | {"distance": float(best @ best), "gap": float(own.max())}
    threshold = 1.01 * 4 * steps * math.sqrt(own.max())
    known |= {"rho": 0.02, "steps": steps, "threshold": threshold}
    target = 1.5 * theory.clipped_error(
        alpha=1e9, gamma=float(best @ best) ** 0.5, **known
    )
    plan = theory.clipped(target=target, clients=clients / 2, d=d, **known)
    alpha, sigma = 0.02 / (2 * plan.step), threshold * 0.02 * (plan.rounds / d) ** 0.5
    measured = []
    for _ in range(5):
        iterates = das.run(
            optima,
            [np.flatnonzero(rng.random(clients) < 0.5) for _ in range(plan.rounds)],
            sigma * rng.normal(size=(plan.rounds, d)),
            bound="clip", rate=plan.step, decay=1.0, steps=steps, limit=threshold,
            momentum=0.0, gamma=1.0,
        )  # fmt: skip
        # u of exact steps on |w - o|^2 / 2, along the same line from w to o.
        away = np.linalg.norm(np.asarray(iterates[:-1])[:, None] - optima, axis=2)
        u = away * (1 - (1 - plan.step) ** steps) / plan.step
        worse = away**2 / 2 - own
        share = 0.02 * steps / alpha
        measured.append(
            np.where(
                u <= threshold,
                (2 - share - share**2) * worse,
                3 * threshold * u / (8 * steps**2),
            ).mean()
        )
    start = best @ best / 2
    assert 0 < np.mean(measured) < min(target, 2 * start)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theory.fedsketch("pi", "privix", **FEDSKETCH), "objective='pi'"),
        (lambda: theory.fedsketch("pl", "prvix", **FEDSKETCH), "mean 'privix'"),
        (
            lambda: theory.fedsketch("pl", "privix", **FEDSKETCH | {"server_rate": 3}),
            "Theorem 2 asks for server_rate >= 4, got server_rate=3",
        ),
        (
            lambda: theory.fedsketch("pl", "privix", **FEDSKETCH | {"cols": 1001}),
            "cols <= 1000",
        ),
        (
            lambda: theory.fedsketch(
                "pl", "privix", tracking=True, **FEDSKETCH | {"condition": 0.5}
            ),
            "Theorem 3 asks for condition >= 1",
        ),
        (lambda: clipping(alpha=0.9), "alpha >= 1, got alpha=0.9"),
        (lambda: clipping(alpha=1.0, rho=0.2), "alpha >= 2, got alpha=1"),
        (lambda: clipping(alpha=2.0, threshold=19.0), "threshold >= 20, got"),
    ],
)
def test_what_a_theorem_does_not_speak_of_is_refused_in_a_line(call, words):
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def clipping(**changes):
    known = {
        "rho": 0.1, "gamma": 4, "smoothness": 2, "steps": 5, "threshold": 20.0,
        "distance": 8, "gap": 0.5,
    }  # fmt: skip
    return theory.clipped_error(**known | changes)
