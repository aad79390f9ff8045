"""launch.compile: what a round is on a slice, a row of a table, one line for errors."""

import csv

import pytest

from tests.launching import launch

BASE = ("launch.compile", "--config=configs/default.py", "--config.model.name=logistic")
TPUS = "--topology=v5e:2x2"


def lines(command):
    assert command.returncode == 0, command.stderr
    return command.stdout.splitlines()


@pytest.mark.slow
def test_it_prints_what_a_round_takes_and_sends_and_keeps_a_row(tmp_path):
    out = f"--out={tmp_path / 'placed.csv'}"
    printed = lines(launch(*BASE, TPUS, out, "--name=first"))
    assert printed[0].startswith(
        "devices: 4 clients; 10 clients per round, 3 at a time"
    )
    assert printed[1] == "parameters: 650; numbers per message: 32"
    assert "of 15.750 GiB: it fits" in printed[3]
    assert printed[6].startswith("matrix products: ")
    assert [*printed[4:6], printed[7]] == [
        "collectives: 1",
        "  all-reduce of f32[1,32], 2 f32[] between 4",
        "interconnect: a chip sends 204 B per round",
    ]
    assert "million cycles per round" in printed[8]
    lines(launch(*BASE, "--topology=v5e:1x1", out, "--name=second", "--most"))
    with open(tmp_path / "placed.csv", newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["name"], first["topology"]) == ("first", "v5e:2x2")
    assert (first["collectives"], first["sent_bytes"]) == ("1", "204")
    assert (second["name"], second["topology"]) == ("second", "v5e:1x1")
    assert (second["sent_bytes"], second["most_clients"]) == ("0", "10")
    assert float(second["expected_megacycles"]) > 0


@pytest.mark.slow
def test_for_gpus_it_lowers_the_round():
    printed = lines(launch(*BASE, "--platform=cuda", "--devices=2"))
    assert printed[0].startswith(
        "devices: 2 clients; 10 clients per round, 5 at a time"
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["--topology", "without it"]),
        (["--topology=v9:2x2"], ["topology=v5e|v6e:NxM", "v5p", "topology=v9:2x2"]),
        ([TPUS, "--devices=2"], ["--devices", "--platform=cuda"]),
        (["--platform=cuda", "--most"], ["--most", "--platform=tpu"]),
        ([TPUS, "--config.compute.devices=2"], ["devices=0", "devices=2"]),
        ([TPUS, "--config.privacy.bound=foo"], ["bound to be one of", "foo"]),
        ([TPUS, "--config.privacy.noise_multiplier=1"], ["config.privacy: Expected"]),
        (["--platform=cuda", TPUS], ["--topology", "--platform=tpu", "cuda"]),
        ([TPUS, "--config.compute.model_devices=3"], ["divide 4", "model_devices=3"]),
        ([TPUS, "--config.compute.model_devices=0"], [">= 1", "model_devices=0"]),
        ([TPUS, "--out=/nowhere/x.csv"], ["out", "/nowhere/x.csv"]),
    ],
)
def test_what_cannot_be_is_one_line(flags, words):
    command = launch(*BASE, *flags)
    assert command.returncode == 2
    (line,) = command.stderr.splitlines()
    assert line.startswith("error: ") and all(word in line for word in words), line
