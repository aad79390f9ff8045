"""Pretrained models compute what their files say, and incomplete files are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import models
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


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"bert.{name}",
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ),
    ],
)
def test_names_of_older_files_and_of_larger_models_are_understood(tmp_path, rename):
    config, arrays = pretrained.bert(tmp_path / "a")
    more = {"cls.predictions.bias": np.ones(20, np.float32)}
    more["bert.embeddings.position_ids"] = np.arange(16)[None]
    renamed = {rename(name): array for name, array in arrays.items()} | more
    pretrained.write(tmp_path / "b", config, renamed, pretrained.tokenizer())
    one, other = (huggingface.load(tmp_path / name) for name in "ab")
    assert np.array_equal(outputs(one), outputs(other))
    assert {"cls.predictions.bias", "embeddings.position_ids"} < {*other.left_out}


def test_short_types_hold_the_same_model(tmp_path):
    config, arrays = pretrained.bert(tmp_path / "a")
    arrays = pretrained.short(arrays)
    pretrained.write(tmp_path / "b", config, arrays, pretrained.tokenizer())
    long = {name: array.astype(np.float32) for name, array in arrays.items()}
    pretrained.write(tmp_path / "a", config, long, pretrained.tokenizer())
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


def without(name):
    return lambda config, arrays: arrays.pop(name)


def reshaped(name):
    return lambda config, arrays: arrays.update({name: arrays[name][1:].copy()})


def changed(**keys):
    return lambda config, arrays: config.update(keys)


def added(name):
    return lambda config, arrays: arrays.update({name: np.ones(3, np.float32)})


QUERY = "encoder.layer.1.attention.self.query.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("write", "change", "parts"),
    [
        (pretrained.bert, without(QUERY), [QUERY, "(8, 8)", "none"]),
        (pretrained.bert, reshaped(QUERY), [QUERY, "(8, 8)", "(7, 8)"]),
        (pretrained.bert, added("encoder.layer.7.output.bias"), ["layer.7"]),
        (pretrained.bert, changed(model_type="t5"), ["'t5'", "bert", "llama"]),
        (pretrained.bert, changed(hidden_act="tanh"), ["hidden_act", "'tanh'"]),
        (pretrained.bert, changed(num_attention_heads=3), ["hidden_size=8", "3"]),
        (pretrained.bert, changed(vocab_size=None), ["vocab_size", "None"]),
        (pretrained.llama, changed(tie_word_embeddings=False), ["lm_head"]),
        (pretrained.llama, changed(num_key_value_heads=3), ["num_key_value_heads"]),
        (pretrained.llama, changed(rope_scaling={"type": "linear"}), ["'linear'"]),
        (pretrained.llama, changed(eos_token_id=99), ["vocab_size=20", "99"]),
    ],
    ids=range(11),
)
def test_a_folder_that_does_not_fit_is_refused_in_one_line(
    tmp_path, write, change, parts
):
    config, arrays = write(tmp_path)
    change(config, arrays)
    pretrained.write(tmp_path, config, arrays)
    with refused(*parts):
        huggingface.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", None),
        ("model.safetensors", None),
        ("config.json", b"{"),
        ("config.json", b'{"hidden_size": 3}'),
        ("model.safetensors", b"\0" * 20),
    ],
    ids=range(5),
)
def test_a_damaged_folder_is_refused_in_one_line(tmp_path, name, content):
    pretrained.bert(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with refused(name, error=(ValueError, FileNotFoundError)):
        huggingface.load(tmp_path)


@pytest.mark.parametrize(
    ("options", "part"),
    [({"dropout": 1.0}, "dropout=1.0"), ({"norm": "batch"}, "among dropout")],
)
def test_options_are_those_of_the_type(tmp_path, options, part):
    pretrained.bert(tmp_path)
    with refused(part):
        models.build(f"hf/{tmp_path}", 2, **options)


def test_texts_longer_than_the_model_are_refused(tmp_path):
    pretrained.bert(tmp_path)
    module = models.build(f"hf/{tmp_path}", 2)
    with refused("length=17", "16"):
        jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 17), jnp.int32))


def test_dropout_is_there_in_training_alone(tmp_path):
    pretrained.bert(tmp_path, num_hidden_layers=1)
    module = models.build(f"hf/{tmp_path}", 2, dropout=0.5)
    loss, params = models.classification(module), huggingface.load(tmp_path, 2).params

    @quickly
    def values(key, other):
        train = [
            loss.value(params, TOKENS, jnp.array([0, 1]), key=k) for k in (key, other)
        ]
        return *train, module.apply({"params": params}, TOKENS)

    one, other, logits = values(jax.random.key(0), jax.random.key(1))
    assert loss.random and float(one) != float(other)
    plain = outputs(huggingface.load(tmp_path, 2))
    np.testing.assert_allclose(logits, plain, rtol=1e-5)
