"""The theorems' numbers: as printed, consistent, and above what is measured."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import algorithms, engine, sketch, theory
from tests.meshes import mesh_of
from tests.oracles import das
from tests.simulation import compiled

CLIENTS, D, B, STEPS = 5, 24, 6, 3


@dataclasses.dataclass(frozen=True)
class Quadratics:
    """f_c(x) = (x - o_c)' Q_c (x - o_c) / 2, and what the theorem asks about them."""

    matrices: np.ndarray
    optima: np.ndarray

    def loss(self, params, client):
        off = params - jnp.asarray(self.optima)[client]
        return off @ jnp.asarray(self.matrices)[client] @ off / 2

    @property
    def best(self):
        total = self.matrices.sum(0)
        pulls = np.einsum("cij,cj->i", self.matrices, self.optima)
        return np.linalg.solve(total, pulls)

    def excess(self, params):
        gap = params - self.best
        return float(gap @ self.matrices.mean(0) @ gap / 2)

    def constants(self):
        values = np.linalg.eigvalsh(self.matrices)
        pulls = np.einsum("cij,cj->ci", self.matrices, self.best - self.optima)
        return {
            "smoothness": float(values.max()),
            "convexity": float(values.min()),
            "distance": float(self.best @ self.best),
            "spread": float((pulls**2).sum(1).mean()),
        }


def quadratics(apart):
    draw = np.random.default_rng(4)
    roots = draw.normal(size=(CLIENTS, D, 2 * D)) / (2 * D) ** 0.5
    matrices = roots @ roots.transpose(0, 2, 1) + 0.3 * np.eye(D)
    optima = 2 + apart * draw.normal(size=(CLIENTS, D))
    return Quadratics(matrices.astype(np.float32), optima.astype(np.float32))


OPERATORS = {
    "gaussian": sketch.gaussian(B),
    "count_sketch": sketch.count_sketch(B),
    "srht": sketch.srht(B),
}


@pytest.mark.parametrize(
    ("name", "steps", "apart"),
    [
        pytest.param("gaussian", STEPS, 1.0, marks=pytest.mark.slow),
        pytest.param("srht", STEPS, 0.0, marks=pytest.mark.slow),
        ("count_sketch", 1, 1.0),
    ],
)
def test_the_measured_error_stays_below_the_bound_of_theorem_5_1(name, steps, apart):
    problem, op = quadratics(apart), OPERATORS[name]
    constants = problem.constants()
    alpha = theory.alpha(name, D, B)
    step = theory.largest_step(
        smoothness=constants["smoothness"], steps=steps, alpha=alpha
    )
    algorithm = algorithms.iterative_sketching(
        problem.loss, sketch=op, client_rate=step
    )
    one_round = engine.make_round(
        algorithm,
        lambda data, client, plan, key: jnp.full(steps, client),
        mesh_of(1, "clients"),
    )
    run = compiled(
        functools.partial(
            engine.run_rounds, one_round, engine.everyone(CLIENTS), most=1
        )
    )
    keys = [jax.random.key(seed) for seed in range(8)]
    start = engine.initial_state(algorithm, jnp.zeros(D), CLIENTS)
    states, before = [start] * len(keys), 0
    for stop in (10, 100, 1000):
        states = [
            run(state, key, None, stop - before)[0]
            for state, key in zip(states, keys, strict=True)
        ]
        before = stop
        ends = [np.asarray(state.server.params) for state in states]
        measured = np.mean([problem.excess(end) for end in ends])
        bound = theory.strongly_convex_error(
            step=step, rounds=stop, steps=steps, **constants
        )
        assert 0 <= measured < bound
    assert measured < problem.excess(np.zeros(D)) / 3  # it did converge, too


CONVEX = {"smoothness": 2.0, "distance": 5.0, "alpha": 12.0, "clients": 4, "b": 100}


@pytest.mark.parametrize("spread", [0.0, 1e-6, 30.0])
@pytest.mark.parametrize("steps", [1, 4])
def test_promised_rounds_are_enough_by_the_bounds_themselves(spread, steps):
    for target in (1e-1, 1e-3):
        same = {"smoothness": 2.0, "distance": 5.0, "spread": spread, "steps": steps}
        plan = theory.strongly_convex(
            target=target, convexity=0.2, steps=steps, spread=spread, **CONVEX
        )
        found = theory.strongly_convex_error(
            step=plan.step, rounds=plan.rounds, convexity=0.2, **same
        )
        assert found <= target * (1 + 1e-9)
        plan = theory.convex(target=target, steps=steps, spread=spread, **CONVEX)
        found = theory.convex_error(step=plan.step, rounds=plan.rounds, **same)
        assert 0.4 * target <= found <= target * (1 + 1e-9)


def test_bits_do_not_grow_as_the_sketch_shrinks():
    """Song's trade, below Corollary 5.2: (1 + alpha) b stays about a d."""
    bits = [
        theory.strongly_convex(
            target=0.01, smoothness=1.0, convexity=0.1, distance=1.0, spread=0.0,
            alpha=theory.alpha("srht", 10_000, b), clients=10, b=b,
        ).bits
        for b in (10_000, 1000, 100, 10)
    ]  # fmt: skip
    assert bits == sorted(bits, reverse=True) and bits[0] < 1.51 * bits[-1]


def test_the_values_of_a_hand_calculation():
    assert theory.alpha("count_sketch", 100, 10) == 30
    assert theory.alpha("uniform_sampling", 100, 10) == 9
    assert theory.alpha("identity", 100, 100) == 0
    assert theory.largest_step(smoothness=0.5, steps=5, alpha=1.0) == 1 / 40
    error = theory.strongly_convex_error(
        step=0.1, rounds=100, steps=2, smoothness=2.0, convexity=0.5, distance=3.0,
        spread=0.25,
    )  # fmt: skip
    assert error == pytest.approx(3 * math.exp(-5) + 4 * 0.01 * 4 * 8 * 0.25 / 0.5)


ADAPTIVE = theory.Adaptive(
    smoothness=2.0, intrinsic=10.0, gradient=1.0, noise=0.3, loss=2.3, rate=0.01,
    b1=0.9, eps=0.5,
)  # fmt: skip
SIZES = {"steps": 2, "clients": 5, "d": 10_000, "b": 10_000}


def test_safl_needs_the_fewest_rounds_that_do():
    plan = theory.adaptive(ADAPTIVE, target=5.0, **SIZES)
    bound = functools.partial(theory.adaptive_long_run_error, ADAPTIVE, **SIZES)
    assert bound(rounds=plan.rounds) <= 5 < bound(rounds=plan.rounds - 1)
    assert plan.step == 1 / (2 * math.sqrt(plan.rounds))
    assert plan.bits == 32 * 5 * 10_000 * plan.rounds


def test_corollary_1_follows_from_theorem_3_2():
    """Whose bound at that step is smaller: 1 / J_1 <= 2 eps, and G / K^2 <= G."""
    for rounds in (10**6, 10**9):
        step = 1 / (2 * math.sqrt(rounds))
        whole = theory.adaptive_error(ADAPTIVE, step=step, rounds=rounds, **SIZES)
        short = theory.adaptive_long_run_error(ADAPTIVE, rounds=rounds, **SIZES)
        assert short / 8 < whole < short


def test_the_adaptive_bound_at_values_of_one():
    ones = theory.Adaptive(1, 1, 1, 0, 1, 1, 0.0, 1, delta=1.0, delta_g=1.0, nu=0.0)
    # log(1) = 0: J_1 = 1/2; loss 1 + smooth 1 + curved 10, over kappa eta J_1 K T.
    found = theory.adaptive_error(ones, step=1, rounds=1, steps=1, clients=1, d=1, b=1)
    assert found == 24
    found = theory.adaptive_long_run_error(ones, rounds=1, steps=1, clients=1, d=1, b=1)
    assert found == 4 * 5 + 2 + 2


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
    found = theory.clipped_error(
        rho=0.1, alpha=3, gamma=4, smoothness=2, steps=5, threshold=10, distance=8,
        gap=0.5,
    )  # fmt: skip
    assert found == pytest.approx(0.1 * (2 * (4 + 2) + 15 * 0.5 / 6))


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
        (lambda: theory.alpha("count", 10, 5), "operator='count'"),
        (lambda: theory.largest_step(smoothness=0, steps=1, alpha=1.0), "smoothness=0"),
        (lambda: theory.fedsketch("pi", "privix", **FEDSKETCH), "objective='pi'"),
        (lambda: theory.fedsketch("pl", "prvix", **FEDSKETCH), "mean 'privix'"),
        (
            lambda: theory.convex(target=-1.0, spread=0.0, **CONVEX),
            "target > 0 and finite, got target=-1.0",
        ),
    ],
)
def test_constants_that_make_no_sense_are_refused_in_a_line(call, words):
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
