"""Models as named arrays: back as they were, and nothing else is taken for one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import models
from fl_sketch.core.trees import Stateful, named_leaves
from fl_sketch.models import params_io, registry
from tests.refusals import refused

pytestmark = pytest.mark.fast

MODEL = {"dense": {"bias": jnp.zeros(2), "kernel": jnp.zeros((3, 2))}}
ARRAYS = {"dense/bias": np.ones(2), "dense/kernel": np.arange(6.0).reshape(3, 2)}


@pytest.mark.parametrize("form", params_io.FORMS)
def test_what_is_saved_is_what_is_loaded(tmp_path, form):
    arrays = ARRAYS | {"short": np.asarray(jnp.arange(3, dtype=jnp.bfloat16))}
    arrays = arrays if form == "safetensors" else ARRAYS
    params_io.save(tmp_path / f"own.{form}", arrays)
    loaded = params_io.load(tmp_path / f"own.{form}")
    assert params_io.digest(loaded) == params_io.digest(arrays)


def test_a_digest_is_of_names_types_shapes_and_numbers_in_any_order():
    own = params_io.digest(ARRAYS)
    assert params_io.digest(dict(reversed(ARRAYS.items()))) == own
    bias = ARRAYS["dense/bias"]
    for name, array in (
        ("dense/bios", bias),
        ("dense/bias", bias.view(np.int64)),
        ("dense/bias", bias[:, None]),
        ("dense/bias", bias + 1e-9),
    ):
        kernel = {"dense/kernel": ARRAYS["dense/kernel"]}
        assert params_io.digest(kernel | {name: array}) != own


def test_chosen_arrays_have_the_types_and_places_of_the_model():
    chosen = params_io.chosen(MODEL, ARRAYS, ["dense/bias"])
    assert {*chosen} == {"dense/kernel"}
    assert chosen["dense/kernel"].dtype == np.float32
    placed = params_io.placed(MODEL, chosen)
    np.testing.assert_array_equal(placed["dense"]["kernel"], ARRAYS["dense/kernel"])
    np.testing.assert_array_equal(placed["dense"]["bias"], 0)
    whole = params_io.tree_of({"params/a": 1, "state/b": 2})
    assert whole == Stateful({"a": 1}, {"b": 2})


def test_layers_of_nnx_can_begin_anew():
    model = {"fc1.kernel": jnp.ones((2, 3)), "fc2.bias": jnp.ones(2)}
    assert {*params_io.chosen(model, {"fc1.kernel": np.ones((2, 3))}, ["fc2"])} == {
        "fc1.kernel"
    }
    with refused("fresh", "(fc1, fc2)", "'fc3'"):
        params_io.chosen(model, {}, ["fc3"])


def test_an_nnx_model_of_a_config_begins_with_arrays_of_one_trained_in_python():
    model = {"fc1.kernel": jnp.ones((2, 3)), "fc2.bias": jnp.ones(2)}
    arrays = {"fc1/kernel/value": np.ones((2, 3)), "fc2/bias/value": np.zeros(2)}
    assert {*params_io.chosen(model, arrays, [])} == {*model}
    linen = {"fc1/value": jnp.ones(2), "fc1": jnp.ones(2)}  # keeps its own names
    same = {"fc1/value": np.zeros(2), "fc1": np.ones(2)}
    assert params_io.chosen(linen, same, [])["fc1/value"].sum() == 0


@pytest.mark.parametrize(
    ("changes", "fresh", "parts"),
    [
        ({}, ["dens"], ["'dens'", "dense"]),
        ({"dense/bias": np.ones(3)}, [], ["dense/bias", "(2,)", "(3,)"]),
        ({"other": np.ones(3)}, [], ["other"]),
        ({"dense/bias": np.array([1, np.nan])}, [], ["finite", "dense/bias"]),
        ({"dense/bias": np.array([1, 1e300])}, [], ["finite", "float32"]),
        ({"dense/bias": np.array(["a", "b"])}, [], ["dense/bias", "numbers"]),
    ],
)
def test_arrays_of_no_such_model_are_refused(changes, fresh, parts):
    with refused("fresh" if fresh else "init_from", *parts):
        params_io.chosen(MODEL, ARRAYS | changes, fresh)


def test_an_array_that_is_missing_is_named():
    with refused("dense/kernel", "dense/bias"):
        params_io.chosen(MODEL, {"dense/bias": np.ones(2)}, [])


@pytest.mark.parametrize("name", registry.MODELS)
def test_the_axes_of_every_array_have_the_lengths_that_the_model_gives_them(name):
    """Kernels end where their biases do, and begin where inputs do."""
    texts = name in ("transformer", "language_model")
    inputs = jnp.ones((2, 9), jnp.int32) if texts else jnp.ones((2, 16, 16, 3))
    options = {"vocabulary": 50} if name == "transformer" else {}
    model = models.build(name, 7, **options)
    tree = jax.eval_shape(model.init, jax.random.key(0), inputs)["params"]
    shapes = {path: leaf.shape for path, leaf in named_leaves(tree)}
    axes = params_io.axes_of(name, shapes)
    assert axes.keys() == shapes.keys()
    lengths = {path: dict(zip(axes[path], shapes[path], strict=True)) for path in axes}
    for path in lengths:
        if path.endswith("kernel") and path.replace("kernel", "bias") in lengths:
            bias = lengths[path.replace("kernel", "bias")]
            ends = {a: n for a, n in lengths[path].items() if a in bias}
            assert ends == bias, path
    if name == "logistic":
        assert axes["dense/kernel"] == ["outputs", "inputs"]
        assert lengths["dense/kernel"] == {"outputs": 7, "inputs": 16 * 16 * 3}
    if name == "lenet":
        sizes = {"height": 5, "width": 5, "inputs": 3, "outputs": 6}
        assert lengths["conv1/kernel"] == sizes
    if texts:
        tokens = 50 if name == "transformer" else 7
        assert lengths["tokens/embedding"]["tokens"] == tokens
        assert lengths["positions"]["places"] == 9
