"""Kits of a server and its sites, started as processes of this machine."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from fl_sketch.network import nvflare

ROOT = pathlib.Path(__file__).parent.parent.parent
PATIENCE = 120.0  # seconds for a server to start


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def start(kit):
    """Starts what a kit is for, as its start.sh does, in a process group of its own."""
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    (kit / "daemon_pid.fl").unlink(missing_ok=True)
    with open(kit / "console.log", "ab") as log:
        return subprocess.Popen(
            ["bash", str(kit / "startup" / "sub_start.sh")],
            env=env,
            cwd=kit,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def processes(kit):
    """Returns the processes with a kit in their command."""
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_text().split("\0")
            if any(str(kit) in one for one in words):
                found.append(int(place.name))
    return found


def kill(kit):
    """Kills the processes of a kit, those that start them first, and waits."""
    while left := processes(kit):
        for one in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.05)


@contextlib.contextmanager
def federation(folder, names):
    """Makes kits and starts them; yields them, and kills all that is left."""
    ports = free_ports(2)
    made = nvflare.make_kits(folder / "kits", names, "localhost", ports)
    begun = []
    try:
        begun += [start(place) for place in (made.server, *made.sites.values())]
        until(lambda: _listening(ports[0]), PATIENCE)
        yield made
    finally:
        kill(folder / "kits")
        for one in begun:
            one.wait()


def _listening(port):
    with socket.socket() as one:
        return one.connect_ex(("localhost", port)) == 0


def until(found, seconds=300.0):
    """Waits until something is there."""
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.1)
