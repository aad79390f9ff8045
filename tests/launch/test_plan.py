"""A plan says what a run will cost, and says it before anything is compiled."""

import re

import pytest

from fl_sketch.engine import graph as graphs
from fl_sketch.experiments import plan
from fl_sketch.run import begin, build, train
from fl_sketch.run.loop import Watch
from tests.launching import launch
from tests.run.configs import config_with

pytestmark = pytest.mark.slow

CONSTANTS = {name: default for name, (default, _) in plan.CONSTANTS.items()}
CLIPPED = {
    "algorithm": "dp_fedavg", "cohort__sampling": "poisson", "privacy__threshold": 10.0,
}  # fmt: skip
SAFL = {"algorithm": "safl", "server__eps": 0.1}
SONG = {"algorithm": "iterative_sketching"}
ONE_STEP = SONG | {"client__steps": 1}
FEDSKETCH = {"algorithm": "fedsketch", "server__rate": 1.0}


def lines(graph=None, constants=(), convex=True, **changes):
    config = config_with(**changes)
    built = build(config)
    graph = graph and graphs.named(graph, config.data.clients)
    all_constants = CONSTANTS | dict(constants)
    return plan.lines(config, built, all_constants, convex=convex, graph=graph)


def test_the_bytes_planned_are_the_bytes_sent():
    config, rows = config_with(rounds=3, eval_every=3, download="model"), []
    built = build(config)
    train(
        built,
        built.compile(),
        begin(built, config.eval_every),
        rounds=3,
        checkpoint_every=3,
        watch=Watch(row=rows.append),
    )
    (line,) = (
        text for text in lines(rounds=3, download="model") if text.startswith("a round")
    )
    up, down = rows[0]["bytes_up_total"], rows[0]["bytes_down_total"]
    assert f"a round: {up // 3} bytes up and {down // 3} down" in line


def test_a_compressors_message_is_as_short_as_its_bytes():
    (line,) = (
        text
        for text in lines(algorithm="ef21", compressor__compression=20.0)
        if text.startswith("a message")
    )
    assert "bytes, 20" in line and "times fewer than the model's" in line


@pytest.mark.parametrize(
    ("changes", "constants", "found"),
    [
        (SAFL, {}, "Chen et al., Theorem 3.2"),
        (SONG, {}, "Song et al., Theorem 5.3"),
        (SONG, {"target": 1e-6}, "it promises nothing"),
        (SONG, {"convexity": 0.1}, "Song et al., Theorem 5.1"),
        (ONE_STEP, {}, "Song et al., Theorem E.2"),
        (ONE_STEP, {"convexity": 0.1}, "Song et al., Theorem E.1"),
        (ONE_STEP, {"convexity": 1.1}, "convexity <= 1 .*E.1.*got convexity=1.1"),
        (ONE_STEP | {"sketch__layout": "leaves"}, {}, "layout=whole.*layout=leaves"),
        (SAFL | {"sketch__layout": "leaves"}, {}, "layout=whole.*layout=leaves"),
        (SAFL | {"sketch__rows": 3}, {}, "rows=1.*got sketch.rows=3"),
        (
            SAFL | {"sketch__operator": "gaussian", "sketch__stored": True},
            {},
            "got sketch.stored=True",
        ),
        (
            SAFL | {"sketch__operator": "uniform_sampling"},
            {},
            "got operator=uniform_sampling",
        ),
        (FEDSKETCH, {}, "server_rate >= .*Haddadpour et al., Theorem 2"),
        (FEDSKETCH | {"server__rate": 99.0}, {}, "Theorem 2, nonconvex, privix"),
        (FEDSKETCH | {"server__rate": 99.0}, {"convexity": 0.5}, "Theorem 2, pl"),
        (CLIPPED | {"privacy__noise_multiplier": 0.01}, {}, "Das et al., Theorem 2"),
        (CLIPPED | {"privacy__noise_multiplier": 9.0}, {}, "target > .*Das et al."),
        (
            CLIPPED | {"privacy__noise_multiplier": 0.01},
            {"gap": 1.0},
            "threshold >= 20 .*got threshold=10",
        ),
        (CLIPPED, {}, "no theorem here is about dp_fedavg"),
        ({"algorithm": "fedavg"}, {}, "no theorem here is about fedavg"),
    ],
)
def test_the_theorem_is_the_one_about_the_algorithm(changes, constants, found):
    printed = lines(constants=constants, **changes)
    assert any(re.search(found, line) for line in printed)


def test_losses_that_are_not_convex_have_theorems_of_their_own():
    for steps, name in ((1, "Song et al., Theorem E.3"), (3, "Theorem G.2")):
        changes = SONG | {"client__steps": steps}
        printed = lines(convex=False, constants={"target": 0.5}, **changes)
        assert any(name in line for line in printed)
    # A paper with one theorem keeps it.
    assert lines(**SAFL) == lines(convex=False, **SAFL)


def test_a_graph_shows_what_flooding_costs():
    # 20 nodes on a ring: every message crosses every edge once or twice.
    (line,) = (text for text in lines(graph="ring") if "without a server" in text)
    assert "20 edges, everything everywhere after 10 hops" in line
    message = 4 * 32 + 4
    assert f"{20 * 20 * message} bytes in all, at most {10 * message} over" in line


def test_a_graph_shows_what_sums_on_a_tree_cost():
    (line,) = (text for text in lines(graph="grid:4x5") if "on a tree" in text)
    assert "38 messages an exchange, 8 hops" in line  # node 7 is 4 from the corners
    assert f"{38 * 4 * 32} bytes in all, at most {4 * 32} over" in line
    found = lines(graph="ring", algorithm="ef21")
    assert any("not on a tree: sums of these" in text for text in found)


def test_a_flood_sends_its_origin_with_both_exchanges():
    own = {"algorithm": "fedsketch", "sketch__query": "heaprix", "sketch__heavy": 10}
    (line,) = (t for t in lines(graph="ring", **own) if "without a server" in t)
    assert f"{20 * 20 * (4 * 32 + 4 * 10 + 2 * 4)} bytes in all" in line


def test_a_config_without_a_server_says_what_its_own_graph_costs():
    own = {"network__graph": "complete", "cohort__sampling": "everyone"}
    found = lines(**own)
    assert any("without a server: 190 edges" in text for text in found)
    assert not any(text.startswith("a round:") for text in found)
    (line,) = (text for text in lines(graph="ring", **own) if "without" in text)
    assert "20 edges" in line  # the flag's


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--graph=grid:3",), "graph=grid:3"),
        (("--graph=ring", "--target=-1"), "target=-1.0"),
        (("--graph=/no/such",), "/no/such"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(arguments, words):
    done = launch("launch.plan", "--config=configs/default.py", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert words in done.stderr
