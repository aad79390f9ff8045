"""What a run prints of itself is true of it."""

import re

import jax
import pytest

from fl_sketch import engine
from fl_sketch.run import display, task_of
from tests.run.configs import NOISY, config_with

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("count", "cores", "words"),
    [(2, 2, "2 CPU cores"), (1, 1, "1 CPU core"), (1, 2, "1 CPU device")],
)
def test_devices_that_are_cores_are_called_so(monkeypatch, count, cores, words):
    monkeypatch.setattr(engine, "cores", lambda: cores)
    assert display.devices(count) == words


def test_accelerators_have_their_own_name(monkeypatch):
    class Chip:
        platform, device_kind = "gpu", "NVIDIA H100"

    monkeypatch.setattr(jax, "devices", lambda: [Chip()])
    assert display.devices(8) == "8 NVIDIA H100"


def test_a_loss_of_no_client_is_a_dash_in_the_table():
    values = {"round": 2, "train_loss": float("nan"), "test_loss": 0.5}
    values |= {"test_accuracy": 0.25, "bytes_up_total": 0, "bytes_down_total": 0}
    values |= {"rounds_per_second": None}
    assert display.row(values).split() == [
        "2",
        "-",
        "0.5000",
        "0.2500",
        "0.00",
        "0.00",
        "-",
    ]
    assert "0.7500" in display.row(values | {"train_loss": 0.75})
    kept = display.row(values | {"train_loss": None})  # as summary.json has it
    assert kept == display.row(values)


@pytest.mark.parametrize("download", ["messages", "model"])
def test_a_plan_says_what_a_client_downloads(download):
    config = config_with(download=download)
    task = task_of(config)
    (line,) = (line for line in display.plan(config, task) if "download: " in line)
    sizes = [float(size) for size in re.findall(r"([\d.]+) kB", line)]
    late, soon = (
        task.known.prices.fetched(last, 0, 10**6) / 1e3 for last in (0, 10**6 - 1)
    )
    assert sizes[-1] == pytest.approx(late, rel=1e-3)
    assert sizes[-2:][0] == pytest.approx(soon, rel=1e-3)
    new = task.known.prices.fetched(-1, 0, 0) / 1e3
    assert sizes[0] == pytest.approx(new, rel=1e-3)


WATCHED = NOISY | {"privacy__watch": True, "privacy__watch_noise": 1.0}


def test_noised_columns_stand_below_their_names():
    task = task_of(config_with(**WATCHED))
    names = re.findall(r"noised (\w+)", display.head(task))
    assert len(names) > 1
    values = {"round": 2, "train_loss": 0.5, "test_loss": 0.5, "test_accuracy": 0.25}
    values |= {"bytes_up_total": 0, "bytes_down_total": 0, "rounds_per_second": 1.0}
    noised = {f"noised_train_{name}": float(at) for at, name in enumerate(names)}
    for order in (noised, dict(reversed(noised.items()))):
        cells = display.row(values | order).split()
        assert [float(cell) for cell in cells[-len(names) :]] == [*range(len(names))]
