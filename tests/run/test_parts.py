"""Runs of configs in which a part of the model trains."""

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file

from fl_sketch.run import from_config, load_params, run
from fl_sketch.workdir import checkpoint, weights
from tests.models import own
from tests.run.configs import (
    begun,
    config_with,
    quiet,
    read_json,
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


def test_another_run_begins_with_the_whole(after):
    for source in (after[0], after[0] / "params.safetensors"):
        first = begun(config_of(model__init_from=str(source))).server.params
        assert changed(jax.device_get(first), load_params(after[0])) == set()


def test_statistics_stand_still_and_the_model_trains_as_it_is_tested(before, tmp_path):
    keys = {"client__trains": "head", "model__init_from": str(before / "normed")}
    run(config_of(**NORMED, **keys), tmp_path / "one", say=quiet)
    start, end = load_params(before / "normed"), load_params(tmp_path / "one")
    assert changed(start.state, end.state) == set()
    assert changed(start.params, end.params) == {"last/kernel", "last/bias"}
    # With them as in tests, a client's loss is that of the same examples in a test.
    setup_keys = {**NORMED, **keys, **NOISE, "data__public": True}
    assert from_config(config_of(**setup_keys)).guarantee
