"""A trained model predicts elsewhere what it did in its run, and continues texts."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import models
from fl_sketch.core.tokens import SPECIAL
from fl_sketch.data import datasets, tokenizer
from fl_sketch.models import params_io
from fl_sketch.run import (
    generate,
    load_trained,
    predict,
    run,
)
from fl_sketch.run.trained import Trained
from tests.data import fake_raw
from tests.models import own
from tests.run.configs import config_with, quiet, read_json, refused
from tests.run.test_texts import CHARACTERS, WORDS

SHORT = {"rounds": 4, "eval_every": 4, "compute__devices": 1}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    fake_raw.write(folder)
    return folder


def ran(folder, data_dir=None, **changes):
    config = config_with(**SHORT | changes)
    summary = run(config, folder, data_dir and str(data_dir), say=quiet)
    return load_trained(folder), summary


def accuracy(trained, inputs, targets):
    return (predict(trained, inputs).argmax(1) == targets).mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data__standardise": "train"},
        {"data__name": "mnist", "data__clients": 3, "cohort__size": 2,
         "model__name": "lenet", "data__standardise": "0.1/0.3"},
        {"data__name": "cifar10", "data__clients": 3, "cohort__size": 2,
         "model__name": "resnet", "model__norm": "batch", "model__size": "tiny",
         "data__augment": "crop_flip"},
        {"model__name": f"{own.__file__}:normed"},
    ],
    ids=range(5),
)  # fmt: skip
def test_predictions_are_as_good_as_the_run_said(tmp_path, raw, changes):
    config = config_with(**SHORT | changes)
    summary = run(config, tmp_path, str(raw), say=quiet)
    trained = load_trained(tmp_path, plugin=[config.model.name])
    test = datasets.load(config.data.name, str(raw)).test
    found = predict(trained, test.inputs)
    assert found.shape == (len(test.targets), 10)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    right = (found.argmax(1) == test.targets).mean()
    assert right == pytest.approx(summary["test_accuracy"], abs=1e-6)
    one = predict(trained, test.inputs[:1])
    np.testing.assert_allclose(one, found[:1], atol=1e-5)


@pytest.mark.slow
def test_a_classifier_of_texts_takes_texts(tmp_path, raw):
    trained, summary = ran(tmp_path, raw, **WORDS)
    test = datasets.load("sst2", str(raw)).test
    right = accuracy(trained, list(test.inputs), test.targets)
    assert right == pytest.approx(summary["test_accuracy"], abs=1e-6)
    assert trained.class_names == ("negative", "positive")
    with refused("list of texts, got str", error=TypeError):
        predict(trained, "a film")
    with refused("one input at least"):
        predict(trained, [])
    with refused("10"):
        predict(trained, np.full((1, 8), 10))
    with refused("language model"):
        generate(trained)


@pytest.mark.slow
def test_a_language_model_goes_on_with_a_text_by_what_it_learnt(tmp_path, raw):
    trained, _ = ran(tmp_path, raw, **CHARACTERS)
    about = read_json(tmp_path / "params.json")
    assert about["outputs"] == about["inputs"]["vocabulary"] == trained.tokenizer.size
    text = generate(trained, "It", tokens=70, seed=3)
    assert text.startswith("It") and len(text) == 72
    assert {*text} <= {*trained.tokenizer.units}
    assert generate(trained, "It", tokens=70, seed=3) == text
    assert text.startswith(generate(trained, "It", tokens=9, seed=3))
    assert generate(trained, "It", tokens=70, seed=4) != text
    assert len(generate(trained, tokens=5)) == 5
    for prompt in ("It", "It has two lines."):  # shorter and longer than it sees
        greedy = generate(trained, prompt, tokens=12, temperature=0.0, seed=5)
        assert greedy == by_hand(trained, prompt, 12)
        assert greedy == generate(trained, prompt, tokens=12, temperature=1e-30)
    for name, bad in {"prompt": "é", "tokens": 0, "temperature": -1.0}.items():
        with refused(name if name != "prompt" else bad):
            generate(trained, **{name: bad})
    with refused("generate"):
        predict(trained, ["It"])


def by_hand(trained, text, count):
    """Returns a text with the most probable characters, one after the other."""
    table, length = trained.tokenizer, trained.shape[0]
    model = models.build("language_model", table.size)
    for _ in range(count):
        seen = text[-(length - 1) :]
        tokens = table.encode([seen], length)
        logits = np.array(model.apply({"params": trained.params}, tokens))
        text += table.units[logits[0, len(seen), SPECIAL:].argmax()]
    return text


def counting(stays):
    """Returns a language model that has a share of staying, else counts on."""

    class Fake:
        tokenizer = tokenizer.Table("characters", tuple("abcdefgh"))
        shape, outputs, of_places, variables = (5,), (5, 11), True, {}

        @staticmethod
        def apply(variables, tokens):
            del variables
            following = (jnp.maximum(tokens, 3) - 2) % 8 + 3
            same = stays * jax.nn.one_hot(tokens, 11)
            return jnp.log(same + (1 - stays) * jax.nn.one_hot(following, 11))

    return Fake()


def test_tokens_are_drawn_with_the_probabilities_of_the_model():
    text = generate(counting(0.25), "a", tokens=2000)
    stayed = np.mean([one == other for one, other in zip(text, text[1:], strict=False)])
    assert abs(stayed - 0.25) < 0.05  # five deviations
    text = generate(counting(0.25), "a", tokens=2000, temperature=0.5)
    stayed = np.mean([one == other for one, other in zip(text, text[1:], strict=False)])
    assert abs(stayed - 0.1) < 0.04  # 1/16 against 9/16
    steady = generate(counting(0.25), "a", tokens=20, temperature=0.0)
    assert steady == "abcdefghabcdefghabcde"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    ran(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (np.zeros((2, 8, 8)), "[2, 8, 8]"),
        (np.zeros((0, 8, 8, 1)), "[0, 8, 8, 1]"),
        (np.full((1, 8, 8, 1), np.nan), "finite"),
        (np.full((1, 8, 8, 1), "a"), "<U1"),
        (["a text"], "texts"),
        (np.full((1, 8, 8, 1), 16, np.uint8), "uint8"),
    ],
    ids=range(6),
)
def test_inputs_of_another_form_are_refused(digits, inputs, name):
    with refused(name):
        predict(load_trained(digits), inputs)


def edited(folder, **changes):
    about = json.loads((folder / "params.json").read_text())
    (folder / "params.json").write_text(json.dumps(about | changes))


def renamed(folder):
    arrays = params_io.load(folder / "params.safetensors")
    arrays["dense/weight"] = arrays.pop("dense/kernel")
    params_io.save(folder / "params.safetensors", arrays)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda at: (at / "params.json").unlink(), "params.json"),
        (lambda at: (at / "params.safetensors").unlink(), "params.safetensors"),
        (lambda at: edited(at, model="own.py:net"), "plugin"),
        (lambda at: edited(at, outputs=9), "dense/bias"),
        (renamed, "dense/kernel"),
    ],
    ids=range(5),
)
def test_folders_without_a_whole_model_are_refused(digits, tmp_path, spoil, name):
    folder = shutil.copytree(digits, tmp_path / "run")
    assert isinstance(load_trained(folder), Trained)
    spoil(folder)
    with refused(name):
        load_trained(folder)
