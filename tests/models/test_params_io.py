"""Models as named arrays: back as they were, and nothing else is taken for one."""

import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.core.trees import Stateful
from fl_sketch.models import params_io
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
    chosen = params_io.select(MODEL, ARRAYS, ["dense/bias"])
    assert {*chosen} == {"dense/kernel"}
    assert chosen["dense/kernel"].dtype == np.float32
    placed = params_io.insert(MODEL, chosen)
    np.testing.assert_array_equal(placed["dense"]["kernel"], ARRAYS["dense/kernel"])
    np.testing.assert_array_equal(placed["dense"]["bias"], 0)
    whole = params_io.tree_of({"params/a": 1, "state/b": 2})
    assert whole == Stateful({"a": 1}, {"b": 2})


def test_arrays_of_nnx_have_the_names_of_a_config_or_of_python():
    model = {"fc1.kernel": jnp.ones((2, 3)), "fc2.bias": jnp.ones(2)}
    arrays = {"fc1/kernel/value": np.ones((2, 3)), "fc2/bias/value": np.zeros(2)}
    assert {*params_io.select(model, arrays, [])} == {*model}
    begun = params_io.select(model, {"fc1.kernel": np.ones((2, 3))}, ["fc2"])
    assert {*begun} == {"fc1.kernel"}
    linen = {"fc1/value": jnp.ones(2), "fc1": jnp.ones(2)}  # keeps its own names
    same = {"fc1/value": np.zeros(2), "fc1": np.ones(2)}
    assert params_io.select(linen, same, [])["fc1/value"].sum() == 0


BIAS, KERNEL = "dense/bias", "dense/kernel"


@pytest.mark.parametrize(
    ("arrays", "fresh", "parts"),
    [
        (ARRAYS, ["dens"], ["fresh", "'dens'"]),
        (ARRAYS | {BIAS: np.ones(3)}, [], ["init_from", "(2,)", "(3,)"]),
        (ARRAYS | {"other": np.ones(3)}, [], ["init_from", "other"]),
        (ARRAYS | {BIAS: np.array([1, 1e300])}, [], ["init_from", "finite"]),
        (ARRAYS | {BIAS: np.array(["a", "b"])}, [], ["init_from", "numbers"]),
        ({BIAS: np.ones(2)}, [], [KERNEL, "model.fresh=dense"]),
        ({"fc.weight": np.ones((2, 3))}, [], ["fc.weight", "layout"]),
        ({BIAS: np.ones(2), KERNEL: np.ones((2, 3))}, [], [KERNEL, "layout"]),
    ],
    ids=range(8),
)
def test_arrays_of_no_such_model_are_refused(arrays, fresh, parts):
    with refused(*parts):
        params_io.select(MODEL, arrays, fresh)
