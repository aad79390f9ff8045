"""Single clients: what they hold back, a model's worth to each, and their own ones."""

import numpy as np
import pytest

from fl_sketch.data import partition
from fl_sketch.data.holdout import held_out
from fl_sketch.engine.client_metrics import summed_up
from fl_sketch.run import load_params, prepare, run
from tests.run.configs import (
    NOISY,
    config_with,
    quiet,
    read_json,
    table,
    table_in,
)

KEYS = {
    "rounds": 6,
    "eval_every": 2,
    "checkpoint_every": 2,
    "data__held_out": 0.25,
    "data__partition": "dirichlet",
    "data__clients": 12,
    "compute__devices": 1,
}


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_what_is_held_back_is_the_clients_own_and_the_rest_is_trained_on(share):
    targets = np.arange(400) % 10
    shares = partition.dirichlet(targets, 30, 0.3, seed=3)
    kept, held = held_out(shares, share, seed=1)
    for client in range(30):
        both = np.concatenate([kept.of(client), held.of(client)])
        assert sorted(both) == sorted(shares.of(client))
    sizes = shares.sizes
    if share:
        expected = np.maximum(np.floor(share * sizes), 1)
        expected = np.minimum(expected, sizes - 1)
        np.testing.assert_array_equal(held.sizes, expected)
        other = held_out(shares, share, seed=2)[1]
        assert (held.indices != other.indices).any()
    else:
        assert not held.indices.size and (kept.indices == shares.indices).all()


def test_the_worst_tenth_is_that_of_most_loss_and_least_accuracy():
    values = np.arange(16.0)  # of whom the worst tenth are two
    found = {"loss": values, "accuracy": values, "rmse": values}
    found = summed_up(found, np.ones(16, bool))
    assert found["clients_loss_worst_tenth"] == 14.5
    assert found["clients_accuracy_worst_tenth"] == 0.5
    assert found["clients_rmse_worst_tenth"] == 14.5
    assert found["clients_loss"] == found["clients_loss_median"] == 7.5


def test_a_client_whose_loss_is_no_number_counts_and_one_that_held_nothing_does_not():
    values = np.array([0.5, 0.4, np.nan, np.inf, np.nan])
    found = {"loss": values, "accuracy": values}
    row = summed_up(found, np.array([True] * 4 + [False]))
    assert row["clients_loss_median"] == np.inf  # of 0.4, 0.5 and two that are none
    assert row["clients_accuracy_median"] == 0.5
    assert row["clients_loss"] == row["clients_loss_worst_tenth"] == np.inf
    assert row["clients_accuracy_worst_tenth"] == 0.4


def by_hand(params, setup, client):
    """Returns accuracy and loss of a client, in plain numpy."""
    train, held = setup.splits.train, setup.partition(0)[1]
    kernel, bias = (np.array(params["dense"][name]) for name in ("kernel", "bias"))
    x = train.inputs.reshape(len(train.inputs), -1)
    y = np.asarray(train.targets)

    rows = held.of(client)
    logits = x[rows] @ kernel.T + bias
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    right = (logits.argmax(-1) == y[rows]).mean()
    return right, -log_p[np.arange(len(rows)), y[rows]].mean()


@pytest.mark.slow
def test_the_table_of_clients_is_what_one_computes_by_hand(tmp_path):
    config = config_with(**KEYS)
    summary = run(config, tmp_path, say=quiet)
    each, last = table_in(tmp_path, "clients.csv"), table_in(tmp_path)[-1]
    params, setup = load_params(tmp_path), prepare(config)
    assert len(each) == 12
    for client, row in enumerate(each):
        found = [float(row[name]) for name in ("accuracy", "loss")]
        np.testing.assert_allclose(found, by_hand(params, setup, client), rtol=1e-4)
    accuracy = [float(row["accuracy"]) for row in each]
    assert summary["clients_accuracy"] == pytest.approx(np.mean(accuracy))
    assert summary["clients_accuracy_worst_tenth"] == pytest.approx(min(accuracy))
    for name in ("bytes_up", "bytes_down"):
        total = sum(int(row[name]) for row in each)
        assert total == int(last[f"{name}_total"]) == summary[f"{name}_total"]


@pytest.mark.slow
@pytest.mark.parametrize("private", [False, True])
def test_a_private_run_keeps_what_its_clients_are_from_the_public(tmp_path, private):
    table(tmp_path / "own.npz", 0)
    with np.load(tmp_path / "own.npz") as arrays:
        owners = np.array(["Cyrano", "Annabel", "Boris"] * 20)
        np.savez(tmp_path / "own.npz", **arrays, owners=owners)
    keys = KEYS | {"data__name": "npz/own", "data__partition": "natural"}
    keys |= {"data__clients": 3, "cohort__size": 2, "cohort__dropout": 0.1}
    more = NOISY | {"data__classes": 3} if private else {}
    place = tmp_path / "run"
    run(config_with(**keys | more), place, str(tmp_path), say=quiet)
    rows = table_in(place / ("simulator" if private else ""), "clients.csv")
    names = [None] * 3 if private else ["Annabel", "Boris", "Cyrano"]
    assert [row.get("name") for row in rows] == names
    assert all(int(row["answered"]) <= int(row["asked"]) for row in rows)
    texts = [p.read_bytes() for p in place.rglob("*") if p.is_file()]
    assert any(b"Annabel" in text for text in texts) != private
    assert (place / "clients.csv").exists() != private
    shown = read_json(place / "summary.json")
    assert ("clients_accuracy" in shown) != private


def test_training_is_on_what_is_left():
    setup = prepare(config_with(data__held_out=0.25))
    kept, held = setup.partition(0)
    np.testing.assert_array_equal(
        setup.experiment.clients.partition.indices, kept.indices
    )
    assert not {*kept.indices.tolist()} & {*held.indices.tolist()}
