"""What memory there is, as devices and the host say it."""

import math

import pytest

from fl_sketch.core import free_memory

pytestmark = pytest.mark.fast


class Device:
    """Has 100 bytes; with `used=None` it says nothing, as CPUs do."""

    def __init__(self, used: int | None):
        self.used = used

    def memory_stats(self):
        if self.used is None:
            return None
        return {"bytes_limit": 100, "bytes_in_use": self.used}


def test_what_is_free_is_the_least_that_a_container_and_the_system_leave(
    monkeypatch, tmp_path
):
    """Of a container's limit, without what it uses, apart from files it could drop."""
    (tmp_path / "limit").write_text("7000\n")
    (tmp_path / "used").write_text("2500\n")
    (tmp_path / "none").write_text("max\n")
    (tmp_path / "memory.stat").write_text("anon 2000\ninactive_file 500\n")
    (tmp_path / "info").write_text("MemTotal: 9 kB\nMemAvailable: 4 kB\n")
    limits = [(tmp_path, "limit", "used"), (tmp_path, "none", "used")]
    monkeypatch.setattr(free_memory, "LIMITS", limits)
    monkeypatch.setattr(free_memory, "MEMINFO", tmp_path / "info")
    assert free_memory.of_host() == 4096
    monkeypatch.setattr(free_memory, "MEMINFO", tmp_path / "missing")
    assert free_memory.of_host() == 5000
    (tmp_path / "used").write_text("9000\n")
    assert free_memory.of_host() == 0
    monkeypatch.setattr(free_memory, "LIMITS", limits[1:])
    assert free_memory.of_host() == math.inf


def test_devices_say_what_they_have_or_share_the_hosts(monkeypatch):
    assert free_memory.free([Device(20), Device(60)]) == 40
    monkeypatch.setattr(free_memory, "of_host", lambda: 1000.0)
    assert free_memory.of_devices([Device(20), Device(None)]) is None
    assert free_memory.free([Device(None), Device(None)]) == 500
