"""More than classes: regression, labels, validation; chosen, printed, swept, drawn."""

import numpy as np
import pytest
from sklearn import metrics as sklearn

from fl_sketch.data import npz
from fl_sketch.data.examples import Examples
from fl_sketch.models.metrics import CHOSEN, score_of
from fl_sketch.run import run, task_of
from fl_sketch.sweep.sweep import sweep
from tests.run.configs import begun, config_with, quiet, read_json, refused, table_in

pytestmark = pytest.mark.slow

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(160, 4)).astype(np.float32)
WEIGHTS = RANDOM.normal(size=(4, 3))
NUMBERS = (X @ WEIGHTS + 1).astype(np.float32)
LABELS = (X @ WEIGHTS > 0).astype(np.int8)
KEYS = {
    "data__partition": "iid",
    "data__clients": 4,
    "cohort__size": 4,
    "algorithm": "fedavg",
    "server__rate": 1.0,
    "client__batch": 10,
    "rounds": 6,
    "eval_every": 3,
}


@pytest.fixture
def folder(tmp_path):
    for name, targets in (("numbers", NUMBERS), ("labels", LABELS)):
        parts = [Examples(X[a:b], targets[a:b]) for a, b in ((0, 80), (80, 120))]
        third = Examples(X[120:], targets[120:])
        npz.save(tmp_path / f"{name}.npz", *parts)
        npz.save(tmp_path / f"{name}3.npz", *parts, validation=third)
    return tmp_path


def config_of(name, loss, **changes):
    return config_with(data__name=f"npz/{name}", model__loss=loss, **KEYS | changes)


def outputs_of(config, folder):
    """Returns what the last model of a run says of the test data, and its report."""
    state, compiled = begun(task_of(config, folder))
    state, _ = compiled.advance(state, 0, 3)
    found = compiled.evaluate(state)
    dense = state.server.params["dense"]
    return X[80:120] @ np.asarray(dense["kernel"]).T + np.asarray(dense["bias"]), found


@pytest.mark.parametrize("devices", [1, 2])
def test_regression_is_measured_as_scikit_learn_does(folder, devices):
    config = config_of("numbers", "squared", compute__devices=devices)
    said, found = outputs_of(config, folder)
    true = NUMBERS[80:120]
    expected = {
        "test_rmse": sklearn.mean_squared_error(true, said) ** 0.5,
        "test_loss": sklearn.mean_squared_error(true, said),
    }
    assert list(found) == list(expected)  # metrics come first
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)


@pytest.mark.parametrize("devices", [1, 2])
def test_labels_are_measured_as_scikit_learn_does(folder, devices):
    config = config_of("labels", "binary", compute__devices=devices)
    said, found = outputs_of(config, folder)
    true = LABELS[80:120]
    each = np.logaddexp(0, said) - true * said  # of a sigmoid
    expected = {
        "test_accuracy": ((said > 0) == true).mean(),
        "test_loss": each.mean(),
    }
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)


def test_a_run_prints_writes_and_draws_its_own_metrics(folder, tmp_path):
    lines = []
    summary = run(
        config_of("numbers", "squared"), tmp_path / "run", folder, say=lines.append
    )
    head = [line.split() for line in lines if "test rmse" in line][0]
    assert head[5:7] == ["test", "rmse"]
    assert summary["metrics"] == ["rmse"]
    assert f"test rmse {summary['test_rmse']:.4f}" in lines[-2]
    rows = table_in(tmp_path / "run")
    assert {"test_rmse", "test_loss"} <= set(rows[0])
    assert (tmp_path / "run" / "curves.png").exists()


def test_a_sweep_chooses_by_validation_and_less_error_is_better(folder, tmp_path):
    config, over = config_of("numbers3", "squared"), ["client.rate=0.001,0.05,0.2"]
    found = sweep(config, over, tmp_path / "sweep", folder, say=quiet)
    rows = [r for r in table_in(tmp_path / "sweep", "sweep.csv") if r["round"] == "6"]
    assert score_of(rows[0], CHOSEN).column == "validation_rmse"
    errors = {float(row["client.rate"]): float(row["validation_rmse"]) for row in rows}
    assert found["best"]["client.rate"] == min(errors, key=errors.get)
    assert found["best"]["client.rate"] != max(errors, key=errors.get)
    again = read_json(tmp_path / "sweep" / "sweep.json")
    assert again["best"]["test_rmse"] == found["best"]["test_rmse"]
    head, _, first, *_ = (tmp_path / "sweep" / "sweep.md").read_text().splitlines()
    assert "test rmse" in head
    assert f"{found['best']['test_rmse']:.2f}" in first  # no percents


@pytest.mark.parametrize(
    ("loss", "partition", "words"),
    [
        ("cross_entropy", "iid", ["integers", "train_targets"]),
        ("binary", "iid", ["zeros and ones", "train_targets"]),
        ("squared", "dirichlet", ["config.data: ", "class", "partition='dirichlet'"]),
    ],
)
def test_targets_of_another_kind_get_one_line(folder, loss, partition, words):
    changes = {**KEYS, "data__partition": partition, "model__loss": loss}
    with refused(*words):
        task_of(config_with(**changes, data__name="npz/numbers"), folder)
