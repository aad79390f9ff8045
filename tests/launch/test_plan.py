"""A plan says what a run will cost, and says it before anything is compiled."""

import re

import pytest

from fl_sketch import theory
from fl_sketch.engine import graph as graphs
from fl_sketch.experiments import plan
from fl_sketch.run import run, task_of
from fl_sketch.theory import Constants
from fl_sketch.workdir.rows import sized
from tests.run.configs import config_with, quiet, rows_of

pytestmark = pytest.mark.slow

CONSTANTS = {name: default for name, (default, _) in plan.CONSTANTS.items()}
CLIPPED = {
    "algorithm": "dp_fedavg", "cohort__sampling": "poisson", "privacy__threshold": 10.0,
}  # fmt: skip
NOISED = CLIPPED | {"privacy__noise_multiplier": 0.01}
SAFL = {"algorithm": "safl", "server__eps": 0.1}
SONG = {"algorithm": "iterative_sketching"}
ONE_STEP = SONG | {"client__steps": 1}
LEAVES = {"sketch__layout": "leaves"}
STORED = {"sketch__operator": "gaussian", "sketch__stored": True}
FEDSKETCH = {"algorithm": "fedsketch", "server__rate": 99.0}
GATE = {"algorithm": "fedsketchgate"}
HEAPRIX = {"sketch__query": "heaprix"}
NORMALISED = {"algorithm": "dp_normfedavg"}


def lines(graph=None, constants=(), convex=True, **changes):
    config = config_with(**changes)
    built = task_of(config)
    graph = graph and graphs.named(graph, config.data.clients)
    problem = CONSTANTS | dict(constants)
    return plan.lines(config, built, problem, convex=convex, graph=graph)


def test_the_bytes_planned_are_the_bytes_sent():
    changes = {"rounds": 3, "download": "model"}
    (row,) = rows_of(eval_every=3, **changes)
    up, down = row["bytes_up_total"], row["bytes_down_total"]
    sent = f"per round: {up // 3} bytes up, {down // 3} down; 3 rounds: "
    sent += f"{sized(up)} up, {sized(down)} down"
    assert sent in lines(**changes)


@pytest.mark.parametrize(
    "changes",
    [{"download": "messages"}, {"download": "model", "client__trains": "bias"}],
)
def test_first_downloads_are_in_the_forecast(changes, tmp_path):
    run(config_with(rounds=1, data__public=True), tmp_path, say=quiet)
    changes |= {"rounds": 12, "model__init_from": str(tmp_path)}
    (row,) = rows_of(eval_every=12, **changes)
    text = "\n".join(lines(**changes))
    (found,) = re.findall(r"about ([\d.]+) MB down, first downloads included", text)
    assert float(found) == pytest.approx(row["bytes_down_total"] / 1e6, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "constants", "found"),
    [
        (SAFL, {}, "Chen et al., Theorem 3.2"),
        (SONG, {}, "Song et al., Theorem 5.3"),
        (SONG, {"target": 1e-6}, r"^  client step .* too many .*: over 1e\+09 steps$"),
        (SAFL, {}, r"rounds of the config: mean \|grad\|\^2 <= [\d.e+]+$"),
        (SONG, {"convexity": 0.1}, "Song et al., Theorem 5.1"),
        (ONE_STEP, {}, "Song et al., Theorem E.2"),
        (ONE_STEP, {"convexity": 0.1}, "Song et al., Theorem E.1"),
        (ONE_STEP, {"convexity": 1.1}, "convexity <= 1 .*E.1.*got convexity=1.1"),
        (ONE_STEP | LEAVES, {}, "layout=whole.*layout=leaves"),
        (SAFL | LEAVES, {}, "layout=whole.*layout=leaves"),
        (SAFL | {"sketch__rows": 3}, {}, "rows=1.*got sketch.rows=3"),
        (SAFL | STORED, {}, "got sketch.stored=True"),
        (SAFL | {"sketch__operator": "uniform_sampling"}, {}, "uniform_sampling"),
        (FEDSKETCH, {}, "Theorem 5, nonconvex, privix"),
        (FEDSKETCH, {"convexity": 0.5}, "Theorem 6, PL, privix"),
        (FEDSKETCH | GATE, {}, "Theorem 3, nonconvex"),
        (FEDSKETCH | GATE | {"server__rate": 1.0}, {}, "server_rate >= .*Haddadpour"),
        (FEDSKETCH | HEAPRIX, {}, "not met .* HEAPRIX .*heavy_values=fresh"),
        (FEDSKETCH | GATE | HEAPRIX, {}, "not met .* HEAPRIX .*heavy_values=fresh"),
        ({"algorithm": "fedavg"}, {}, "Haddadpour et al., Corollary 5"),
        ({"algorithm": "fedavg"}, {"convexity": 0.5}, "Theorem 6, PL"),
        (NOISED, {}, "Das et al., Theorem 2"),
        (NOISED | NORMALISED, {}, "Das et al., Theorem 4"),
        (CLIPPED | NORMALISED, {}, "target_epsilon.* about dp_normfedavg need noise"),
        (NOISED | {"privacy__noise_multiplier": 9.0}, {}, "target > .*Das et al."),
        (NOISED, {"gap": 1.0}, "threshold >= 20 .*got threshold=10"),
        (CLIPPED, {}, "noise_multiplier .* about dp_fedavg need noise"),
        (SAFL, {}, r"^  with target=.*, server.eps=0\.1$"),
        (NOISED, {}, r"^  with target=.*, privacy.threshold=10$"),
        ({"algorithm": "fedopt"}, {}, "no theorem about fedopt"),
        (SONG, {}, r"^    met          every client's loss is convex .*=logistic"),
        (SONG, {}, r"^    not met      all clients .*10 of 20 .* met by cohort.samp"),
        (SONG, {"smoothness": 3.0}, r"^    not checked  .* is L-smooth .*L=3 is"),
        (SONG, {}, r"^  bounded: f\(average\)"),
    ],
)
def test_the_theorem_is_the_one_about_the_algorithm(changes, constants, found):
    printed = lines(constants=constants, **changes)
    assert any(re.search(found, line) for line in printed)


def promised(constants=(), **changes):
    """Returns what a config is promised, and what it was built from."""
    config = config_with(**changes)
    built, problem = task_of(config), CONSTANTS | dict(constants)
    return plan.promised(config, built, problem), config, built.facts["d"]


def test_a_theorem_is_asked_with_the_constants_of_the_config():
    changes = FEDSKETCH | {"sketch__numbers": 100, "sketch__rows": 5}
    bound, config, d = promised(**changes)
    run = Constants(
        smoothness=1, start=1, noise=1, clients=config.cohort.size, d=d, server_rate=99,
        steps=config.client.steps,
    )  # fmt: skip
    kind = {"objective": "nonconvex", "variant": "privix"}
    expected = theory.fedsketch(run, 0.1, cols=20, **kind)
    assert (bound.step, bound.rounds) == (expected.step, expected.rounds)
    assert bound.bits == expected.bits

    bound, config, d = promised({"distance": 3.0}, **NOISED)
    rho = 0.01 / config.cohort.size * (d / config.rounds) ** 0.5
    assert bound.constants.rho == pytest.approx(rho) and bound.constants.b == d
    assert bound.constants.distance == 3 and bound.constants.threshold == 10
    bound, *_ = promised({"convexity": 0.1, "distance": 3.0}, **ONE_STEP)
    assert bound.constants.start == 1.5  # L/2 |w0 - w*|^2


def test_losses_that_are_not_convex_have_theorems_of_their_own():
    for steps, name in ((1, "Song et al., Theorem E.3"), (3, "Theorem G.2")):
        changes = SONG | {"client__steps": steps}
        printed = lines(convex=False, constants={"target": 0.5}, **changes)
        assert any(name in line for line in printed)
    # A paper with one theorem keeps it.
    assert lines(**SAFL) == lines(convex=False, **SAFL)


MESSAGE = 4 * 32 + 4
HEAVY = {"algorithm": "fedsketch", "sketch__query": "heaprix", "sketch__heavy": 10}
ALONE = {"network__graph": "complete", "cohort__sampling": "everyone"}


@pytest.mark.parametrize(
    ("graph", "changes", "found"),
    [
        # 20 nodes on a ring: every message crosses every edge once or twice.
        ("ring", {}, "without a server: 20 edges; flood: .* in 10 hops; per round: "
         f"{20 * 20 * MESSAGE} bytes in total, at most {10 * MESSAGE} over"),
        ("grid:4x5", {}, "tree: .* 38 messages per exchange in 8 hops; per round: "
         f"{38 * 4 * 32} bytes in total, at most {4 * 32} over"),  # node 7 is the root
        ("ring", {"algorithm": "ef21"}, "tree: impossible"),
        # A flood sends its origin with both exchanges.
        ("ring", HEAVY, f"{20 * 20 * (4 * 32 + 4 * 10 + 2 * 4)} bytes in total"),
        (None, ALONE, "without a server: 190 edges"),
        ("ring", ALONE, "without a server: 20 edges"),  # the flag's
        (None, {"algorithm": "ef21", "compressor__compression": 20.0},
         "upload: .* bytes, 20.* times fewer than the model"),
    ],
)  # fmt: skip
def test_a_graph_shows_what_its_messages_cost(graph, changes, found):
    printed = lines(graph=graph, **changes)
    assert any(re.search(found, line) for line in printed)
    served = "network__graph" not in changes
    assert any(line.startswith("per round:") for line in printed) == served
