"""What a release says of its model is enough to use it, by numpy alone too."""

import builtins
import contextlib
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from fl_sketch import algorithms, data, engine, models
from fl_sketch.core import protocols
from fl_sketch.data import datasets, tokenizer
from fl_sketch.models import params_io
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.run import load_trained
from fl_sketch.workdir import odometer, origin, release, released_model, weights
from tests.run.configs import read_json, refused
from tests.workdir.test_release import KEEPING, examples, newest, plant

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=KEEPING)
def planted(request, tmp_path_factory):
    return plant(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return plant(tmp_path_factory.mktemp("one"), "ef21")


def blocks_of(folder):
    """Returns the two pieces of code of a page: by numpy alone, and by the project."""
    page = (folder / "MODEL.md").read_text()
    return [part.split("\n```")[0] for part in page.split("```python\n")[1:]]


def run_by_numpy_alone(code, folder, inputs):
    """Runs a page's code where of what must be installed numpy alone is there."""

    def only(name, *rest):
        assert name in ("json", "pathlib", "numpy"), name
        return __import__(name, *rest)

    allowed = vars(builtins) | {"__import__": only}
    names = {"inputs": inputs, "__builtins__": allowed}
    with contextlib.chdir(folder):
        exec(code, names)
    return names


@pytest.mark.parametrize("form", release.FORMS)
def test_the_code_of_the_page_loads_the_model(planted, tmp_path, form, monkeypatch):
    out, test = tmp_path / "out", examples(2, 100)
    release.release(planted.folder, out, form)
    by_numpy, by_project = blocks_of(out)
    logits = run_by_numpy_alone(by_numpy, out, test.inputs)["logits"]
    monkeypatch.chdir(out)
    names = {"inputs": test.inputs}
    exec(by_project, names)
    found = np.asarray(jax.nn.softmax(logits))
    np.testing.assert_allclose(found, names["predictions"], atol=1e-6)
    summary = read_json(planted.folder / "summary.json")
    accuracy = (np.argmax(logits, 1) == test.targets).mean()
    assert accuracy == pytest.approx(summary["test_accuracy"], abs=1e-6)


def remade(folder, leaves, about):
    """Makes the run in a folder one of another model, with these arrays."""
    saved = {weights.PARAMS + name: leaf for name, leaf in leaves.items()}
    np.savez(newest(folder), **saved, **{release.ROUND: np.int32(6)})
    (folder / origin.SIDECAR).write_text(json.dumps(about))
    summary = read_json(folder / "summary.json")
    summary["d"] = sum(leaf.size for leaf in leaves.values())
    (folder / "summary.json").write_text(json.dumps(summary))


def with_inputs(about, **changes):
    return about | {"inputs": about["inputs"] | changes}


@pytest.mark.parametrize("form", release.FORMS)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_numpy_alone_computes_the_logits_of_an_mlp(one, tmp_path, form, dtype):
    """Also of images as bytes, of a width of one's own, and of scaled inputs."""
    folder, random = tmp_path / "run", np.random.default_rng(5)
    shutil.copytree(one.folder, folder)
    model = models.build("mlp", 7, width=9)
    images = random.integers(0, 256, (20, 4, 5, 3)).astype(dtype)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, 4, 5, 3)))
    leaves = {
        name: random.normal(size=leaf.shape).astype(np.float32)
        for name, leaf in flatten_dict(shapes["params"], sep="/").items()
    }
    about = read_json(folder / origin.SIDECAR)
    about |= {"model": "mlp", "outputs": 7, "options": {"width": 9}}
    divided, means = (255 if dtype == "uint8" else 1), [0.1, 0.2, 0.3]
    about = with_inputs(
        about, shape=[4, 5, 3], dtype=dtype, divided_by=divided, mean=means,
        deviation=[0.5, 2.0, 3.0],
    )  # fmt: skip
    remade(folder, leaves, about)
    out = tmp_path / "out"
    release.release(folder, out, form)
    found = run_by_numpy_alone(blocks_of(out)[0], out, images)["logits"]
    x = (images / np.float32(divided) - np.float32(means)) / np.float32([0.5, 2, 3])
    params = unflatten_dict(leaves, sep="/")
    logits = model.apply({"params": params}, x)
    np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-4)
    trained = load_trained(out)
    ours = trained.apply(trained.variables, images)
    np.testing.assert_allclose(ours, logits, rtol=1e-4, atol=1e-4)
    said = read_json(out / origin.SIDECAR)["arrays"]
    arrays = params_io.load(out / f"params.{form}")
    assert said == {name: list(array.shape) for name, array in arrays.items()}


def test_a_vocabulary_leaves_the_folder_unless_private_texts_decided_it(one, tmp_path):
    table = tokenizer.Table("words", ("to", "be"))
    about = read_json(one.folder / origin.SIDECAR)
    texts = {"length": 9, "vocabulary": 5, "vocabulary_file": "/home/me/words.txt"}
    for found in (False, True):
        folder, out = tmp_path / f"run{found}", tmp_path / f"out{found}"
        shutil.copytree(one.folder, folder)
        record = table._replace(found=found).to_json()
        own = with_inputs(about, dtype="int32", tokenizer=record, **texts)
        (folder / origin.SIDECAR).write_text(json.dumps(own))
        if found:
            with refused("vocabulary"):
                release.release(folder, out)
            entry = odometer.read(folder)["run"]
            odometer.note(folder, {"run": entry._replace(public=True)})
        release.release(folder, out)
        said = read_json(out / origin.SIDECAR)
        assert said["inputs"]["tokenizer"] == record
        assert said["inputs"]["vocabulary_file"] == "words.txt"
        assert "in `params.json`: words.txt" in (out / "MODEL.md").read_text()


def test_a_release_begins_a_private_run_as_its_file_alone_does(one, tmp_path):
    """What params.json says of the data is not less than what the weights say."""
    release.release(one.folder, tmp_path / "out")
    file = tmp_path / "out/params.safetensors"
    alone = shutil.copy(file, tmp_path / "alone.safetensors")
    assert set(origin.trained_on(file).names) == set(origin.trained_on(alone).names)


@pytest.mark.parametrize(
    ("name", "size"), [*((name, "small") for name in models.registry.MODELS),
                       ("resnet", "tiny")],
)  # fmt: skip
def test_a_release_builds_every_model_that_a_config_names(one, tmp_path, name, size):
    about = read_json(one.folder / origin.SIDECAR)
    about |= {"model": name, "size": size, "outputs": 7}
    options = {"vocabulary": 50} if name == "transformer" else {}
    texts = name in ("transformer", "language_model")
    inputs = jnp.ones((2, 9), jnp.int32) if texts else jnp.ones((2, 32, 32, 3))
    given = {"shape": [9], "dtype": "int32", "length": 9, "vocabulary": 50}
    given |= {"vocabulary_file": "/home/me/words.txt"}
    given = given if texts else {"shape": [32, 32, 3]}

    def shapes(model):
        tree = jax.eval_shape(model.init, jax.random.key(0), inputs)["params"]
        return {k: v.shape for k, v in flatten_dict(tree, sep="/").items()}

    leaves = shapes(models.build(name, 7, size=size, **options))
    folder = shutil.copytree(one.folder, tmp_path / "run")
    zeros = {k: np.zeros(v, np.float32) for k, v in leaves.items()}
    remade(folder, zeros, with_inputs(about, **given))
    found = release.read(folder)
    assert found.model["outputs"] == "7 classes"
    assert ("not part of this release: words.txt" in found.model["inputs"]) == texts
    release.release(folder, tmp_path / "out")
    trained = load_trained(tmp_path / "out")
    assert shapes(trained.module) == leaves
    run_by_numpy_alone(blocks_of(tmp_path / "out")[0], tmp_path / "out", inputs)


@pytest.mark.parametrize("own", ["/home/me/own.py:net", "engine.simulate"])
def test_code_and_paths_of_ones_own_stay_at_home(own):
    about = {"model": own, "algorithm": "/home/me/own.py:mine", "public": False}
    about |= {"dataset": "npz//home/me/data", "init_from": "/home/me/first"}
    if own != "engine.simulate":
        about |= {"size": "small", "loss": "squared", "options": {}, "outputs": 2}
        about["inputs"] = {"shape": [3], "dtype": "float32", "divided_by": 1}
    params = {"last/kernel": np.ones((3, 2), np.float32)}
    public = released_model.public(about, params, private=True)
    facts = released_model.facts(about, params)
    assert "/home" not in json.dumps([public, facts])
    assert public["model"] == own.rpartition("/")[2]
    assert public["arrays"] == {"last/kernel": [3, 2]}
    assert facts["own"] and not facts["layers"]
    assert ("inputs" in public) == (own != "engine.simulate")
    made_up = f"{datasets.SYNTHETIC}/10000"  # a name without a path
    public = released_model.public(about | {"dataset": made_up}, params, private=True)
    assert public["dataset"] == made_up


@pytest.mark.parametrize(
    ("guard", "said", "words"),
    [
        (
            mechanism.central(
                clipping.normalise(0.5), noise_multiplier=2.0, denominator=10
            ),
            {"noise": "central", "bound": "normalise", "threshold": 0.5},
            "bounded (normalise, 0.5)",
        ),
        (
            mechanism.integers(
                clipping.clip(1.5),
                noise_multiplier=2.0,
                denominator=40,
                smallest=38,
                bits=16,
            ),
            {"noise": "skellam", "bound": "clip", "smallest_cohort": 38},
            "Of the 40 clients of a round, 2 may have dropped out",
        ),
        (
            mechanism.central(
                clipping.clip(1.5), noise_multiplier=2.0, denominator=10
            )._replace(said=protocols.Mechanism._field_defaults["said"]),
            {"noise": "one's own", "bound": "one's own", "threshold": None},
            "its code decides who adds the noise",
        ),
    ],
    ids=["central", "skellam", "own"],
)
def test_a_run_of_python_says_what_it_knows_and_no_more(guard, said, words, tmp_path):
    def loss(params, batch):
        return jnp.mean((batch[0] @ params["w"] - batch[1]) ** 2)

    inputs = np.random.default_rng(0).normal(size=(400, 3)).astype("float32")
    method = algorithms.fedavg(loss, client_rate=0.1)._replace(mechanism=guard)
    shared = bool(guard.smallest)
    engine.simulate(
        method,
        {"w": np.zeros(3, "float32")},
        data.clients((inputs, inputs.sum(1)), np.arange(400) % 40),
        key=engine.secret_roots(0),
        rounds=2,
        cohort=engine.everyone(40) if shared else engine.poisson(40, 10),
        relation="replace_one" if shared else "add_remove",
        workdir=str(tmp_path / "run"),
    )
    release.release(tmp_path / "run", tmp_path / "out")
    promise = read_json(tmp_path / "out/privacy.json")
    assert promise.items() >= said.items()
    page = (tmp_path / "out/MODEL.md").read_text()
    assert words in page and "# A model trained privately" in page
    assert "A model of 3 parameters, trained by a call of `engine.simulate` in" in page
    assert "0 numbers" not in page and "data set `" not in page
    assert "`params.json` has the shapes of the arrays." in page
    assert read_json(tmp_path / "out/params.json")["arrays"] == {"w": [3]}
