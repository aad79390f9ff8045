"""Weights say what they have seen, and private runs refuse those of their own data."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import algorithms, data, engine
from fl_sketch.data import examples
from fl_sketch.models import params_io
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.run import load_params, run, task_of
from fl_sketch.workdir import origin, release, weights
from tests.run.configs import config_with, quiet, refused, table

pytestmark = pytest.mark.slow

KEYS = {"eval_every": 5, "checkpoint_every": 3, "compute__devices": 1}
NOISE = {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0}
NOISE |= {"cohort__sampling": "poisson", "privacy__randomness": "system"}
SMALL = {"data__clients": 6, "cohort__size": 3, "rounds": 4}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Runs of A on a, of B and C on b from A's weights, and of D on c from those of C.

    C is private, so that its record has a key. The data a stand in a file of another
    name, too, where their digests tell.
    """
    place = tmp_path_factory.mktemp("seen")
    for number, name in enumerate("abc"):
        table(place / f"{name}.npz", number)
    shutil.copy(place / "a.npz", place / "copy.npz")

    def on(name, **more):
        keys = KEYS | SMALL | {"data__name": f"npz/{name}", "data__classes": 3}
        return config_with(**keys | more)

    begun = {"model__init_from": str(place / "A")}
    for run_name, config in {
        "A": on("a"),
        "B": on("b", **begun),
        "C": on("b", **begun, **NOISE),
        "D": on("c", model__init_from=str(place / "C")),
        "public": on("a", data__public=True),
    }.items():
        run(config, place / run_name, place, say=quiet)
    file = "params.safetensors"
    (place / "link.safetensors").symlink_to(place / "A" / file)
    shutil.copy(place / "A" / file, place / "taken.safetensors")
    shutil.copy(place / "D" / file, place / "later.safetensors")
    for name, source in {"E": "A", "F": "A", "G": "D"}.items():
        shutil.copytree(place / source, place / name)
    torn = (place / "E/config.json").read_text()[:-30]
    (place / "E/config.json").write_text(torn)
    (place / "F/params.json").unlink()
    (place / "G" / origin.KEY).unlink()
    start = {"model__init_from": str(place / "taken.safetensors")}
    run(on("b", **start, data__public=True), place / "H", place, say=quiet)
    return place, lambda name, **more: on(name, **NOISE | more)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("A", "a"),
        ("A", "./a"),
        ("A", "{}/./a"),
        ("A", "copy"),
        ("A/params.safetensors", "copy"),
        ("B", "copy"),
        ("B/params.safetensors", "copy"),
        ("C", "copy"),
        ("C/params.safetensors", "copy"),
        ("D", "copy"),
        ("link.safetensors", "copy"),  # a symbolic link to A's
        ("taken.safetensors", "copy"),  # a copy of A's
        ("taken.safetensors", "./a"),
        ("later.safetensors", "a"),  # a copy of D's
        ("E", "copy"),  # A, whose config.json is torn
        ("F/params.safetensors", "copy"),  # A without its params.json
        ("G", "b"),  # D without the keys of its digests
        ("H", "copy"),  # a run on other data from the copy of A's file
    ],
)
def test_weights_that_have_seen_the_private_data_are_refused(seen, source, name):
    place, private = seen
    config = private(name.format(place), model__init_from=str(place / source))
    with refused("public", place / source):
        task_of(config, str(place))


def test_a_part_of_the_private_data_is_known_by_its_name(seen, tmp_path):
    table(tmp_path / "a.npz", 5)
    config = seen[1]("a", model__init_from=str(seen[0] / "A"))
    with refused("public", seen[0] / "A"):
        task_of(config, str(tmp_path))


def test_weights_of_public_or_other_data_or_without_a_record_are_taken(seen, tmp_path):
    place, private = seen
    params_io.save(tmp_path / "plain.safetensors", weights.in_run(place / "A"))
    for name, source in (
        ("a", place / "public"),
        ("b", place / "A"),
        ("b", place / "taken.safetensors"),
        ("a", tmp_path / "plain.safetensors"),
    ):
        config = private(name, model__init_from=str(source))
        assert task_of(config, str(place)).private


@pytest.mark.parametrize("form", release.FORMS)
def test_a_release_is_refused_by_a_run_on_the_same_data_alone(seen, tmp_path, form):
    place, private = seen
    release.release(place / "C", tmp_path / "out", form)
    folder, file = tmp_path / "out", tmp_path / "out" / f"params.{form}"
    assert str(place).encode() not in file.read_bytes()
    for source in (folder, file):
        begun = {"model__init_from": str(source)}
        for name in "ab":  # C began with the weights of A
            with refused("public", "same data", source):
                task_of(private(name, **begun), str(place))
        assert task_of(private("c", **begun), str(place)).private


def test_the_folder_of_a_release_has_the_weights_of_its_run(seen, tmp_path):
    place, _ = seen
    release.release(place / "C", tmp_path / "out")
    ran = params_io.tree_of(weights.in_run(place / "C"))
    released = params_io.tree_of(weights.read(str(tmp_path / "out")))
    for found in (released, load_params(tmp_path / "out")):
        jax.tree.map(np.testing.assert_array_equal, found, ran)


def test_a_run_without_its_config_is_no_release(seen, tmp_path):
    """Its file of weights says that the key of its digests is elsewhere."""
    place, private = seen
    shutil.copytree(place / "C", tmp_path / "bare")
    (tmp_path / "bare/config.json").unlink()
    for left_out in ("checkpoints", origin.KEY):
        folder = tmp_path / "bare"
        with refused("public", folder):
            task_of(private("b", model__init_from=str(folder)), str(place))
        path = folder / left_out
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with refused("damaged or lacks its key", folder):
        task_of(private("c", model__init_from=str(folder)), str(place))


def arrays_of(path):
    with np.load(path) as arrays:
        return arrays["train_inputs"], arrays["train_targets"]


def test_a_planted_key_is_not_that_of_private_data(seen, tmp_path):
    """Whoever knows the key could check guesses about a label."""
    place, private = seen
    shutil.copytree(place / "B", tmp_path / "planted")
    (tmp_path / "planted" / origin.KEY).write_bytes(b"k" * origin.KEY_BYTES)
    config = private("c", model__init_from=str(tmp_path / "planted"))
    run(config, tmp_path / "run", place, say=quiet)
    about = json.loads((tmp_path / "run/config.json").read_text())
    found = {*about["identity"]["data"].values(), *about["trained_on"]["digests"]}
    plain = examples.digest(arrays_of(place / "c.npz")[1].astype(np.int32))
    own = origin.keys_in(tmp_path / "run")[0]
    assert origin.keyed(plain, own) in found
    assert origin.keyed(plain, b"k" * origin.KEY_BYTES) not in found
    with refused("public"):  # what B has seen is still known
        task_of(private("copy", model__init_from=str(tmp_path / "run")), str(place))


def test_a_damaged_key_is_no_way_to_plain_digests(seen, tmp_path):
    place, private = seen
    (tmp_path / origin.KEY).write_bytes(b"k")
    with refused(origin.KEY, tmp_path):
        run(private("c"), tmp_path, place, say=quiet)
    assert not (tmp_path / "config.json").exists()


def loss(params, batch):
    inputs, targets = batch
    logits = inputs @ params["dense"]["kernel"].T + params["dense"]["bias"]
    chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - chosen).mean()


FEDAVG = algorithms.fedavg(loss, client_rate=0.01)


def simulated(place, name, algorithm=FEDAVG, **more):
    """Plays a round of `simulate` from A's weights on one of the data sets."""
    clients = data.clients(arrays_of(place / f"{name}.npz"), np.arange(60) % 6)
    params = jax.tree.map(jnp.asarray, load_params(place / "A"))
    work = {"key": jax.random.key(0), "rounds": 1, "bar": False} | more
    return engine.simulate(algorithm, params, clients, **work)


def test_weights_of_simulate_have_seen_its_data_and_those_before(seen, tmp_path):
    place, private = seen
    simulated(place, "c", workdir=tmp_path / "c", params_from=place / "A")
    simulated(place, "a", workdir=tmp_path / "a")
    shutil.copy(tmp_path / "c/params.safetensors", tmp_path)
    for source, name in (
        (tmp_path / "c", "copy"),
        (tmp_path / "c", "c"),
        (tmp_path / "a", "copy"),  # known by its arrays, though they are float64 here
        (tmp_path / "params.safetensors", "copy"),
    ):
        with refused("public", source):
            task_of(private(name, model__init_from=str(source)), str(place))
    assert task_of(private("b", model__init_from=str(tmp_path / "c")), str(place))


def test_a_private_simulation_refuses_what_saw_its_data(seen, tmp_path):
    place, _ = seen
    noise = mechanism.central(clipping.clip(1.0), noise_multiplier=1.0, denominator=3)
    noisy = {"algorithm": FEDAVG._replace(mechanism=noise)}
    noisy |= {"cohort": engine.poisson(6, 3)}
    with refused("params_from", place / "A"):
        simulated(place, "copy", **noisy, params_from=place / "A")
    with refused("params_from", "none", error=FileNotFoundError):
        simulated(place, "copy", params_from=tmp_path / "none")
    assert simulated(place, "b", **noisy, params_from=place / "A").history
