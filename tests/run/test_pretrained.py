"""Runs begin with pretrained models, go on with them, and know them again."""

import json
import shutil

import jax
import numpy as np
import pytest

from fl_sketch.data import text
from fl_sketch.models import huggingface
from fl_sketch.run import (
    from_config,
    generate,
    load_params,
    load_trained,
    predict,
)
from fl_sketch.workdir import release
from tests import pretrained
from tests.data.test_text import splits
from tests.run.configs import (
    NOISY,
    begun,
    config_with,
    ran,
    read_json,
    refused,
    rows_of,
    stop_at,
)

pytestmark = pytest.mark.slow

SHORT = {
    "compute__devices": 1,
    "data__clients": 4,
    "data__length": 6,
    "data__name": "npz/texts",
    "cohort__size": 2,
    "client__steps": 2,
    "client__batch": 4,
    "sketch__compression": 2.0,
}


def table(folder, inputs, targets):
    """Writes texts.npz, with 60 examples to train on."""
    arrays = {"inputs": inputs, "targets": targets}
    train = {f"train_{name}": array[:60] for name, array in arrays.items()}
    test = {f"test_{name}": array[60:] for name, array in arrays.items()}
    np.savez(folder / "texts.npz", **train, **test)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with two models and texts of words of one half or the other."""
    place = tmp_path_factory.mktemp("place")
    random = np.random.default_rng(0)
    labels = random.permutation(80) % 2
    words = [
        random.choice(pretrained.WORDS[4 + 3 * label :][:3], 4) for label in labels
    ]
    table(place, np.array([" ".join(row) for row in words]), labels)
    pretrained.bert(place / "bert", num_hidden_layers=1)
    pretrained.llama(place / "llama", num_hidden_layers=1)
    return place


def of(place, kind="bert", **more):
    return SHORT | {"model__name": f"hf/{place / kind}"} | more


def first(place, **changes):
    """Returns the model of a run before its first round."""
    state = begun(config_with(**changes), str(place))
    return jax.device_get(state.server.params)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_run_begins_with_the_arrays_of_the_folder_and_learns(place, kind):
    start = first(place, **of(place, kind))
    own = huggingface.load(place / kind, 2).params
    for name in ("tokens", "block1", "norm"):
        pairs = zip(*map(jax.tree.leaves, (start[name], own[name])), strict=True)
        assert all(np.array_equal(*pair) for pair in pairs)
    assert start["dense"]["kernel"].std() > 0
    other = first(place, **of(place, kind, seed=1))
    assert not np.array_equal(start["dense"]["kernel"], other["dense"]["kernel"])
    changes = of(place, kind, rounds=30, eval_every=15, cohort__sampling="everyone")
    rows = rows_of(str(place), **changes, algorithm="fedavg", server__rate=1.0)
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]


def test_a_decoder_learns_the_next_tokens(place, tmp_path):
    random = np.random.default_rng(0)
    tokens = np.cumsum(random.integers(1, 3, (80, 7)), 1) % 10 + 4
    table(tmp_path, tokens[:, :-1], tokens[:, 1:])
    changes = of(place, "llama", data__classes=20, model__metrics="perplexity")
    rows = rows_of(str(tmp_path), rounds=30, eval_every=15, **changes)
    assert rows[-1]["test_loss"] < rows[0]["test_loss"]
    perplexity = np.exp(rows[-1]["test_loss"])
    np.testing.assert_allclose(rows[-1]["test_perplexity"], perplexity, rtol=1e-4)


def test_what_is_named_fresh_begins_anew(place):
    own = huggingface.load(place / "bert", 2).params
    start = first(place, **of(place, model__fresh="block1/query"))
    assert not np.array_equal(
        start["block1"]["query"]["kernel"], own["block1"]["query"]["kernel"]
    )
    assert np.array_equal(
        start["block1"]["key"]["kernel"], own["block1"]["key"]["kernel"]
    )
    with refused("fresh", "'blocks'"):
        from_config(config_with(**of(place, model__fresh="blocks")), str(place))


@pytest.fixture(scope="module")
def stopped(place):
    """A run that was stopped, and its model in a folder of its own."""
    folder = place / "stopped"
    shutil.copytree(place / "bert", folder / "bert")
    with pytest.MonkeyPatch.context() as patch:
        changes = of(folder) | {"data_dir": str(place)}
        stop_at(folder / "run", 4, patch, **changes)
    return folder


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_run_does_not_go_on_with_a_folder_that_changed(place, stopped, name):
    path = stopped / "bert" / name
    whole = path.read_bytes()
    if name == "model.safetensors":
        path.write_bytes(whole[:-4] + bytes([whole[-4] ^ 1]) + whole[-3:])  # one bit
    else:
        path.write_text(json.dumps(json.loads(whole), indent=1))
    with refused("workdir", error=Exception):
        ran(stopped / "run", str(place), **of(stopped))
    path.write_bytes(whole)


def test_a_stopped_run_goes_on_and_predicts_without_its_folder(
    place, stopped, tmp_path
):
    """And another run begins with what it ended with."""
    folder = shutil.copytree(stopped / "run", tmp_path / "run")
    summary, lines = ran(folder, str(place), **of(stopped))
    assert any("resuming after round" in line for line in lines)
    about = read_json(folder / "params.json")
    assert about["pretrained"]["fresh"] == ["dense/bias", "dense/kernel"]
    assert about["pretrained"]["left_out"] == ["pooler.dense.weight"]
    assert about["pretrained"]["config"]["hidden_size"] == 8
    start = first(place, **of(place, model__init_from=str(folder)))
    pairs = zip(*map(jax.tree.leaves, (start, load_params(folder))), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)
    (stopped / "bert").rename(tmp_path / "bert")
    trained = load_trained(folder)
    with np.load(place / "texts.npz") as arrays:
        texts, labels = arrays["test_inputs"].tolist(), arrays["test_targets"]
    right = (predict(trained, texts).argmax(1) == labels).mean()
    (tmp_path / "bert").rename(stopped / "bert")
    assert right == pytest.approx(summary["test_accuracy"], abs=1e-6)


def test_a_decoder_goes_on_with_a_text_of_its_own_words(place, tmp_path):
    play = splits("shakespeare", ["a bad film was fun", "good"] * 9, ["a bad film"])
    found = text.encoded_by_folder(play, f"hf/{place / 'llama'}", length=6)
    table(tmp_path, *(np.resize(part, (80, 6)) for part in found.train))
    changes = of(place, "llama", data__classes=20)
    ran(tmp_path / "run", str(tmp_path), **changes)
    about = read_json(tmp_path / "run/params.json")
    about["inputs"]["tokenizer"] = found.tokenizer.to_json()
    (tmp_path / "run/params.json").write_text(json.dumps(about))
    trained = load_trained(tmp_path / "run")
    words = generate(trained, "a bad", tokens=7).split()
    assert words[:2] == ["a", "bad"] and len(words) == 9
    assert not any(word.startswith("[") for word in words)
    # What is drawn first follows the text as the model has it.
    ids = found.tokenizer.tokens("a bad")
    logits = np.array(trained.apply(trained.variables, np.resize(ids, (1, 2))))[0, -1]
    logits[[0, 1, 2, 3, *range(10, 20)]] = -np.inf  # special ones, and no words
    first = generate(trained, "a bad", tokens=1, temperature=0).split()[2]
    assert found.tokenizer.tokens(first).tolist() == [logits.argmax()]
    with refused("one token at least"):
        generate(trained, "")


PRIVATE = NOISY | {"privacy__randomness": "system", "data__classes": 2}


def test_a_private_run_refuses_a_folder_that_names_its_data(place, tmp_path):
    """A folder without a record counts as public, as a file of weights does."""
    assert from_config(config_with(**of(place) | PRIVATE), str(place)).private
    shutil.copytree(place / "bert", tmp_path / "tuned")
    (tmp_path / "tuned/params.json").write_text('{"trained_on": ["texts"]}')
    tuned = config_with(**of(tmp_path, "tuned") | PRIVATE)
    with refused("public", "name=hf/"):
        from_config(tuned, str(place))
    tuned.data.public = True
    assert from_config(tuned, str(place)).private


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model__name": "hf/nowhere"}, ["config.json", "'hf/nowhere'"]),
        ({"data__vocabulary_file": "characters"}, ["vocabulary_file"]),
        ({"data__length": 2}, ["config.data: ", "length=2"]),
        ({"data__length": 17}, ["config.model: ", "length=17"]),
        ({"model__norm": "batch"}, ["config.model: ", "norm"]),
        ({"model__size": "paper"}, ["config.model: ", "size"]),
        ({"data__name": "digits"}, ["config.model: ", "integer tokens"]),
    ],
    ids=range(7),
)
def test_what_a_config_may_not_say_of_a_folder_is_one_line(place, changes, parts):
    with refused(*parts, error=(ValueError, TypeError, FileNotFoundError)):
        from_config(config_with(**of(place) | changes), str(place))


LORA = {"client__trains": "lora(rank=2, on=query)+head"}


def test_a_run_of_low_rank_parts_leaves_the_whole_model(place, tmp_path):
    """Predictions and releases need no `client.trains`, and no folder."""
    own = huggingface.load(place / "bert", 2).params
    shutil.copytree(place / "bert", tmp_path / "bert")
    ran(tmp_path / "run", str(place), **of(tmp_path) | PRIVATE | LORA)
    shutil.rmtree(tmp_path / "bert")
    about = read_json(tmp_path / "run/params.json")
    assert about["pretrained"]["fresh"] == ["dense/bias", "dense/kernel"]
    params = load_params(tmp_path / "run")
    for name, moved in {"query": True, "key": False}.items():
        pair = (tree["block1"][name]["kernel"] for tree in (params, own))
        assert np.array_equal(*pair) != moved
    release.release(tmp_path / "run", tmp_path / "out")
    for file in (tmp_path / "out").iterdir():
        assert str(tmp_path).encode() not in file.read_bytes(), file
    texts = ["a good film", "bad fun"]
    one, other = (load_trained(tmp_path / name) for name in ("run", "out"))
    assert np.array_equal(predict(one, texts), predict(other, texts))
