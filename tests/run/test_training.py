"""Training as people train: what varies does so in training alone, and comes again."""

import jax
import numpy as np
import pytest

from fl_sketch.config import build, inputs, parse
from fl_sketch.run import task_of
from tests.models import own
from tests.run.configs import config_with, refused, rows_of

SHORT = {"rounds": 4, "eval_every": 2, "compute__devices": 1}
DROPPED = {"model__name": f"{own.__file__}:dropped"}
CROPPED = {"data__augment": "crop_flip"}
AUGMENT = """
import jax


def noise(key, batch):
    return batch + 0.1 * jax.random.normal(key, batch.shape)


def cut(key, batch):
    return batch[:, :4]
"""


def loss_of(**changes):
    config = config_with(**changes)
    splits = inputs.splits_of(config, None)
    seen = inputs.seen_of(config.data, splits)
    return build.loss_of(config, seen, parse.numbers_of(config)), splits.test


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
@pytest.mark.parametrize("changes", [DROPPED, CROPPED], ids=["dropout", "crop_flip"])
def test_a_run_that_varies_is_the_same_again_and_another_without(changes):
    rows = [
        [row["train_loss"] for row in rows_of(**SHORT, **own)]
        for own in (changes, changes, {})
    ]
    assert rows[0] == rows[1] != rows[2]


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


@pytest.mark.slow
def test_clients_take_steps_of_another_optimizer():
    plain, again, momentum, decayed = (
        rows_of(**SHORT, **changes)[-1]["train_loss"]
        for changes in (
            {},
            {"client__optimizer": "sgd(nesterov=False)"},
            {"client__optimizer": "sgd(momentum=0.9)"},
            {"client__weight_decay": 0.1},
        )
    )
    assert plain == again and len({plain, momentum, decayed}) == 3


@pytest.mark.slow
def test_an_augmentation_of_ones_own_is_named_by_its_file(tmp_path):
    path = tmp_path / "vary.py"
    path.write_text(AUGMENT)
    noisy, plain = (
        rows_of(**SHORT, **changes)[-1]["train_loss"]
        for changes in ({"data__augment": f"{path}:noise"}, {})
    )
    assert noisy != plain
    with refused("(2, 4, 8, 1)", f"{path}:cut"):
        task_of(config_with(data__augment=f"{path}:cut"))


NOISY = {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data__standardise": "half"}, ["config.data: ", "standardise", "half"]),
        ({"data__standardise": "1,2/3,4"}, ["1 mean", "standardise='1,2/3,4'"]),
        ({"data__augment": "flop"}, ["config.data: ", "'flip'"]),
        ({"client__optimizer": "adm"}, ["config.client: ", "'adam'"]),
        ({"client__weight_decay": -1.0}, ["client.weight_decay >= 0"]),
        ({"model__dropout": 0.5}, ["config.model: ", "'logistic'", "dropout"]),
        ({"model__name": "cnn", "model__dropout": 1.0}, ["dropout < 1"]),
        ({"model__norm": "batch"}, ["'logistic'", "got norm"]),
        ({"model__name": "resnet", "model__norm": "layer"}, ["'group', 'batch'"]),
        ({"model__loss": "hinge"}, ["config.model: ", "loss"]),
        ({"model__loss": "squared"}, ["classes", "digits"]),
        ({"model__metrics": "acc"}, ["config.model: ", "metrics"]),
        ({"model__metrics": "rmse"}, ["'accuracy', 'perplexity'"]),
        (
            {"data__standardise": "train", "data__classes": 10, **NOISY},
            ["standardise", "private run"],
        ),
    ],
    ids=range(14),
)
def test_what_cannot_be_is_said_in_one_line(changes, words):
    with refused(*words, error=(ValueError, TypeError)):
        task_of(config_with(cohort__sampling="poisson", **changes))
