"""A run without a server is a run, and its folder says what crossed which edge."""

import pytest

from fl_sketch.run import NotFinite, run, task_of
from fl_sketch.sweep.sweep import sweep
from fl_sketch.workdir import checkpoint
from tests.run.configs import (
    LENGTHS,
    config_with,
    numbers,
    quiet,
    read_json,
    refused,
    rows_of,
    stop_at,
    table_in,
    untimed,
)

ALONE = {"cohort__sampling": "everyone"}
RING = ALONE | {"network__graph": "ring", "data__clients": 6}
SHORT = {"rounds": 2, "eval_every": 2}
MESSAGE = 4 * 32  # bytes of a sketch of the logistic model
slow = pytest.mark.slow


def edges_of(folder):
    return [list(map(int, row.values())) for row in table_in(folder, "edges.csv")]


def crossed(folder):
    """Returns the bytes over all edges."""
    return sum(there + back for *_, there, back in edges_of(folder))


@slow
@pytest.mark.parametrize(
    ("relay", "more"),
    [
        ("flood", {"compute__data": "streamed"}),
        ("tree", {}),
    ],
    ids=str,
)
def test_a_run_without_a_server_is_the_run_with_one_at_other_prices(
    relay, more, tmp_path
):
    changes = {"rounds": 6, "eval_every": 3, "data__clients": 6} | ALONE | more
    server = rows_of(**changes)
    network = {"network__graph": "regular:3", "network__relay": relay}
    summary = run(config_with(**changes, **network), tmp_path, say=quiet)
    total = crossed(tmp_path)
    for row, theirs in zip(table_in(tmp_path), server, strict=True):
        for name in ("train_loss", "test_loss"):
            assert float(row[name]) == theirs[name]
        assert int(row["bytes_up_total"]) == total * int(row["round"]) // 6
        assert int(row["bytes_down_total"]) == 0
    assert (summary["graph"], summary["relay"]) == ("regular:3", relay)
    assert summary["bytes_over_edges_planned"] * 6 == summary["bytes_up_total"] == total
    assert summary["download"] == "none" and summary["edges"] == 9
    if relay == "tree":
        assert total == 6 * 2 * 5 * MESSAGE


LINE = "0 1\n1 2\n"
GRID = [(0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)]
SQUARE = [(0, 1), (0, 3), (1, 2), (2, 3)]
BY_HAND = {  # graph, relay: clients, edges, and messages over them, there and back
    ("ring", "flood"): (4, SQUARE, [(2, 2)] * 4),
    ("ring", "tree"): (4, SQUARE, [(1, 1), (1, 1), (1, 1), (0, 0)]),
    # 0 1 2
    # 3 4 5
    ("grid:2x3", "flood"): (
        6, GRID, [(2, 4), (3, 3), (4, 2), (3, 3), (3, 3), (2, 4), (4, 2)]),
    ("grid:2x3", "tree"): (6, GRID, [(1, 1)] * 5 + [(0, 0)] * 2),
    ("{}/line", "flood"): (3, [(0, 1), (1, 2)], [(1, 2), (2, 1)]),
    ("{}/line", "tree"): (3, [(0, 1), (1, 2)], [(1, 1), (1, 1)]),
}  # fmt: skip


@slow
@pytest.mark.parametrize(("graph", "relay"), BY_HAND)
def test_the_bytes_of_every_edge_are_those_counted_by_hand(graph, relay, tmp_path):
    (tmp_path / "line").write_text(LINE)
    clients, edges, messages = BY_HAND[graph, relay]
    each = MESSAGE + (4 if relay == "flood" else 0)
    network = {"network__graph": graph.format(tmp_path), "network__relay": relay}
    config = config_with(**SHORT, **ALONE, **network, data__clients=clients)
    run(config, tmp_path / "run", say=quiet)
    assert edges_of(tmp_path / "run") == [
        [*edge, 2 * each * there, 2 * each * back]
        for edge, (there, back) in zip(edges, messages, strict=True)
    ]
    if "line" in graph:  # the run is of the graph that it began with
        (tmp_path / "line").write_text("0 1\n1 2\n0 2\n")
        with refused("line", tmp_path / "run"):
            run(config, tmp_path / "run", say=quiet)


@slow
@pytest.mark.parametrize("algorithm", ["safl", "marina"])  # of lengths that change, too
def test_a_run_that_was_stopped_goes_on_to_the_byte(algorithm, tmp_path, monkeypatch):
    changes = RING | LENGTHS | {"algorithm": algorithm, "compressor__name": "random_k"}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run(config_with(**changes), whole, say=quiet)
    number = stop_at(stopped, 7, monkeypatch, **changes)
    assert checkpoint.rounds(stopped / "checkpoints")[-1] == number < 12
    assert crossed(stopped) < crossed(whole)
    (stopped / "edges.csv").unlink()
    run(config_with(**changes), stopped, say=quiet)
    assert numbers(stopped)[0] == numbers(whole)[0]
    assert numbers(stopped)[1][-1] == numbers(whole)[1][-1]
    for name in ("edges.csv", "params.safetensors", "params.json"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()
    assert crossed(whole) == int(table_in(whole)[-1]["bytes_up_total"])


@slow
def test_a_point_of_a_sweep_is_the_run_of_its_config(tmp_path):
    config = config_with(**RING | SHORT)
    over = ["network.relay=flood,tree", "seed=0,1"]
    sweep(config, over, tmp_path / "sweep", say=quiet)
    best, one = tmp_path / "sweep/best", tmp_path / "one"
    about = read_json(best / "config.json")
    config.seed, config.network.relay = about["seed"], about["network"]["relay"]
    run(config, one, say=quiet)
    rows = table_in(tmp_path / "sweep", "sweep.csv")
    assert untimed(one)[-1]["bytes_up_total"] in {r["bytes_up_total"] for r in rows}
    name = "params.safetensors"
    assert (best / name).read_bytes() == (one / name).read_bytes()
    config.rounds = 4
    for folder in (best, one):
        run(config, folder, extend=True, say=quiet)
    assert edges_of(best) == edges_of(one)
    assert numbers(best)[1] == numbers(one)[1]


@slow
def test_a_run_that_is_lost_says_so():
    with pytest.raises(NotFinite):
        rows_of(**RING | SHORT, server__optimizer="sgd", server__rate=1e38)


@slow
def test_the_first_lines_say_what_crosses_the_graph(tmp_path):
    said = []
    config = config_with(**RING | SHORT, algorithm="fedsketch",
                         sketch__query="heaprix", network__relay="tree")  # fmt: skip
    run(config, tmp_path, say=said.append)
    head = next(line for line in said if "no server:" in line)
    for part in ("6 edges (ring)", "by tree; 20 messages", "6 hops"):
        assert part in head


@pytest.mark.fast
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"network__graph": "rings"}, ["graph=rings"]),
        ({"network__graph": "grid:3x3"}, ["20 nodes", "graph=grid:3x3 of 9"]),
        ({"network__graph": "grid:x"}, ["graph=grid:x"]),
        ({"network__graph": "regular:20"}, ["20"]),
        ({"network__graph": "{}/line"}, ["20 nodes", "/line of 3"]),
        ({"network__graph": "{}/parts"}, ["connected", "2 nodes"]),
        ({"network__graph": "{}"}, ["file of edges", "graph=/"]),
        ({"network__relay": "tre"}, ["'tree'"]),
        ({"network__graph": "none", "network__relay": "tree"}, ["graph=none"]),
        ({"cohort__sampling": "fixed"}, ["'everyone'", "sampling='fixed'"]),
        ({"cohort__weighting": "examples"}, ["'equal'", "weighting='examples'"]),
        ({"cohort__dropout": 0.1}, ["dropout=0.0", "dropout=0.1"]),
        ({"cohort__times": "lognormal(1,1)"}, ["times=''"]),
        ({"cohort__available": "who.csv"}, ["available=''"]),
        ({"download": "model"}, ["'cheapest'", "download='model'"]),
        ({"privacy__bound": "clip"}, ["no privacy", "bound=clip"]),
        ({"algorithm": "dp_fedavg"}, ["no privacy", "dp_fedavg"]),
        ({"algorithm": "private_sketching", "privacy__unit": "example",
          "client__batches": "subsets"}, ["no privacy"]),
        ({"data__clients": 1}, ["nodes - 1=0"]),
        ({"data__clients": 1025}, ["nodes=1025"]),
        ({"network__relay": "tree", "algorithm": "ef21"},
         ["relay=tree", "650 numbers in 1008 bits"]),
        ({"network__relay": "tree", "algorithm": "onebit_adam"}, ["relay=tree"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_without_a_server_is_refused_in_a_line(changes, words, tmp_path):
    (tmp_path / "line").write_text(LINE)
    (tmp_path / "parts").write_text("0 1\n2 3\n")
    network = ALONE | {"network__graph": "ring"} | changes
    named = {
        key: value.format(tmp_path) if isinstance(value, str) else value
        for key, value in network.items()
    }
    with refused("config.network: ", *words):
        task_of(config_with(**named))
