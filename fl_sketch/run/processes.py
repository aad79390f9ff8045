"""One run on several machines, or in several processes of one.

Every process runs the same program on its share of the devices. The first one owns
the folder: it reads and writes the checkpoints, and tells the others. All must do
the same at the same time, so whatever depends on clocks or signals is agreed upon.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
from jax._src import distributed  # its store of short texts has no public name

from fl_sketch.core import validate
from fl_sketch.core.exit_codes import INTERRUPTED, LOST_A_PEER, STOPPED, WRONG
from fl_sketch.engine.loop import Stopped

LINES = (ValueError, TypeError, OSError, ArithmeticError, RuntimeError)
ERROR, END, DONE = "fl_sketch/error", "fl_sketch/end", "fl_sketch/done"
PATIENCE = 600_000  # milliseconds; the first process may be writing for a long time
LAST_WORDS = 5_000  # milliseconds until other processes see an error
EVERY = 0.5  # seconds from one look for an error to the next
SILENCE_SECONDS = 15  # after which a process that says nothing is taken for dead
RESUME = (
    "A process of this run has died. Start the same command again on all machines: "
    "it resumes from the last checkpoint."
)


@contextlib.contextmanager
def connected(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> Iterator[None]:
    """Joins the processes of one run; must begin before anything touches a device.

    If this process ends without leaving the context, even by a signal that cannot be
    caught, a line explains how to continue. All processes report an error within the
    context in one line, and end with `WRONG`.

    Args:
      coordinator: host:port of the first process. With None for all three, jax finds
        out from SLURM, GKE, Open MPI or the TPU pod.
      num_processes: the number of all processes.
      process_id: the number of this process among them, from zero.

    Raises:
      ValueError: in one line, for arguments that no run of several can have.
    """
    _require_all_or_none(coordinator, num_processes, process_id)
    own = coordinator if process_id == 0 else None
    if own:
        _require_free(own)
    goodbye = _witness()
    # Its service swallows SIGTERM, which has to stop the run.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            coordinator_bind_address=own,  # and not every address of the machine
            heartbeat_timeout_seconds=SILENCE_SECONDS,
            shutdown_timeout_seconds=SILENCE_SECONDS,
        )
    except ValueError as error:
        goodbye()
        msg = "Expected machines that jax finds by itself, or coordinator, "
        msg += f"num_processes and process_id, got neither: {error}"
        raise ValueError(msg) from None
    with _ending_together(goodbye):
        yield
    jax.distributed.shutdown()
    goodbye()


@contextlib.contextmanager
def _ending_together(goodbye: Callable[[], None]) -> Iterator[None]:
    """Tells all processes of an error in one, and ends them with its line."""

    def heard(line: str) -> None:
        goodbye()
        watch.part()
        _end(line, WRONG)

    watch = _Watch(heard)
    try:
        yield
        watch.finish()
    except BaseException as error:
        watch.close()
        if isinstance(error, jax.errors.JaxRuntimeError):  # a process is gone
            line = watch.last_words()
            if line:
                heard(line)
            goodbye()  # a parent that waits for this process reads its last lines
            _end(f"{str(error).splitlines()[0]}\n{RESUME}", LOST_A_PEER)
        goodbye()
        if isinstance(error, Stopped | SystemExit):
            raise  # all have agreed on it, or it concerns no other process
        line, code = " ".join(str(error).split()) or type(error).__name__, WRONG
        if isinstance(error, KeyboardInterrupt):  # before rounds could be stopped
            line, code = INTERRUPTED, STOPPED
        elif not isinstance(error, LINES):
            traceback.print_exc()
        watch.tell(line)
        _end(line, code)


def _end(line: str, code: int) -> NoReturn:
    """Ends this process at once; to leave politely is to wait for the others."""
    print(f"error: {line}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)


def _require_all_or_none(coordinator, num_processes, process_id) -> None:
    given = {
        "coordinator": coordinator,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    if all(value is None for value in given.values()):
        return
    if any(value is None for value in given.values()):
        got = ", ".join(f"{name}={value}" for name, value in given.items())
        msg = f"Expected coordinator, num_processes and process_id together, got {got}."
        raise ValueError(msg)
    if not re.fullmatch(r"[^:]+:\d+|\[[^]]+\]:\d+", coordinator):
        msg = f"Expected coordinator to be HOST:PORT, got coordinator={coordinator}."
        raise ValueError(msg)
    validate.at_least_one(num_processes=num_processes)
    if not 0 <= process_id < num_processes:
        msg = (
            f"Expected 0 <= process_id < {num_processes} (num_processes), "
            f"got process_id={process_id}."
        )
        raise ValueError(msg)


def _require_free(coordinator: str) -> None:
    """Raises unless this machine can listen there, of which jax would die."""
    host, _, port = coordinator.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                # A port that a run has just left may be taken again.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except (OSError, OverflowError) as error:
        msg = (
            "Expected coordinator to name an address and a free port of the machine "
            f"of process 0, got coordinator={coordinator} ({error})."
        )
        raise ValueError(msg) from None


def _witness() -> Callable[[], None]:
    """Starts a process that speaks if this one ends without having said goodbye.

    A dead peer makes the runtime abort, which no handler in this process survives.
    """
    code = f"import sys\nif not sys.stdin.read(): print({RESUME!r}, file=sys.stderr)"
    witness = subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is not for it
        text=True,
    )

    def goodbye():
        witness.communicate("goodbye")

    return goodbye


class _Watch:
    """Watches for errors of other processes, in a separate thread."""

    def __init__(self, heard: Callable[[str], None]):
        """Starts to watch; `heard` gets the line of another process's error."""
        self._client: Any = distributed.global_state.client
        self._heard = heard
        self._over, self._ending = threading.Event(), threading.Lock()
        threading.Thread(target=self._look, daemon=True).start()

    def close(self) -> None:
        """Stops looking: this process ends by itself, unless it is being ended."""
        with self._ending:
            self._over.set()

    def tell(self, line: str) -> None:
        """Sends others a `line` about this process's error, and waits for them."""
        self.close()
        said = f"process {jax.process_index()}: {line}"
        with contextlib.suppress(Exception):  # another was faster, or none is left
            self._client.key_value_set(ERROR, said)
        self.part()

    def finish(self) -> None:
        """Waits until all are done; the first one may write for a long time."""
        self._client.wait_at_barrier(DONE, PATIENCE)
        self.close()

    def part(self) -> None:
        """Waits until all processes know from process 0 that the run is over."""
        with contextlib.suppress(Exception):  # dead processes do not arrive
            self._client.wait_at_barrier(END, LAST_WORDS)
        if jax.process_index() == 0:
            time.sleep(EVERY)  # the store goes with this process

    def last_words(self) -> str:
        """Returns the line of a process that has failed; empty if none has said it."""
        with contextlib.suppress(Exception):
            return self._client.blocking_key_value_get(ERROR, LAST_WORDS)
        return ""

    def _look(self) -> None:
        while not self._over.wait(EVERY):
            try:
                line = self._client.key_value_try_get(ERROR)
            except jax.errors.JaxRuntimeError as error:
                if "NOT_FOUND" in str(error):
                    continue
                return  # the store is gone; processes that wait for devices notice
            with self._ending:  # which is never left: the process is over
                if not self._over.is_set():
                    self._heard(line)
