"""What memory there is, as devices and the host say it."""

import math

import pytest

from fl_sketch.core import free_memory
from tests.run.devices import Device

pytestmark = pytest.mark.fast


def test_the_memory_of_this_host_is_a_number():
    assert 1e8 < free_memory.of_host() < 1e14


def test_the_least_limit_counts(monkeypatch, tmp_path):
    (tmp_path / "limit").write_text("5000\n")
    (tmp_path / "none").write_text("max\n")
    (tmp_path / "info").write_text("MemTotal: 9 kB\nMemAvailable: 4 kB\n")
    monkeypatch.setattr(free_memory, "LIMITS", [tmp_path / "limit", tmp_path / "none"])
    monkeypatch.setattr(free_memory, "MEMINFO", tmp_path / "info")
    assert free_memory.of_host() == 4096
    monkeypatch.setattr(free_memory, "MEMINFO", tmp_path / "missing")
    assert free_memory.of_host() == 5000
    monkeypatch.setattr(free_memory, "LIMITS", [tmp_path / "none"])
    assert free_memory.of_host() == math.inf


def test_devices_say_what_they_have_or_share_the_hosts(monkeypatch):
    assert free_memory.free([Device(20), Device(60)]) == 40
    monkeypatch.setattr(free_memory, "of_host", lambda: 1000.0)
    assert free_memory.of_devices([Device(20), Device(None)]) is None
    assert free_memory.free([Device(None), Device(None)]) == 500
