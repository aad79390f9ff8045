"""Data sets by name, and the hook that makes pixels into floats on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.data import datasets, raw

pytestmark = pytest.mark.fast


def test_digits_are_the_same_split_each_time():
    name, train, test, classes = datasets.load("digits")[:4]
    again = datasets.load("digits")
    assert (name, classes) == ("digits", 10)
    assert train.inputs.shape == (1437, 8, 8, 1) and test.inputs.shape == (360, 8, 8, 1)
    assert train.inputs.dtype == np.float32 and train.targets.dtype == np.int32
    assert train.inputs.min() == 0 and train.inputs.max() == 1
    assert train.targets[:5].tolist() == [6, 6, 6, 2, 5]
    np.testing.assert_array_equal(train.inputs, again.train.inputs)
    for part in (train, test):
        assert np.bincount(part.targets).min() > 0.07 * len(part.targets)


def test_digits_do_not_overlap():
    _, train, test, _ = datasets.load("digits")[:4]
    rows = np.concatenate([train.inputs, test.inputs]).reshape(1797, 64)
    assert len(np.unique(rows, axis=0)) == 1797


@pytest.mark.parametrize("name", ["mnits", "", "no/such:1.0.0"])
def test_unknown_names_get_one_line(name, tmp_path, monkeypatch):
    monkeypatch.delenv(raw.VARIABLE, raising=False)
    with pytest.raises(
        FileNotFoundError, match="mnist, fashion.*prepared in"
    ) as caught:
        datasets.load(name, tfds_dir=tmp_path)
    assert "\n" not in str(caught.value) and repr(name) in str(caught.value)
    assert ("mean 'mnist'" in str(caught.value)) == (name == "mnits")


def test_normalise_keeps_bytes_exact_under_jit():
    pixels = jnp.arange(256, dtype=jnp.uint8)
    floats = jax.jit(datasets.normalise)(pixels)
    assert floats.dtype == jnp.float32
    np.testing.assert_array_equal(np.rint(np.asarray(floats) * 255), np.arange(256))
    np.testing.assert_array_equal(datasets.normalise(floats), floats)
