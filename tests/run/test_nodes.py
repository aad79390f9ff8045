"""A run without a server is a run, and its folder says what crossed which edge."""

import csv
import json

import jax
import numpy as np
import pytest
from fl_sketch.run.loop import Watch
from fl_sketch.run.nodes import Apart

from fl_sketch.run import begin, build, run, train
from fl_sketch.sweep.sweep import sweep
from fl_sketch.workdir import checkpoint, weights
from tests.run.configs import config_with
from tests.run.test_run import numbers, stop_at

ALONE = {"cohort__sampling": "everyone"}
RING = ALONE | {"network__graph": "ring", "data__clients": 6}
LENGTHS = {"rounds": 12, "eval_every": 5, "checkpoint_every": 3}
SHORT = {"rounds": 2, "eval_every": 2}
MESSAGE = 4 * 32  # bytes of a sketch of the logistic model
slow = pytest.mark.slow


def quiet(line):
    del line


def rows_of(folder, name="metrics.csv"):
    return list(csv.DictReader((folder / name).read_text().splitlines()))


def edges_of(folder):
    return [
        [int(cell) for cell in row.values()] for row in rows_of(folder, "edges.csv")
    ]


@slow
@pytest.mark.parametrize("relay", ["flood", "tree"])
def test_a_run_without_a_server_learns_what_one_with_a_server_does(relay, tmp_path):
    changes = {"rounds": 6, "eval_every": 3, "data__clients": 6}
    with_server = config_with(**changes, **ALONE)
    run(with_server, tmp_path / "server", say=quiet)
    config = config_with(**changes, **ALONE, network__graph="regular:3",
                         network__relay=relay)  # fmt: skip
    summary = run(config, tmp_path / relay, say=quiet)
    both = zip(rows_of(tmp_path / relay), rows_of(tmp_path / "server"), strict=True)
    for row, theirs in both:
        for name in ("train_loss", "test_loss"):
            assert float(row[name]) == pytest.approx(float(theirs[name]), rel=1e-4)
        sent = {"flood": None, "tree": 2 * 5 * MESSAGE * int(row["round"])}[relay]
        total = sum(there + back for *_, there, back in edges_of(tmp_path / relay))
        assert int(row["bytes_up_total"]) == (sent or total * int(row["round"]) // 6)
        assert int(row["bytes_down_total"]) == 0
    assert (summary["graph"], summary["relay"]) == ("regular:3", relay)
    assert summary["bytes_over_edges_planned"] * 6 == summary["bytes_up_total"]
    assert summary["download"] == "none" and summary["client_state"] == "devices"
    # Parameters and two moments of Adam's, its count and the round's number.
    assert summary["client_state_bytes"] == 6 * 4 * (3 * 650 + 2)
    # The model that is taken away is that of the nodes.
    held = np.load(tmp_path / relay / "checkpoints/round_00000006.npz")
    arrays = weights.load_params(tmp_path / relay)["dense"]
    nodes = held["state/clients/server/params/dense/kernel"]
    assert nodes.shape == (6, *arrays["kernel"].shape)
    assert (nodes == arrays["kernel"]).all()


LINE = "0 1\n1 2\n"
BY_HAND = {  # graph, relay: clients, edges, and messages over them, there and back
    ("ring", "flood"): (4, [(0, 1), (0, 3), (1, 2), (2, 3)], [(2, 2)] * 4),
    ("ring", "tree"): (4, [(0, 1), (0, 3), (1, 2), (2, 3)],
                       [(1, 1), (1, 1), (1, 1), (0, 0)]),
    # 0 1 2
    # 3 4 5
    ("grid:2x3", "flood"): (6, [(0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)],
                            [(2, 4), (3, 3), (4, 2), (3, 3), (3, 3), (2, 4), (4, 2)]),
    ("grid:2x3", "tree"): (6, [(0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)],
                           [(1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)]),
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


@slow
@pytest.mark.parametrize("algorithm", ["safl", "marina"])  # of lengths that change, too
def test_a_run_that_was_stopped_goes_on_to_the_byte(algorithm, tmp_path, monkeypatch):
    changes = RING | LENGTHS | {"algorithm": algorithm, "compressor__name": "random_k"}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run(config_with(**changes), whole, say=quiet)
    number = stop_at(stopped, 7, monkeypatch, **changes)
    assert checkpoint.rounds(stopped / "checkpoints")[-1] == number < 12
    assert sum(map(sum, edges_of(stopped))) < sum(map(sum, edges_of(whole)))
    (stopped / "edges.csv").unlink()
    run(config_with(**changes), stopped, say=quiet)
    assert numbers(stopped)[0] == numbers(whole)[0]
    assert numbers(stopped)[1][-1] == numbers(whole)[1][-1]
    for name in ("edges.csv", "params.safetensors", "params.json"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()
    total = sum(there + back for *_, there, back in edges_of(whole))
    assert total == int(rows_of(whole)[-1]["bytes_up_total"])


@slow
def test_a_point_of_a_sweep_is_the_run_of_its_config(tmp_path):
    config = config_with(**RING | SHORT)
    over = ["network.relay=flood,tree", "seed=0,1"]
    sweep(config, over, tmp_path / "sweep", say=quiet)
    kept = json.loads((tmp_path / "sweep/best/config.json").read_text())
    config.seed, config.network.relay = kept["seed"], kept["network"]["relay"]
    run(config, tmp_path / "one", say=quiet)
    best = tmp_path / "sweep/best"
    for name in ("edges.csv", "params.safetensors"):
        assert (best / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    config.rounds = 4
    for folder in (best, tmp_path / "one"):
        run(config, folder, extend=True, say=quiet)
    assert edges_of(best) == edges_of(tmp_path / "one")
    assert numbers(best)[1] == numbers(tmp_path / "one")[1]


@slow
def test_nodes_that_are_no_longer_alike_end_a_run():
    experiment = build(config_with(**RING | SHORT))
    compiled, rows = experiment.compile(), []
    progress = begin(experiment, 2)

    def moved(leaf):
        return leaf.at[4].add(1e-6) if leaf.dtype == np.float32 else leaf

    nodes = progress.state.clients
    nodes = nodes._replace(server=jax.tree.map(moved, nodes.server))
    apart = progress._replace(state=progress.state._replace(clients=nodes))
    with pytest.raises(Apart, match="after round 2, got another one at node 4") as said:
        train(experiment, compiled, apart, checkpoint_every=2,
              watch=Watch(row=rows.append))  # fmt: skip
    assert "\n" not in str(said.value) and not rows


@slow
def test_nodes_that_are_all_lost_are_alike_and_the_loss_says_so():
    config = config_with(**RING | SHORT, server__optimizer="sgd", server__rate=1e38)
    experiment = build(config)
    with pytest.raises(RuntimeError, match="loss is (nan|inf)"):
        train(experiment, experiment.compile(), begin(experiment, 2),
              checkpoint_every=2)  # fmt: skip


@slow
def test_the_first_lines_say_what_crosses_the_graph(tmp_path):
    said = []
    config = config_with(**RING | SHORT, algorithm="fedsketch",
                         sketch__query="heaprix", network__relay="tree")  # fmt: skip
    run(config, tmp_path, say=said.append)
    head = next(line for line in said if "a message:" in line)
    assert "the 6 edges of ring: a round takes 20 messages by tree, " in head
    assert head.endswith("an exchange 6 hops")
    assert any("updates of all nodes" in line for line in said)
    assert any("states of 6 clients" in line for line in said)


NETWORK = {"network__graph": "ring"}


@pytest.mark.fast
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"network__graph": "rings"}, "graph to be ring, .*graph=rings"),
        ({"network__graph": "grid:3x3"}, "graph of 20 nodes.*graph=grid:3x3 of 9"),
        ({"network__graph": "grid:x"}, "graph=grid:x"),
        ({"network__graph": "regular:20"}, "got 20"),
        ({"network__graph": "{}/line"}, "graph of 20 nodes.*/line of 3"),
        ({"network__graph": "{}/parts"}, "connected graph, got 2 nodes out of reach"),
        ({"network__graph": "{}"}, "or a file of edges, got graph=/"),
        ({"network__relay": "tre"}, "Did you mean 'tree'"),
        ({"network__graph": "none", "network__relay": "tree"}, "got graph=none"),
        ({"cohort__sampling": "fixed"}, "sampling='everyone' .*got .*='fixed'"),
        ({"cohort__weighting": "examples"}, "weighting='equal'"),
        ({"cohort__dropout": 0.1}, "dropout=0.0"),
        ({"cohort__times": "lognormal(1,1)"}, "times=''"),
        ({"cohort__available": "who.csv"}, "available=''"),
        ({"download": "model"}, "download='cheapest'"),
        ({"compute__data": "streamed"}, "data='resident'"),
        ({"compute__clients": "host"}, "clients='devices'"),
        ({"compute__updates": "recompute"}, "updates='keep'"),
        ({"privacy__bound": "clip"}, "nobody to be protected.*bound=clip"),
        ({"algorithm": "dp_fedavg"}, "nobody to be protected.*dp_fedavg"),
        ({"algorithm": "private_sketching", "privacy__unit": "example",
          "client__batches": "subsets"},
         "nobody to be protected"),
        ({"data__clients": 1}, "nodes - 1=0"),
        ({"data__clients": 1025}, "nodes=1025"),
        ({"network__relay": "tree", "algorithm": "ef21"},
         "32 bits a number.*relay=tree, got messages of 650 numbers in 1008 bits"),
        ({"network__relay": "tree", "algorithm": "onebit_adam"}, "own number of bits"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_without_a_server_is_refused_in_a_line(changes, words, tmp_path):
    (tmp_path / "line").write_text(LINE)
    (tmp_path / "parts").write_text("0 1\n2 3\n")
    named = {
        key: value.format(tmp_path) if isinstance(value, str) else value
        for key, value in (ALONE | NETWORK | changes).items()
    }
    with pytest.raises(ValueError, match=words) as caught:
        build(config_with(**named))
    assert str(caught.value).startswith("config.network: ")
    assert "\n" not in str(caught.value)


@slow
def test_a_graph_of_a_file_is_the_one_that_a_run_began_with(tmp_path):
    (tmp_path / "line").write_text(LINE)
    config = config_with(**SHORT, **ALONE, data__clients=3,
                         network__graph=f"{tmp_path}/line")  # fmt: skip
    run(config, tmp_path / "run", say=quiet)
    (tmp_path / "line").write_text("0 1\n1 2\n0 2\n")
    with pytest.raises(ValueError, match="the file of .*line as it was when the run"):
        run(config, tmp_path / "run", say=quiet)
