"""Processes of a server and sites: a signal leaves none of them, whenever it comes."""

import json
import os
import signal

import pytest

from fl_sketch.network import local_sites
from fl_sketch.network.kits import Kits


@pytest.fixture
def made(tmp_path):
    """Returns kits whose programs, and those that they start, sleep."""
    places = [tmp_path / name for name in ("server", "site_0", "site_1")]
    for place in places:
        (place / "startup").mkdir(parents=True)
        job = f"setsid bash -c 'sleep 1000; :' nvflare.private.job {place} &"
        (place / "startup" / "sub_start.sh").write_text(f"{job}\nsleep 1000\n")
    return Kits(places[0], tmp_path, {one.name: one for one in places[1:]})


@pytest.mark.parametrize("moment", ["start", "end"])
def test_signals_leave_no_process(moment, made, tmp_path, monkeypatch):
    """`timeout` sends two: the second comes while the first one ends processes."""
    begun, act = [], getattr(local_sites, moment)

    def interrupted(*given):
        os.kill(os.getpid(), signal.SIGTERM)
        result = act(*given)
        if moment == "start":
            begun.append(result.pid)
        return result

    monkeypatch.setattr(local_sites, moment, interrupted)
    before, book = signal.getsignal(signal.SIGTERM), tmp_path / "processes.json"
    with pytest.raises(KeyboardInterrupt), local_sites.started(made, book):
        begun += [int(one) for one in json.loads(book.read_text())]
        os.kill(os.getpid(), signal.SIGTERM)
    assert len(begun) == 3 and not book.exists()
    running = local_sites.processes()
    assert not [
        command
        for group, command in running
        if int(group) in begun or str(tmp_path) in command
    ]
    assert signal.getsignal(signal.SIGTERM) is before
