"""Bytes of payloads are those of the ledger, also where a site fails."""

import pytest

from fl_sketch.network import counted, frames
from fl_sketch.network import run as network
from fl_sketch.network.frames import Kind
from tests.network.sites import Hospitals, five
from tests.run.configs import read_json


@pytest.mark.parametrize("algorithm", ["fedavg", "ef21"])
def test_bytes_are_those_of_the_ledger_if_a_site_fails(algorithm, tmp_path):
    short = {"rounds": 3, "eval_every": 3, "algorithm": algorithm}
    hospitals, lost = Hospitals(tmp_path, five(**short)), []

    def change(client, up):
        frame = frames.read(up, 2**30)
        if client == 4 and frame.kind == Kind.MESSAGE and frame.round == 1:
            lost.append(frame.round)
            return None
        return up

    hospitals.change = change
    summary = hospitals.run(tmp_path / "run")
    assert lost
    sent = read_json(tmp_path / "run" / network.FOLDER / counted.FILE)
    for way in ("up", "down"):
        assert sent[f"payload_{way}"] == summary[f"bytes_{way}_total"]
