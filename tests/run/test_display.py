"""What a run prints of itself is true of it."""

import re

import jax
import pytest

from fl_sketch import engine
from fl_sketch.run import display, run, task_of
from tests.run.configs import config_with, quiet

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


MARINA = {"algorithm": "marina", "compressor__name": "random_k"}
BOTTOM = {"client__trains": "bias", "download": "messages"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (MARINA, ["upload: at most 650 numbers", "bytes depend on"]),
        (BOTTOM, ["than the part that trains;", "(the part that trains and server"]),
    ],
)
def test_a_plan_says_of_what_a_message_is_a_part(changes, words, tmp_path):
    run(config_with(rounds=1, data__public=True), tmp_path, say=quiet)
    config = config_with(model__init_from=str(tmp_path), **changes)
    text = "\n".join(display.plan(config, task_of(config)))
    assert all(part in text for part in words), text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "; upload {:.4g} kB, download {:.4g} kB per client and round;"),
        ({"cohort__dropout": 0.3}, "; upload {:.4g} kB per answer, download {:.4g} kB"),
    ],
)
def test_a_run_ends_with_the_bytes_of_a_client(changes, words, tmp_path):
    lines: list[str] = []
    summary = run(config_with(rounds=3, **changes), tmp_path, say=lines.append)
    sizes = [summary[f"bytes_{way}_per_client_round"] / 1e3 for way in ("up", "down")]
    assert words.format(*sizes) in "\n".join(lines)
