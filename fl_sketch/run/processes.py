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
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from fl_sketch.core import validate
from fl_sketch.engine.chunks import Ask
from fl_sketch.run import agreement
from fl_sketch.run.loop import Stopped

WRONG, LOST_A_PEER = 2, 3  # exit codes
STOPPED = 130  # the one that shells take for Ctrl-C
INTERRUPTED = "interrupted; what was saved before is as it was"
LINES = (ValueError, TypeError, OSError, ArithmeticError, RuntimeError)
PART = 2**28  # bytes that are told at once
SILENCE_SECONDS = 15  # after which a process that says nothing is taken for dead
RESUME = (
    "A process of this run has died. Start the same command again on all machines: "
    "it goes on from the last checkpoint."
)


@contextlib.contextmanager
def connected(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> Iterator[None]:
    """Joins the processes of one run; must begin before anything touches a device.

    If this process ends otherwise than by leaving the context, even by a signal that
    cannot be caught, a line says how to go on. An error within it is said in a line by
    all processes, which end with `WRONG`.

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

    watch = agreement.Watch(heard)
    try:
        yield
        watch.finish()
    except BaseException as error:
        watch.close()
        if isinstance(error, jax.errors.JaxRuntimeError):  # somebody is gone
            line = watch.last_words()
            if line:
                heard(line)
            goodbye()  # whoever waits for this process reads its last words
            _end(f"{str(error).splitlines()[0]}\n{RESUME}", LOST_A_PEER)
        goodbye()
        if isinstance(error, Stopped | SystemExit):
            raise  # all have agreed on it, or nobody else is concerned
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


def is_first() -> bool:
    """Returns whether this process owns the folder."""
    return jax.process_index() == 0


def agree(pace: int, asked: Ask) -> tuple[int, Ask]:
    """Returns the smallest `pace` of all processes, and the most that was `asked`."""
    if jax.process_count() == 1:
        return pace, asked
    both = multihost_utils.process_allgather(np.array([pace, asked], np.int32))
    return int(both[:, 0].min()), Ask(int(both[:, 1].max()))


def from_first(data: bytes) -> bytes:
    """Returns the `data` of the first process, in every process."""
    if jax.process_count() == 1:
        return data
    many = -(-len(data) // PART)
    return b"".join(
        _part_from_first(data[number * PART : (number + 1) * PART])
        for number in range(int(multihost_utils.broadcast_one_to_all(np.int32(many))))
    )


def _part_from_first(data: bytes) -> bytes:
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    mine = np.frombuffer(data if is_first() else bytes(length), np.uint8)
    return multihost_utils.broadcast_one_to_all(mine).tobytes()


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
