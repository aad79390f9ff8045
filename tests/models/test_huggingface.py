"""Pretrained models compute what their files say, and incomplete files are refused."""

import jax
import numpy as np
import pytest

from fl_sketch.models import huggingface
from tests import pretrained
from tests.channels.rounds import quickly
from tests.oracles import pretrained as oracle
from tests.refusals import refused

# Two texts, the second one filled up behind four tokens.
TOKENS = np.array([[2, 4, 9, 5, 6, 3], [2, 8, 7, 3, 0, 0]], np.int32)


def outputs(model, inputs=TOKENS):
    apply = quickly(lambda params, x: model.module.apply({"params": params}, x))
    return np.asarray(apply(model.params, inputs))


def doubles(arrays):
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def test_an_encoder_computes_what_the_reference_does(tmp_path):
    config, arrays = pretrained.bert(tmp_path)
    model = huggingface.load(tmp_path)
    expected = [oracle.bert(doubles(arrays), config, row) for row in TOKENS]
    np.testing.assert_allclose(outputs(model), expected, atol=1e-5)
    assert (model.fresh, model.left_out) == ((), ("pooler.dense.weight",))


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_computes_what_the_reference_does(tmp_path, tied):
    config, arrays = pretrained.llama(tmp_path, tie_word_embeddings=tied)
    model, exact = huggingface.load(tmp_path), doubles(arrays)
    name = "model.embed_tokens.weight" if tied else "lm_head.weight"
    expected = [oracle.llama(exact, config, row) @ exact[name].T for row in TOKENS]
    np.testing.assert_allclose(outputs(model), expected, atol=1e-5)
    assert (model.fresh, model.left_out) == ((), ())


def test_the_head_of_a_decoder_is_on_the_last_token_of_a_text(tmp_path):
    config, arrays = pretrained.llama(tmp_path, pad_token_id=0)
    model = huggingface.load(tmp_path, 3)
    assert model.fresh == ("dense/kernel",)
    states = [oracle.llama(doubles(arrays), config, row) for row in TOKENS]
    last = np.stack([states[0][5], states[1][3]])
    expected = last @ np.asarray(model.params["dense"]["kernel"])
    np.testing.assert_allclose(outputs(model), expected, atol=1e-5)


def older(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
    )


@pytest.mark.parametrize("rename", [lambda name: f"bert.{name}", older, None])
def test_names_of_older_files_and_of_larger_models_and_short_types_are_read(
    tmp_path, rename
):
    config, arrays = pretrained.bert(tmp_path / "a")
    if rename is None:
        more = pretrained.short(arrays)
        arrays = {name: array.astype(np.float32) for name, array in more.items()}
        pretrained.write(tmp_path / "a", config, arrays, pretrained.tokenizer())
    else:
        more = {rename(name): array for name, array in arrays.items()}
        more["cls.predictions.bias"] = np.ones(20, np.float32)
        more["bert.embeddings.position_ids"] = np.arange(16)[None]
    pretrained.write(tmp_path / "b", config, more, pretrained.tokenizer())
    one, other = (huggingface.load(tmp_path / name) for name in "ab")
    assert np.array_equal(outputs(one), outputs(other))
    assert {leaf.dtype for leaf in jax.tree.leaves(other.params)} == {np.dtype("f4")}


def test_a_head_is_taken_if_it_has_as_many_classes_and_drawn_by_a_key_otherwise(
    tmp_path,
):
    config, arrays = pretrained.bert(tmp_path)
    head = {"classifier.weight": (3, 8), "classifier.bias": (3,)}
    arrays |= pretrained.drawn(head, 1)
    pretrained.write(tmp_path, config, arrays)
    own = huggingface.load(tmp_path, 3)
    kernel = np.asarray(own.params["dense"]["kernel"])
    assert np.array_equal(kernel, arrays["classifier.weight"].T) and own.fresh == ()
    keys = [jax.random.key(seed) for seed in (0, 0, 1)]
    others = [huggingface.load(tmp_path, 2, key=key) for key in keys]
    assert {*others[0].fresh} == {"dense/kernel", "dense/bias"}
    assert {*head} < {*others[0].left_out}
    a, b, c = (np.asarray(one.params["dense"]["kernel"]) for one in others)
    assert np.array_equal(a, b) and not np.array_equal(a, c) and a.std() > 0


QUERY = "encoder.layer.1.attention.self.query.weight"
WRONG = [  # a type, changes of its config and of its arrays (None: missing)
    (pretrained.bert, {}, {QUERY: None}, QUERY),
    (pretrained.bert, {}, {QUERY: np.ones((7, 8), "f4")}, "(7, 8)"),
    (pretrained.bert, {}, {"encoder.layer.7.output.bias": np.ones(3, "f4")}, "layer.7"),
    (pretrained.bert, {"model_type": "t5"}, {}, "'t5'"),
    (pretrained.bert, {"num_attention_heads": 3}, {}, "hidden_size=8"),
    (pretrained.bert, {"vocab_size": None}, {}, "vocab_size"),
    (pretrained.llama, {"tie_word_embeddings": False}, {}, "lm_head"),
    (pretrained.llama, {"num_key_value_heads": 3}, {}, "num_key_value_heads"),
    (pretrained.llama, {"rope_scaling": {"type": "linear"}}, {}, "'linear'"),
    (pretrained.llama, {"eos_token_id": 99}, {}, "vocab_size=20"),
]


@pytest.mark.parametrize(
    ("make", "keys", "changed", "part"), WRONG, ids=range(len(WRONG))
)
def test_a_folder_that_does_not_fit_is_refused_in_one_line(
    tmp_path, make, keys, changed, part
):
    config, arrays = make(tmp_path)
    arrays = {n: a for n, a in (arrays | changed).items() if a is not None}
    pretrained.write(tmp_path, config | keys, arrays)
    with refused(part):
        huggingface.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", None),
        ("config.json", b"{"),
        ("model.safetensors", b"\0" * 20),
    ],
    ids=range(3),
)
def test_a_damaged_folder_is_refused_in_one_line(tmp_path, name, content):
    pretrained.bert(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with refused(name, error=(ValueError, FileNotFoundError)):
        huggingface.load(tmp_path)
