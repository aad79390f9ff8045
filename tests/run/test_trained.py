"""A trained model predicts elsewhere what it did in its run, and continues texts."""

import io
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from fl_sketch import models
from fl_sketch.core import untrusted_files
from fl_sketch.core.tokens import SPECIAL
from fl_sketch.data import datasets, tokenizer
from fl_sketch.models import params_io
from fl_sketch.run import (
    generate,
    generation,
    load_trained,
    predict,
    prediction,
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
        {"model__name": "mlp", "model__width": 30},
        {"data__standardise": "train"},
        {"data__name": "mnist", "data__clients": 3, "cohort__size": 2,
         "model__name": "lenet", "data__standardise": "0.1/0.3"},
        {"data__name": "cifar10", "data__clients": 3, "cohort__size": 2,
         "model__name": "resnet", "model__norm": "batch", "model__size": "tiny",
         "data__augment": "crop_flip"},
        {"model__name": f"{own.__file__}:normed"},
    ],
    ids=range(6),
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
    with refused("one text at least"):
        predict(trained, [])
    for token in (-1, 10):
        with refused("tokens from 0 to 9", str(token)):
            predict(trained, np.full((1, 8), token))
    with refused("language model", "one prediction"):
        generate(trained)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["binary", "squared"])
def test_labels_have_probabilities_of_their_own_and_numbers_none(tmp_path, loss):
    x = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    y = (x[:, :2] > 0).astype(np.float32) if loss == "binary" else x[:, :2] * 9
    arrays = {f"{part}_inputs": x for part in ("train", "test")}
    arrays |= {f"{part}_targets": y for part in ("train", "test")}
    np.savez(tmp_path / "own.npz", **arrays, class_names=np.array(["a", "b"]))
    keys = {"data__name": "npz/own", "model__loss": loss}
    trained, _ = ran(tmp_path / "run", tmp_path, **keys)
    kernel, bias = trained.params["dense"]["kernel"], trained.params["dense"]["bias"]
    outputs = x @ kernel.T + bias
    expected = outputs if loss == "squared" else 1 / (1 + np.exp(-outputs))
    np.testing.assert_allclose(predict(trained, x), expected, rtol=1e-4, atol=1e-5)
    with refused("floats as those of", "bytes"):
        predict(trained, np.zeros((2, 5), np.uint8))


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
    for bad, words in (
        ({"prompt": "é"}, "é"),
        ({"tokens": 0}, "tokens=0"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
    ):
        with refused(words):
            generate(trained, **bad)
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


def test_a_model_of_words_writes_words_after_a_prompt_that_it_half_knows():
    model = counting(0.0)
    model.tokenizer = tokenizer.Table("words", tuple("abcdefgh"))
    text = generate(model, "A dull  b", tokens=3, temperature=0.0)
    assert text == f"a {tokenizer.UNREADABLE} b c d e"


def test_every_number_of_tokens_has_one_program():
    model = counting(0.5)
    generate(model, "a", tokens=3)
    before = generation._block._cache_size()
    for tokens, temperature, seed in ((200, 0.5, 1), (64, 0.0, 2), (1, 2.0, 3)):
        generate(model, "abc", tokens=tokens, temperature=temperature, seed=seed)
    assert generation._block._cache_size() == before


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    ran(folder)
    return folder


@pytest.mark.slow
def test_pictures_of_digits_are_what_the_data_set_has(digits, tmp_path):
    trained = load_trained(digits)
    images = datasets.load("digits").test.inputs[:5]
    pixels = np.rint(images * 255).astype(np.uint8)
    Image.fromarray(pixels[0, ..., 0]).save(tmp_path / "a.png")
    found = predict(trained, images)
    np.testing.assert_allclose(predict(trained, pixels), found, atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (np.zeros((2, 8, 8)), ["[n, 8, 8, 1]", "[2, 8, 8]"]),
        (np.zeros((0, 8, 8, 1)), ["[0, 8, 8, 1]"]),
        (np.full((1, 8, 8, 1), np.nan), ["finite"]),
        (np.full((1, 8, 8, 1), "a"), ["finite numbers, got <U1"]),
        (["a text"], ["[8, 8, 1]", "texts"]),
        (np.full((1, 8, 8, 1), 16, np.uint8), ["uint8 from 16 to 16", "by 16"]),
        (np.full((1, 8, 8, 1), 12), ["int64 from 12 to 12", "by 16"]),
        (np.full((1, 8, 8, 1), 16.0), ["float64 from 16.0 to 16.0", "by 16"]),
    ],
    ids=range(8),
)
def test_inputs_of_another_form_are_refused(digits, inputs, words):
    with refused(*words):
        predict(load_trained(digits), inputs)


def test_numbers_beyond_those_of_training_are_refused():
    with refused("fit float32"):
        prediction._floats(np.full((1, 3), 1e39), "float32", "npz/own")
    content = io.BytesIO()
    Image.fromarray(np.full((4, 4), 30000, np.uint16)).save(content, "png")
    with refused("8 bits a channel", "mode I;16"):
        untrusted_files.picture(content.getvalue(), "L", ["png"])


@pytest.mark.slow
def test_digits_may_be_black_white_or_noisy(digits):
    trained, black = load_trained(digits), np.zeros((1, 8, 8, 1))
    for given in (black, black + 1, black + 1.3):
        assert np.isfinite(predict(trained, given)).all()
    found = [predict(trained, images) for images in (black, black.astype(np.uint8))]
    np.testing.assert_array_equal(*found)


@pytest.mark.slow
def test_floats_beyond_one_are_no_pixels(tmp_path, raw):
    keys = {"data__name": "mnist", "data__clients": 3, "cohort__size": 2}
    trained, _ = ran(tmp_path, raw, **keys)
    with refused("bytes or floats from 0 to 1", "int64 from 255 to 255"):
        predict(trained, np.full((1, 28, 28, 1), 255))
    white = np.full((1, 28, 28, 1), 255, np.uint8)
    ones = white.astype(np.float32) / 255
    np.testing.assert_allclose(predict(trained, white), predict(trained, ones))


def edited(folder, **changes):
    about = json.loads((folder / "params.json").read_text())
    (folder / "params.json").write_text(json.dumps(about | changes))


def within(folder, name):
    shutil.move(folder, folder.parent / name)
    folder.mkdir()
    shutil.move(folder.parent / name, folder)


def renamed(folder):
    arrays = params_io.load(folder / "params.safetensors")
    arrays["dense/weight"] = arrays.pop("dense/kernel")
    params_io.save(folder / "params.safetensors", arrays)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda at: (at / "params.json").unlink(), ["finished run", "params.json"]),
        (lambda at: (at / "params.safetensors").unlink(), ["params.safetensors"]),
        (
            lambda at: (at / "params.json").write_text("{"),
            ["params.json to be unchanged"],
        ),
        (lambda at: (at / "params.json").write_text("{}"), ["KeyError: 'model'"]),
        (lambda at: edited(at, model="own.py:net"), ["plugin=own.py:net"]),
        (lambda at: edited(at, model="lenett"), ["'lenet'"]),
        (lambda at: edited(at, outputs=9), ["dense/bias of shape (9,)", "(10,)"]),
        (lambda at: edited(at, loss="none"), ["loss='none'"]),
        (lambda at: (at / "params.safetensors").write_bytes(b"x"), ["arrays by name"]),
        (renamed, ["dense/kernel of shape (10, 64)", "got none"]),
        (lambda at: within(at, "best"), ["run", "of a sweep", "run/best"]),
    ],
    ids=range(11),
)
def test_folders_without_a_whole_model_are_refused(digits, tmp_path, spoil, words):
    folder = shutil.copytree(digits, tmp_path / "run")
    assert isinstance(load_trained(folder), Trained)
    spoil(folder)
    with refused(*words):
        load_trained(folder)


@pytest.mark.slow
def test_a_model_of_python_code_alone_is_refused(digits, tmp_path):
    folder = shutil.copytree(digits, tmp_path / "run")
    (folder / "params.json").write_text('{"model": "engine.simulate"}')
    with refused("a config names", "engine.simulate"):
        load_trained(folder)
