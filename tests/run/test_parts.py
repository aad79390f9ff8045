"""Runs of configs in which a part of the model trains."""

import functools

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file

from configs import default
from fl_sketch import models
from fl_sketch.audit import attack, run_spectrum
from fl_sketch.core import trees
from fl_sketch.data import datasets
from fl_sketch.engine import loop
from fl_sketch.models import params_io
from fl_sketch.run import StandsStill, load_params, run, task_of
from fl_sketch.sweep.sweep import sweep
from fl_sketch.workdir import checkpoint, release, weights
from tests.models import own
from tests.run.configs import (
    config_with,
    killed_at,
    numbers,
    played,
    quiet,
    read_json,
    refused,
    table_in,
)

pytestmark = pytest.mark.slow

KEYS = {"eval_every": 4, "checkpoint_every": 3, "rounds": 8, "compute__devices": 1}
MLP = {"model__name": "mlp", "model__width": 16}
NORMED = {"model__name": f"{own.__file__}:normed", "model__width": 0}
LORA = "lora(rank=2, alpha=4, on=dense1)+head"
NOISE = {
    "cohort__sampling": "poisson",
    "data__classes": 10,
    "privacy__bound": "clip",
    "privacy__noise_multiplier": 1.0,
}


def config_of(**changes):
    return config_with(**KEYS | MLP | changes)


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """Folders of runs that trained all, by the name of their model."""
    place = tmp_path_factory.mktemp("before")
    for name, keys in {"mlp": {}, "normed": NORMED}.items():
        public = {"data__public": True}
        run(config_of(rounds=2, **keys, **public), place / name, say=quiet)
    return place


@pytest.fixture(scope="module")
def after(before, tmp_path_factory):
    """The folder of a run of LORA, and its summary."""
    folder = tmp_path_factory.mktemp("after")
    return folder, run(lora_config(before), folder, say=quiet)


def lora_config(before, **changes):
    begun = {"client__trains": LORA, "model__init_from": str(before / "mlp")}
    return config_of(**begun | {"download": "model"} | changes)


def changed(one, other):
    """Returns the names of arrays that differ."""
    one, other = (flatten_dict(tree, sep="/") for tree in (one, other))
    assert {*one} == {*other}
    return {name for name in one if not np.array_equal(one[name], other[name])}


def test_the_folder_has_what_trains_in_checkpoints_and_the_whole_in_its_files(
    before, after
):
    (folder, summary), start = after, load_params(before / "mlp")
    end = load_params(folder)
    head = {"dense3/kernel", "dense3/bias"}
    assert changed(start, end) == {"dense1/kernel"} | head
    moved = end["dense1"]["kernel"] - start["dense1"]["kernel"]
    assert np.linalg.matrix_rank(moved, tol=1e-5) == 2
    path = checkpoint.path_of(folder / "checkpoints", 8)
    factors = {f"dense1/kernel/lora_{one}" for one in "ab"}
    saved = checkpoint.arrays_below(path, weights.PARAMS)
    assert {*saved} == factors | head
    assert summary["d"] == sum(leaf.size for leaf in saved.values())
    named = flatten_dict(end, sep="/")
    exported = load_file(folder / "params.safetensors")
    assert {*exported} == {*named}
    assert all(np.array_equal(exported[name], named[name]) for name in named)
    about = read_json(folder / "params.json")
    assert about["trains"] == LORA and about["arrays"]["dense1/kernel"] == [64, 16]


def test_what_was_measured_is_of_the_whole_model(after):
    folder, summary = after
    test = datasets.load("digits").test
    logits = models.build("mlp", 10, width=16).apply(
        {"params": load_params(folder)}, test.inputs
    )
    accuracy = (np.argmax(logits, 1) == test.targets).mean()
    np.testing.assert_allclose(summary["test_accuracy"], accuracy, atol=1e-6)


def test_bytes_are_of_what_trains_and_of_the_rest_once(before, after):
    folder, summary = after
    whole = sum(leaf.size for leaf in jax.tree.leaves(load_params(before / "mlp")))
    head = 16 * 10 + 10
    once = 4 * (whole - head + 1)  # with the scale of the product
    assert (summary["frozen"], summary["bytes_down_once"]) == (once // 4 - 1, once)
    assert summary["d"] == head + 2 * (64 + 16)
    visits = 8 * 10
    assert summary["bytes_up_total"] == 4 * summary["sketch_size"] * visits
    rest = summary["bytes_down_total"] - 4 * summary["d"] * visits
    assert rest % once == 0 and 10 <= rest // once <= 20  # the clients that came
    del folder


@pytest.mark.parametrize("row", [1, 2])
def test_a_run_that_was_killed_goes_on_to_the_bit(before, after, tmp_path, row):
    killed_at(row, lora_config(before), tmp_path)
    run(lora_config(before), tmp_path, say=quiet)
    assert numbers(tmp_path) == numbers(after[0])
    assert changed(load_params(tmp_path), load_params(after[0])) == set()


def test_another_run_begins_with_the_whole(after):
    for source in (after[0], after[0] / "params.safetensors"):
        task = task_of(config_of(model__init_from=str(source)))
        begun = jax.device_get(task.start(task.roots(task.secret))).server.params
        assert changed(begun, load_params(after[0])) == set()


def test_points_of_a_sweep_are_their_own_runs(before, tmp_path):
    config, over = lora_config(before), ["client.rate=0.05,0.1", "seed=0,1"]
    found = sweep(config, [*over, f"client.trains=head,{LORA}"], tmp_path, say=quiet)
    assert found["points"] == 8
    rows = [row for row in table_in(tmp_path, "sweep.csv") if row["round"] == "8"]
    assert len(rows) == 8
    for row in (rows[1], rows[-1]):
        keys = {"client__trains": row["client.trains"], "seed": int(row["seed"])}
        keys |= {"client__rate": float(row["client.rate"])}
        alone = played(task_of(lora_config(before, **keys))).rows[-1]
        assert float(row["test_loss"]) == pytest.approx(alone["test_loss"], rel=1e-5)
        assert int(row["bytes_down_total"]) == alone["bytes_down_total"]
    best = changed(load_params(tmp_path / "best"), load_params(before / "mlp"))
    assert "dense3/kernel" in best and "dense2/kernel" not in best


METHODS = {
    "ef21": {},
    "sketched_sgd": {"sketch__rows": 3},
    "scaffold": {},
    "marina": {"compressor__name": "random_k"},
    "fedsketchgate": {"sketch__rows": 3},
    "onebit_adam": {},
    "private_sketching": {
        "privacy__unit": "example",
        "privacy__relation": "replace_one",
        "client__batches": "subsets",
        "privacy__noise_multiplier": 0.1,
        "data__public": True,
    },
    "safl": NOISE | {"data__public": True},
    "dp_fedavg": NOISE | {"data__public": True, "client__proximal": 0.0},
}


@pytest.mark.parametrize("method", METHODS)
def test_methods_and_their_memories_are_of_what_trains(before, method):
    keys = {"algorithm": method, "rounds": 4, "client__steps": 2} | METHODS[method]
    end = played(task_of(lora_config(before, **keys)))
    assert np.isfinite(end.rows[-1]["test_loss"])
    d = trees.size(end.params)
    for leaf in jax.tree.leaves(end.progress.state.clients):
        assert leaf[0].size <= d


def test_clients_are_measured(before, tmp_path):
    looked = {"data__held_out": 0.2, "clients_every": 4}
    summary = run(lora_config(before, **looked), tmp_path, say=quiet)
    assert 0 < summary["clients_accuracy"] <= 1
    assert len(table_in(tmp_path, "clients.csv")) == 2


def test_weight_decay_is_of_what_trains(before):
    """Of an array that trains itself the gradient is that of the whole model."""
    ends = {}
    for trains in ("head", "dense3"):
        keys = {"client__trains": trains, "model__weight_decay": 0.5}
        ends[trains] = played(task_of(lora_config(before, **keys))).params
    assert changed(ends["head"], ends["dense3"]) == set()
    plain = played(task_of(lora_config(before, client__trains="head"))).params
    assert changed(ends["head"], plain)


def test_statistics_stand_still_and_the_model_trains_as_it_is_tested(before, tmp_path):
    keys = {"client__trains": "head", "model__init_from": str(before / "normed")}
    run(config_of(**NORMED, **keys), tmp_path / "one", say=quiet)
    start, end = load_params(before / "normed"), load_params(tmp_path / "one")
    assert changed(start.state, end.state) == set()
    assert changed(start.params, end.params) == {"last/kernel", "last/bias"}
    # With them as in tests, a client's loss is that of the same examples in a test.
    setup_keys = {**NORMED, **keys, **NOISE, "data__public": True}
    assert task_of(config_of(**setup_keys)).known.guarantee


def released(folder, config, out):
    run(config, folder, say=quiet)
    lines = release.release(folder, out)
    return lines, (out / "MODEL.md").read_text(), load_file(out / "params.safetensors")


@pytest.mark.parametrize("kind", ["mlp", "normed"])
def test_a_release_has_the_whole_model(before, tmp_path, kind):
    trains = LORA if kind == "mlp" else "head"
    keys = {"client__trains": trains, "model__init_from": str(before / kind)}
    keys |= NOISE | {"privacy__randomness": "system"}
    keys |= {} if kind == "mlp" else NORMED
    config = config_of(**keys)
    lines, page, arrays = released(tmp_path / "run", config, tmp_path / "out")
    whole = weights.read(str(tmp_path / "run"))
    assert {*arrays} == {*whole}
    assert all(np.array_equal(arrays[name], whole[name]) for name in whole)
    d = read_json(tmp_path / "run/summary.json")["d"]
    size = sum(leaf.size for leaf in whole.values())
    for text in (lines[0], page):
        assert str(d) in text and str(size) in text


def test_a_spectrum_is_of_what_trains(before, tmp_path):
    config = lora_config(before, checkpoint_keep=0, checkpoint_every=4)
    run(config, tmp_path, say=quiet)
    how = {"examples": 100, "probes": 2, "steps": 5}
    rows = run_spectrum.of_run(
        str(tmp_path), default.get_config(), None, **how, log=quiet
    )
    assert [row["round"] for row in rows] == [0, 4, 8]


def test_an_attacker_knows_what_does_not_train(before):
    """Its view of the true images is what a client sends."""
    config = lora_config(before, client__steps=1)
    scene = attack.problem_of(config, None, images=2, batch=1)
    keys, labels = scene.keys(0), scene.targets[0]
    sent = scene.seen(scene.images[0], keys, labels)
    view = scene.view(keys, labels)(scene.images[0])
    np.testing.assert_allclose(sent, view, rtol=1e-5)
    assert trees.size(scene.server.params) < 500


def test_a_folder_knows_its_run_by_the_part_that_does_not_train(before, tmp_path):
    source = tmp_path / "weights.npz"
    whole = weights.read(str(before / "mlp"))
    params_io.save(source, whole)
    config = lora_config(before, model__init_from=str(source))
    run(config, tmp_path / "run", say=quiet)
    assert read_json(tmp_path / "run/config.json")["identity"]["frozen"]
    whole["dense2/kernel"] = whole["dense2/kernel"] + 1
    params_io.save(source, whole)
    with refused(source):
        run(config, tmp_path / "run", say=quiet)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client__trains": "dense9"}, ["config.client: ", "'dense9'", "dense3"]),
        ({"client__trains": "lora(rank=17, on=dense1)"}, ["rank=17", "dense1/kernel"]),
        ({"client__trains": "lora(rank=2, on=bias)"}, ["on='bias'"]),
        ({"client__trains": "."}, ["config.client: ", "trains=all"]),
        ({"client__trains": "lora(rank=x)"}, ["config.client: ", "rank=NUMBER"]),
        ({"model__init_from": ""}, ["init_from", "dense1/bias", "random"]),
        ({"model__fresh": "dense2"}, ["dense2/bias", "random"]),
    ],
    ids=range(7),
)
def test_what_cannot_train_is_said_in_one_line(before, changes, words, monkeypatch):
    monkeypatch.setattr(loop, "play", None)
    with refused(*words):
        task_of(lora_config(before, **changes))


UNUSED = """
import flax.linen as nn


class Own(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x):
        x = x.reshape(len(x), -1)
        nn.Dense(4, name="beside")(x)
        return nn.Dense(self.classes, name="head")(nn.Dense(8, name="first")(x))
"""


@pytest.mark.parametrize("trains", ["beside|head", "lora(rank=2)+first|beside/bias"])
@pytest.mark.parametrize("private", [False, True])
def test_a_part_that_does_not_move_ends_the_run(tmp_path, trains, private):
    (tmp_path / "own.py").write_text(UNUSED)
    keys = {"model__name": f"{tmp_path / 'own.py'}:Own", "model__width": 0}
    noise = NOISE if private else {}
    run(config_of(rounds=2, data__public=True, **keys), tmp_path / "one", say=quiet)
    begun = {"model__init_from": str(tmp_path / "one"), "client__trains": trains}
    config = config_of(**keys, **begun, **noise)
    with refused("beside", error=StandsStill):
        run(config, tmp_path / "two", say=quiet)
    assert [row["round"] for row in table_in(tmp_path / "two")] == ["4"]
    assert checkpoint.rounds(tmp_path / "two/checkpoints") == [3]
    with refused("beside", error=StandsStill):  # nor does it go on
        run(config, tmp_path / "two", say=quiet)


def test_factors_that_begin_at_zero_do_not_stand_still(before):
    short = {"eval_every": 1, "rounds": 2, "client__steps": 1}
    for empty in ({}, {"cohort__dropout": 0.99}):
        assert played(task_of(lora_config(before, **short | empty))).rows


@functools.cache
def of_all(before, **changes):
    """Returns the rows of a run that trains all from the same weights."""
    return played(task_of(lora_config(before, client__trains="all", **changes))).rows


def test_what_is_done_with_all_is_as_it_was(before):
    found = read_json(before / "mlp/config.json")
    assert found["client"]["trains"] == "all" and not found["identity"]["frozen"]
    assert of_all(before)[-1]["test_loss"] > 0
