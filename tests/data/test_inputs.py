"""Scaling by what is measured or said, and inputs that vary in training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fl_sketch.data import inputs
from fl_sketch.data.inputs import MARGIN

KEY = jax.random.key(0)
BYTES = np.random.default_rng(0).integers(0, 256, (5000, 4, 3, 2), np.uint8)
IMAGES = jnp.asarray(BYTES[:40] / 255, jnp.float32)


def test_it_is_the_mean_and_deviation_of_each_channel():
    found = inputs.scaling_of(BYTES)
    np.testing.assert_allclose(found.mean, (BYTES / 255).mean((0, 1, 2)), rtol=1e-12)
    expected = (BYTES / 255).std((0, 1, 2))
    np.testing.assert_allclose(found.deviation, expected, rtol=1e-12)
    scaled = np.asarray(inputs.scaled(jnp.asarray(BYTES), found))
    np.testing.assert_allclose(scaled.mean((0, 1, 2)), 0, atol=1e-4)
    np.testing.assert_allclose(scaled.std((0, 1, 2)), 1, atol=1e-4)


def test_a_large_mean_takes_no_digits_and_a_constant_is_not_divided_by_zero():
    rows = np.stack([1e6 + np.arange(9.0), np.full(9, 7.0)], 1).astype(np.float32)
    found = inputs.scaling_of(rows)
    np.testing.assert_allclose(found.deviation, [np.arange(9).std(), 1], rtol=1e-9)
    np.testing.assert_allclose(found.mean, [1e6 + 4, 7], rtol=1e-12)


@pytest.mark.parametrize("text", ["", "1,2/3", "1/0", "nan/1"])
def test_a_text_that_is_no_scaling_gets_one_line(text):
    with pytest.raises(ValueError, match="standardise"):
        inputs.parsed_scaling(text)


def test_a_flip_mirrors_about_half_of_the_images_and_leaves_the_rest():
    made = inputs.flip(KEY, IMAGES)
    same = (made == IMAGES).all((1, 2, 3))
    mirrored = (made == IMAGES[:, :, ::-1]).all((1, 2, 3))
    assert (same | mirrored).all() and 8 < mirrored.sum() < 32


@pytest.mark.parametrize("margin", ["constant", "reflect"])
def test_a_crop_shows_a_window_of_the_image_with_its_margin_around(margin):
    side, reach = 12, 2 * MARGIN + 1
    image = 1.0 + np.arange(side * side, dtype=np.float32).reshape(side, side, 1)
    tiled = jnp.asarray(np.tile(image, (500, 1, 1, 1)))
    made = np.asarray(inputs.crop(KEY, tiled, margin))
    wide = np.pad(image, ((MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)), margin)
    corners = np.array(divmod(made[:, MARGIN, MARGIN, 0].astype(int) - 1, side))
    for window, (down, right) in zip(made, corners.T, strict=True):
        expected = wide[down : down + side, right : right + side]
        np.testing.assert_array_equal(window, expected)
    for offsets in corners:  # the first and the last as often as the others
        counts = np.bincount(offsets, minlength=reach)
        assert len(counts) == reach and stats.chisquare(counts).pvalue > 1e-4
    both = np.asarray(inputs.crop_flip(KEY, tiled[:99], margin))
    steps = both[:, MARGIN, MARGIN + 1, 0] - both[:, MARGIN, MARGIN, 0]
    assert set(steps.tolist()) >= {-1, 1}  # some are mirrored


def test_images_vary_before_they_are_scaled():
    scaling = inputs.parsed_scaling("0.5/0.25")
    made = inputs.varied(KEY, jnp.asarray(BYTES[:40]), scaling, inputs.crop)
    plain = inputs.scaled(inputs.crop(KEY, IMAGES), scaling)
    np.testing.assert_allclose(made, plain, atol=1e-6)
    assert made.min() == -2  # black, not the mean
