"""launch.compile: what a round is on a slice, a row of a table, one line for errors."""

import csv

import pytest

from tests.launching import launch

BASE = ("launch.compile", "--config=configs/default.py", "--config.model.name=logistic")


def lines(made):
    assert made.returncode == 0, made.stderr
    return made.stdout.splitlines()


@pytest.mark.slow
def test_it_says_what_a_round_takes_and_sends_and_keeps_a_row(tmp_path):
    out = f"--out={tmp_path / 'placed.csv'}"
    said = lines(launch(*BASE, "--topology=v5e:2x2", out, "--name=one"))
    assert said[0].startswith("devices: 4 clients; 10 clients a round, 3 at a time")
    assert said[1] == "parameters: 650; numbers that a client sends: 32"
    assert "of 15.750 GiB: it fits" in said[3]
    assert said[6].startswith("products: ")
    assert [*said[4:6], said[7]] == [
        "collectives: 1",
        "  all-reduce of f32[1,32], 2 f32[] between 4",
        "over the interconnect: 204 B sent by a chip in a round",
    ]
    assert said[8].startswith("the compiler expects ") and "cycles" in said[8]
    lines(launch(*BASE, "--topology=v5e:1x1", out, "--name=other", "--most"))
    with open(tmp_path / "placed.csv", newline="") as file:
        one, other = csv.DictReader(file)
    assert (one["name"], one["collectives"], one["sent_bytes"]) == ("one", "1", "204")
    assert (other["name"], other["topology"]) == ("other", "v5e:1x1")
    assert (other["sent_bytes"], other["most_clients"]) == ("0", "10")
    assert float(other["expected_megacycles"]) > 0


def test_for_gpus_it_lowers_the_round():
    said = lines(launch(*BASE, "--platform=cuda", "--devices=2"))
    assert said[0].startswith("devices: 2 clients; 10 clients a round, 5 at a time")
    assert "3 all_reduce" in said[3]
    assert said[4] == "calls of other code than XLA's: none"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ([], "Expected --topology for --platform=tpu alone, got none."),
        (["--topology=v9:2x2"], "Expected topology=v5e|v6e:NxM, as v5e:4x4, or v5p:"),
        (["--topology=v5e:2x2", "--devices=2"], "Expected --devices with --platform="),
        (["--platform=cuda", "--most"], "Expected --most with --platform=tpu alone"),
        (
            ["--topology=v5e:2x2", "--config.compute.devices=2"],
            "Expected devices=0, since --topology or --devices says how many",
        ),
        (
            ["--topology=v5e:2x2", "--config.privacy.bound=foo"],
            "Expected bound to be one of",
        ),
        (
            ["--topology=v5e:2x2", "--config.privacy.noise_multiplier=1"],
            "config.privacy: Expected",
        ),
        (
            ["--platform=cuda", "--topology=v5e:1x1"],
            "Expected --topology for --platform=tpu alone, got it with cuda.",
        ),
        (
            ["--topology=v5e:2x2", "--config.compute.model_devices=3"],
            "Expected a divisor of 4, the number of devices, got model_devices=3.",
        ),
        (
            ["--topology=v5e:2x2", "--config.compute.model_devices=0"],
            "Expected model_devices to be an integer >= 1, got model_devices=0.",
        ),
        (["--topology=v5e:2x2", "--out=/nowhere/x.csv"], "Expected out to name a file"),
    ],
)
def test_what_cannot_be_is_one_line(flags, line):
    made = launch(*BASE, *flags)
    assert made.returncode == 2
    assert len(made.stderr.splitlines()) == 1 and line in made.stderr
