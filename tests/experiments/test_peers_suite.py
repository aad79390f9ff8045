"""Peers play the same rounds, and one that cannot is left out in a line."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from fl_sketch import models
from fl_sketch.experiments.bench import peers_suite
from fl_sketch.experiments.bench.peers import inputs, jax_rounds
from fl_sketch.experiments.bench.peers.inputs import WORKLOADS
from fl_sketch.experiments.bench.peers_suite import PEERS, compared, missing
from tests import effort

# An interpreter with PyTorch and maybe pfl, where the tests' own has none.
PYTHON = os.environ.get("FL_SKETCH_TORCH_PYTHON", sys.executable)
OURS = ["engine", "engine_many", "engine_one", "plain"]
SUMMARY = (
    '{"device": "cpu", "version": "1", "first_seconds": 1, "length": LENGTH, '
    '"moved": 1, "megabytes": 1, "device_megabytes": null}'
)
PEER = """
import sys
print("READY", flush=True)
for line in sys.stdin:
    if line.strip() == "end":
        print('SUMMARY', flush=True)
        break
    print(SECONDS, flush=True)
"""
DEAD = "raise MemoryError('no room')"
TIRED = PEER.replace("    print(SECONDS", "    sys.exit('tired')\n    print(0.1")
SLEEPER = "import time; time.sleep(60)"


def peer(seconds=0.1, length=7.0):
    said = SUMMARY.replace("LENGTH", str(length))
    return PEER.replace("SUMMARY", said).replace("SECONDS", str(seconds))


def rows_of(**programs):
    commands = {name: [sys.executable, "-c", text] for name, text in programs.items()}
    return list(compared("W3", commands, rounds=3, tf32=False))


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_initial_weights_are_those_of_our_models(name):
    work = WORKLOADS[name]
    loss = models.classification(jax_rounds.model_of(work))
    kind = jnp.int32 if len(work.image) == 1 else jnp.float32
    example = jax.ShapeDtypeStruct((1, *work.image), kind)
    ours = jax.eval_shape(loss.init, jax.random.key(0), example)
    shapes = {p: leaf.shape for p, leaf in flatten_dict(ours, sep="/").items()}
    weights = inputs.initial_weights(work)
    assert {path: weight.shape for path, weight in weights.items()} == shapes
    assert all(weight.dtype == np.float32 for weight in weights.values())


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_rows_of_a_round_belong_to_different_clients(name):
    work = WORKLOADS[name]
    plan = inputs.drawn_plan(work, 3)
    batches = 1 if work.full_batch else work.steps
    assert plan.shape == (work.cohort, batches, work.batch) and plan.dtype == np.int32
    owners = plan // work.examples
    assert (owners == owners[:, :1, :1]).all()
    assert len(set(owners[:, 0, 0].tolist())) == work.cohort
    np.testing.assert_array_equal(plan, inputs.drawn_plan(work, 3))
    assert (plan != inputs.drawn_plan(work, 4)).any()


def test_ratios_are_to_the_first_and_another_model_is_seen():
    first, slow, other = rows_of(
        first=peer(0.1), slow=peer(0.3), other=peer(length=7.001)
    )
    assert (first.ratio, first.seconds, first.rounds) == (1, 0.1, 3)
    assert slow.ratio == pytest.approx(3)
    assert [row.check for row in (first, slow, other)] == ["same", "same", "differs"]


def test_peers_that_die_are_left_out_in_a_line_each(capfd):
    rows = rows_of(dead=DEAD, tired=TIRED, alive=peer())
    assert [row.peer for row in rows] == ["alive"]
    said = capfd.readouterr().err.splitlines()
    assert said == [
        "dead is left out: it ended with exit code 1 (MemoryError: no room)",
        "tired is left out: it ended with exit code 1 (tired)",
    ]


def test_a_peer_that_hangs_or_talks_is_left_out(capfd, monkeypatch):
    monkeypatch.setattr(peers_suite, "PATIENCE", 3)
    assert not rows_of(sleeper=SLEEPER, talker="print('hello')")
    assert capfd.readouterr().err.splitlines() == [
        "sleeper is left out: it printed nothing for 3 seconds",
        "talker is left out: expected READY, got 'hello'",
    ]


def python_that_finds(tmp_path, found):
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\necho '{found}'\n")
    path.chmod(0o700)
    return str(path)


def test_what_a_peer_needs_is_said(tmp_path, capsys):
    nothing = python_that_finds(tmp_path, "[]")
    why = missing(list(PEERS), nothing)
    assert set(PEERS) - set(why) == set(OURS)
    assert why["pfl"] == f"pfl needs torch and pfl, not installed in {nothing}"
    with pytest.raises(ValueError, match="^torch_vmap needs torch"):
        peers_suite.run(["torch_vmap"], ["W3"], rounds=3, torch_python=nothing)
    peers_suite.run([], ["W3"], rounds=3, torch_python=nothing)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(why) and said[0].startswith("left out: torch_loop needs")


@pytest.mark.parametrize("found", ['["torch"]', '["torch", "gpu"]'])
def test_forms_of_another_platform_are_left_out(tmp_path, found):
    why = missing(list(PEERS), python_that_finds(tmp_path, found))
    assert ("torch_graph" in why) == ("gpu" not in found)
    assert ("torch_processes" in why) == ("gpu" in found)
    assert "torch_vmap" not in why and "pfl" in why


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import {modules}
"""
FAR = (  # what a machine with a GPU has not got
    "array_record", "dp_accounting", "importlib_resources", "matfree", "matplotlib",
    "ml_collections", "PIL", "safetensors", "sklearn", "tensorflow_datasets", "tqdm",
)  # fmt: skip
ROOM = "fl_sketch.experiments.bench.peers"


@pytest.mark.parametrize(
    ("names", "modules"),
    [
        ((*FAR, "torch", "pfl"), f"{ROOM}.jax_rounds, launch.benchmark"),
        ((*FAR, "jax", "flax", "optax", "scipy"), f"{ROOM}.inputs, {ROOM}.serving"),
    ],
    ids=["ours", "theirs"],
)
def test_a_program_imports_little(names, modules):
    words = [sys.executable, "-c", BLOCKED.format(names=names, modules=modules)]
    subprocess.run(words, check=True, cwd=peers_suite.ROOT)


def played(monkeypatch, peers, workload, cohort):
    monkeypatch.setenv("XLA_FLAGS", effort.flags())  # without the tests' devices
    peers = {name: None for name in peers if not missing([name], PYTHON)}
    options = {"rounds": 3, "cohort": cohort, "torch_python": PYTHON}
    rows = list(peers_suite.run([*peers], [workload], **options))
    assert [row.peer for row in rows] == list(peers)
    for row in rows:
        assert row.check == "same" and row.rounds == 3
        assert row.seconds >= row.fastest > 0 and row.first_seconds > 0
        assert row.ratio > 0 and row.megabytes > 10 and row.moved > 1e-4
    return rows


@pytest.mark.slow
def test_ours_and_plain_jax_make_the_same_model(monkeypatch):
    rows = played(monkeypatch, OURS, "W3", cohort=2)
    assert rows[0].ratio == 1 and rows[0].version == f"jax {jax.__version__}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "theirs"),
    [
        ("W1", ["torch_vmap"]),
        ("W2", ["torch_loop", "torch_vmap", "torch_processes", "pfl"]),
        ("W3", ["torch_loop", "torch_vmap", "torch_processes", "pfl"]),
        ("W5", ["torch_loop"]),
        ("W7", ["torch_loop"]),
        ("W8", ["torch_loop"]),
    ],
)
def test_pytorch_and_pfl_make_the_same_model(monkeypatch, workload, theirs):
    if missing(["torch_loop"], PYTHON):
        pytest.skip("torch is not installed")
    played(monkeypatch, ["engine", *theirs], workload, cohort=2)
