"""Training as people train: what varies does so in training alone, and comes again."""

import jax
import numpy as np
import pytest

from fl_sketch.config import build, inputs, parse
from fl_sketch.run import from_config
from tests.models import own
from tests.run.configs import config_with, refused, rows_of

SHORT = {"rounds": 4, "eval_every": 2, "compute__devices": 1}
DROPPED = {"model__name": f"{own.__file__}:dropped"}
CROPPED = {"data__augment": "crop_flip"}


def loss_of(**changes):
    config = config_with(**changes)
    splits = inputs.splits_of(config, None)
    seen = inputs.seen_of(config.data, splits)
    return build.loss_of(config, seen, parse.hyperparameters_of(config)), splits.test


@pytest.mark.slow
@pytest.mark.parametrize("changes", [DROPPED, CROPPED], ids=["dropout", "crop_flip"])
def test_a_loss_varies_with_its_key_and_metrics_do_not(changes):
    loss, test = loss_of(**changes)
    x, y = test.inputs[:20], test.targets[:20]
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(5), leaf.shape),
        loss.init(jax.random.key(0), jax.ShapeDtypeStruct((1, 8, 8, 1), "float32")),
    )
    assert loss.random
    one, again, two, none = (
        float(loss.value(params, x, y, key=key))
        for key in (*map(jax.random.key, (1, 1, 2)), None)
    )
    assert one == again != two and none not in (one, two)
    sums = loss.metrics(params, x, y)
    np.testing.assert_allclose(sums["loss"] / sums["count"], none, rtol=1e-6)


@pytest.mark.slow
def test_a_scaled_run_trains_on_scaled_inputs_and_says_what_it_found():
    config = config_with(data__standardise="train")
    splits = inputs.splits_of(config, None)
    seen = inputs.seen_of(config.data, splits)
    pixels = splits.train.inputs.astype(np.float64)
    np.testing.assert_allclose(seen.scaling.mean, [pixels.mean()], rtol=1e-9)
    text = f"{seen.scaling.mean[0]!r}/{seen.scaling.deviation[0]!r}"
    losses = [
        [row["train_loss"] for row in rows_of(**SHORT, data__standardise=said)]
        for said in (text, "train", "none")
    ]
    assert losses[0] == losses[1] != losses[2]


NOISY = {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"data__standardise": "half"}, "standardise"),
        ({"data__augment": "flop"}, "flip"),
        ({"client__optimizer": "adm"}, "adam"),
        ({"client__weight_decay": -1.0}, "weight_decay"),
        ({"model__name": "cnn", "model__dropout": 1.0}, "dropout"),
        ({"model__norm": "batch"}, "norm"),
        ({"model__loss": "hinge"}, "loss"),
        ({"model__loss": "squared"}, "classes"),
        ({"model__metrics": "rmse"}, "accuracy"),
        (
            {"data__standardise": "train", "data__classes": 10, **NOISY},
            "private run",
        ),
    ],
    ids=range(10),
)
def test_what_cannot_be_is_said_in_one_line(changes, name):
    with refused(name, error=(ValueError, TypeError)):
        from_config(config_with(cohort__sampling="poisson", **changes))
