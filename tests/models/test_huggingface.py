"""Pretrained models compute what their files say, and incomplete files are refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from fl_sketch import models
from fl_sketch.core import trees
from fl_sketch.models import huggingface
from fl_sketch.models.huggingface import efficientnet, from_torch
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


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_an_encoder_computes_what_the_reference_does(tmp_path, pool):
    config, arrays = pretrained.bert(tmp_path)
    model = huggingface.load(tmp_path, pool=pool)
    expected = [oracle.bert(doubles(arrays), config, row, pool) for row in TOKENS]
    np.testing.assert_allclose(outputs(model), expected, atol=1e-5)
    assert model.fresh == ()
    pooler = {"pooler.dense.bias", "pooler.dense.weight"}
    assert {*model.left_out} == (pooler if pool == "mean" else set())


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


def statistics(arrays):
    """Returns arrays with the statistics of a batch normalisation for each of them."""
    random, found = np.random.default_rng(1), dict(arrays)
    for name in arrays:
        place, _, last = name.rpartition(".")
        if "_bn" in place and last == "weight":
            size = arrays[name].shape
            found[f"{place}.running_mean"] = random.normal(size=size) / 4
            found[f"{place}.running_var"] = random.uniform(0.5, 1.5, size=size)
            found[name] = random.uniform(0.5, 1.5, size=size)
            found[f"{place}.num_batches_tracked"] = np.array(7)
    return found


def test_an_efficientnet_enlarges_images_and_computes_what_the_reference_does(tmp_path):
    config = from_torch.CONFIG | {"image_size": 32}
    folder = pretrained.write(tmp_path, config, {})
    module = huggingface.module(str(folder), 5)
    image = np.random.default_rng(2).uniform(size=(1, 16, 16, 3)).astype(np.float32)
    shapes = jax.eval_shape(module.init, jax.random.key(0), image)["params"]
    assert trees.size(shapes) == 3_371_008 + 1281 * 5
    form = efficientnet.form(None)
    leaves = dict(trees.named_leaves(shapes))
    theirs = {
        entry.theirs: tuple(
            leaves[entry.ours].shape[axis]
            for axis in (np.argsort(entry.axes) if entry.axes else [0])
        )
        for entry in form.table
        if entry.ours in leaves
    }
    arrays = statistics(pretrained.drawn(theirs))
    single = {n: a.astype(np.float32) for n, a in from_torch.folded(arrays).items()}
    save_file(single, folder / "model.safetensors")
    model = huggingface.load(folder)
    large = np.asarray(jax.image.resize(image[0], (32, 32, 3), "bilinear"), np.float64)
    expected = oracle.efficientnet_lite0(doubles(arrays), (large - 0.498) / 0.502)
    np.testing.assert_allclose(outputs(model, image)[0], expected, rtol=2e-3, atol=1e-5)
    assert model.left_out == ("_fc.bias", "_fc.weight")


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


def test_several_files_and_short_types_hold_the_same_model(tmp_path):
    config, arrays = pretrained.bert(tmp_path / "a")
    arrays = pretrained.short(arrays)
    pretrained.write(tmp_path / "b", config, arrays, pretrained.tokenizer(), shards=3)
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


@pytest.mark.parametrize("write", [pretrained.bert, pretrained.llama])
def test_a_model_is_written_as_it_came(tmp_path, write):
    _, arrays = write(tmp_path / "a")
    own = huggingface.load(tmp_path / "a", 3)
    huggingface.save(own.params, tmp_path / "a", tmp_path / "b")
    again = huggingface.load(tmp_path / "b", 3)
    assert again.fresh == () and set(again.left_out) == set()
    equal = jax.tree.map(np.array_equal, own.params, again.params)
    assert all(jax.tree.leaves(equal))
    assert np.array_equal(outputs(own), outputs(again))
    assert (tmp_path / "b/tokenizer.json").is_file()


def test_names_next_to_a_head_have_their_prefix(tmp_path):
    """As `from_pretrained` of transformers requires, and a header with the format."""
    for write, prefix in ((pretrained.bert, "bert."), (pretrained.llama, "model.")):
        folder = tmp_path / prefix
        write(folder)
        for classes in (3, 0):
            own = huggingface.load(folder, classes)
            huggingface.save(own.params, folder, tmp_path / "saved")
            with safe_open(tmp_path / "saved/model.safetensors", "numpy") as file:
                names, metadata = [*file.keys()], file.metadata()
            assert metadata == {"format": "pt"}
            heads = [
                n for n in names if n.startswith(("classifier", "score", "lm_head"))
            ]
            begun = {n.startswith(prefix) for n in names if n not in heads}
            assert begun == {bool(heads)} and (heads or not classes)


def test_a_number_of_classes_is_none_or_at_least_one(tmp_path):
    pretrained.bert(tmp_path)
    with refused("classes=-1"):
        huggingface.load(tmp_path, -1)


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
        (pretrained.bert, added("encoder.layer.0.gate"), ["encoder.layer.0.gate"]),
        (pretrained.bert, added("encoder.layer.7.output.bias"), ["layer.7"]),
        (pretrained.bert, changed(model_type="t5"), ["'t5'", "bert", "llama"]),
        (pretrained.bert, changed(hidden_act="tanh"), ["hidden_act", "'tanh'"]),
        (pretrained.bert, changed(num_attention_heads=3), ["hidden_size=8", "3"]),
        (pretrained.bert, changed(vocab_size=None), ["vocab_size", "None"]),
        (pretrained.bert, changed(vocab_size=21), ["word_embeddings", "(21, 8)"]),
        (pretrained.bert, changed(is_decoder=True), ["is_decoder", "True"]),
        (
            pretrained.bert,
            changed(position_embedding_type="relative_key"),
            ["position_embedding_type"],
        ),
        (pretrained.llama, reshaped(DOWN), ["down_proj", "(8, 12)", "(7, 12)"]),
        (pretrained.llama, without("model.norm.weight"), ["norm.weight"]),
        (pretrained.llama, changed(tie_word_embeddings=False), ["lm_head"]),
        (pretrained.llama, changed(attention_bias=True), ["attention_bias"]),
        (pretrained.llama, changed(num_key_value_heads=3), ["num_key_value_heads"]),
        (pretrained.llama, changed(rope_scaling={"type": "linear"}), ["'linear'"]),
        (pretrained.llama, changed(eos_token_id=None), ["pad_token_id", "None"]),
        (pretrained.llama, changed(eos_token_id=99), ["vocab_size=20", "99"]),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_in_one_line(
    tmp_path, write, change, parts
):
    config, arrays = write(tmp_path)
    change(config, arrays)
    pretrained.write(tmp_path, config, arrays)
    with refused(*parts):
        huggingface.load(tmp_path)


def broken(name, content):
    def write(folder):
        (folder / name).write_bytes(content)

    return write


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda folder: (folder / "config.json").unlink(), ["config.json"]),
        (lambda folder: (folder / "model.safetensors").unlink(), ["no model.safe"]),
        (broken("config.json", b"{"), ["config.json"]),
        (broken("config.json", b"[]"), ["config.json"]),
        (broken("config.json", b'{"hidden_size": 3}'), ["model_type"]),
        (broken("model.safetensors", b"\0" * 20), ["model.safetensors"]),
        (broken("tokenizer.json", b"{}"), ["tokenizer.json"]),
    ],
    ids=range(7),
)
def test_a_damaged_folder_is_refused_in_one_line(tmp_path, change, parts):
    pretrained.bert(tmp_path)
    change(tmp_path)
    with refused(*parts, error=(ValueError, FileNotFoundError)):
        huggingface.load(tmp_path)


@pytest.mark.parametrize("found", [{"a": "../b"}, {}, [], {"a": 3}, {"a": ""}])
def test_an_index_names_files_of_its_folder(tmp_path, found):
    pretrained.bert(tmp_path, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": found}))
    with refused("weight_map"):
        huggingface.load(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with refused("gone.safetensors", error=FileNotFoundError):
        huggingface.load(tmp_path)


def test_an_array_in_two_files_is_refused(tmp_path):
    _, arrays = pretrained.bert(tmp_path, shards=2)
    name = next(iter(arrays))
    file = tmp_path / "model-00002-of-00002.safetensors"
    save_file({f"bert.{name}": arrays[name]} | dict(list(arrays.items())[1::2]), file)
    with refused(name, "00001", "00002"):
        huggingface.load(tmp_path)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"pool": "last"}, ["pool", "'last'", "mean"]),
        ({"dropout": 1.0}, ["dropout=1.0"]),
        ({"norm": "batch"}, ["'norm'", "pool, dropout"]),
        ({"size": "paper"}, ["size='paper'"]),
    ],
)
def test_options_are_those_of_the_type(tmp_path, options, parts):
    pretrained.bert(tmp_path)
    with refused(*parts):
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
