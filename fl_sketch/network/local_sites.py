"""Server and sites as processes of this machine, over loopback with mutual TLS."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import fl_sketch
from fl_sketch.network import kits, site_file
from fl_sketch.network.kits import Kits

PATIENCE = 300.0  # seconds for a server to start
ENDING = 10.0  # seconds for killed processes to end
JOB = "nvflare.private"  # a module in the command of each process of NVFlare
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # end the processes
Tapped = Callable[[int], int]
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
def started(made: Kits, book: pathlib.Path) -> Iterator[None]:
    """Starts the server and the sites of kits.

    All are ended when the context is left, also if several signals come, as from
    `timeout`. Those of an earlier start that was killed are ended first.

    Args:
      made: the kits.
      book: a file for the process groups.
    """
    end_left(book)
    begun, asked = list[subprocess.Popen](), list[int]()
    before = {one: signal.getsignal(one) for one in SIGNALS}
    _handle(lambda number, _: asked.append(number))  # while it is not known what began
    try:
        for place in (made.server, *made.sites.values()):
            begun.append(start(place))
        pids = [one.pid for one in begun]
        book.write_text(json.dumps({str(one): str(made.server.parent) for one in pids}))
        _handle(_interrupt)
        if asked:
            raise KeyboardInterrupt
        yield
    finally:
        _handle(signal.SIG_IGN)
        for process in begun:
            end(process.pid)
            process.wait()
        _end_all(str(made.server.parent), {str(one.pid) for one in begun})
        book.unlink(missing_ok=True)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def running(
    folder: pathlib.Path,
    names: Sequence[str],
    *,
    tapped: Tapped | None = None,
    classes: Sequence[str] = kits.CLASSES,
) -> Iterator[Kits]:
    """Makes kits anew and starts them; yields the kits.

    Args:
      folder: where the kits are made, and where `dealing.deal` put the sites' data, in
        its folder `sites`.
      names: the names of the sites.
      tapped: `(port) -> port` of a relay between the sites and the server's port.
      classes: the beginnings of the names of what jobs may build.

    Raises:
      ValueError: in one line, for a server that does not start.
    """
    book = folder / "processes.json"
    end_left(book)  # before its kits are made anew
    ports = free_ports(2)
    shutil.rmtree(folder / "kits", ignore_errors=True)
    through = tapped(ports[0]) if tapped else 0
    made = kits.make(folder / "kits", names, "localhost", ports, through, classes)
    for name, place in made.sites.items():
        own = folder / "sites" / name / site_file.FILE
        if own.exists():
            link = place / "local" / site_file.FILE
            link.unlink()
            link.symlink_to(own)
    with started(made, book):
        if not listening(ports[0], PATIENCE):
            log = made.server / "console.log"
            msg = f"Expected a server at port {ports[0]}, got none: see {log}."
            raise ValueError(msg)
        yield made


def start(place: pathlib.Path) -> subprocess.Popen:
    """Starts what a kit is for, in a process group of its own."""
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    known = os.environ.get("PYTHONPATH", "")
    env = {**os.environ, "PATH": path, "PYTHONPATH": f"{FOLDER}:{known}".rstrip(":")}
    (place / "daemon_pid.fl").unlink(missing_ok=True)
    with open(place / "console.log", "ab") as log:
        return subprocess.Popen(
            ["bash", str(place / "startup" / "sub_start.sh")],
            env=env,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _handle(handler: Any) -> None:
    """Sets what is done with the signals that end the processes."""
    for number in SIGNALS:
        signal.signal(number, handler)


def _interrupt(*_: Any) -> None:
    _handle(signal.SIG_IGN)
    raise KeyboardInterrupt


def end(group: int, sent: signal.Signals = signal.SIGKILL) -> None:
    """Ends a process group that `start` made."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, sent)


def end_left(book: pathlib.Path) -> None:
    """Ends those process groups of a file that still run its kits, and their jobs."""
    said = json.loads(book.read_text()) if book.exists() else {}
    for kit in {*said.values()}:
        still = {group for group, command in processes() if kit in command}
        _end_all(kit, still & {*said})


def _end_all(kit: str, groups: Set[str]) -> None:
    """Ends process groups, and the jobs of a kit, and waits until they have ended.

    NVFlare starts the processes of a job in groups of their own.
    """
    until = time.monotonic() + ENDING
    while time.monotonic() < until:
        left = {
            group
            for group, command in processes()
            if group in groups or (kit in command and JOB in command)
        }
        if not left:
            return
        for group in left:
            end(int(group))
        time.sleep(0.01)


def processes() -> list[tuple[str, str]]:
    """Returns (process group, command) of all processes that have not ended."""
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            _, _, after = (place / "stat").read_text().rpartition(")")
            state, _, group, *_ = after.split()
            if state != "Z":
                found.append((group, (place / "cmdline").read_text()))
    return found


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
