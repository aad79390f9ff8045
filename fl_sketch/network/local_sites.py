"""Server and sites as processes of this machine, over loopback with mutual TLS."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import fl_sketch
from fl_sketch.network.kits import Kits

FOLDER = pathlib.Path(fl_sketch.__file__).parent.parent


def free_ports(count: int) -> list[int]:
    """Returns ports that nothing listens on."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            found.append(one.getsockname()[1])
        return found


@contextlib.contextmanager
def started(kits: Kits, book: pathlib.Path) -> Iterator[dict[str, int]]:
    """Starts the server and the sites of kits; yields their process groups by name.

    All are ended when the context is left. Those of an earlier start that was killed
    are ended first.

    Args:
      kits: the kits.
      book: a file for the process groups.
    """
    end_left(book)
    here = [("server", kits.server), *kits.sites.items()]
    groups: dict[str, int] = {}
    try:
        for name, place in here:
            groups[name] = start(place)
        book.write_text(
            json.dumps({str(one): str(kits.server.parent) for one in groups.values()})
        )
        yield groups
    finally:
        for group in groups.values():
            end(group)
        book.unlink(missing_ok=True)


def start(place: pathlib.Path) -> int:
    """Starts what a kit is for; returns its process group."""
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    known = os.environ.get("PYTHONPATH", "")
    env = {**os.environ, "PATH": path, "PYTHONPATH": f"{FOLDER}:{known}".rstrip(":")}
    (place / "daemon_pid.fl").unlink(missing_ok=True)
    with open(place / "console.log", "ab") as log:
        process = subprocess.Popen(
            ["bash", str(place / "startup" / "sub_start.sh")],
            env=env,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return process.pid


def end(group: int, sent: signal.Signals = signal.SIGKILL) -> None:
    """Ends a process group that `start` made."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, sent)


def end_left(book: pathlib.Path) -> None:
    """Ends those process groups of a file that still run its kits."""
    said = json.loads(book.read_text()) if book.exists() else {}
    for group, kits in said.items():
        for place in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                _, _, after = (place / "stat").read_text().rpartition(")")
                own = after.split()[2] == group
                if own and kits in (place / "cmdline").read_text():
                    end(int(group))


def listening(port: int, seconds: float) -> bool:
    """Returns whether something listens on a port of this machine within seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("localhost", port), 1),
        ):
            return True
        time.sleep(0.2)
    return False
