"""One run on several machines, or in several processes of one.

Every process runs the same program on its share of the devices. The first one owns
the folder: it reads and writes the checkpoints, and tells the others. All must do
the same at the same time, so whatever depends on clocks or signals is agreed upon.
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from fl_sketch import validate
from fl_sketch.engine.calls import Ask

LOST_A_PEER = 3  # exit code
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
    cannot be caught, a line says how to go on.

    Args:
      coordinator: host:port of the first process. With None for all three, jax finds
        out from SLURM, GKE, Open MPI or the TPU pod.
      num_processes: the number of all processes.
      process_id: the number of this process among them, from zero.

    Raises:
      ValueError: in one line, for arguments that no run of several can have.
    """
    _require_all_or_none(coordinator, num_processes, process_id)
    goodbye = _witness()
    # Its service swallows SIGTERM, which has to stop the run.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            heartbeat_timeout_seconds=SILENCE_SECONDS,
            shutdown_timeout_seconds=SILENCE_SECONDS,
        )
    except ValueError as error:
        goodbye()
        msg = "Expected machines that jax finds by itself, or coordinator, "
        msg += f"num_processes and process_id, got neither: {error}"
        raise ValueError(msg) from None
    try:
        yield
        jax.distributed.shutdown()
    except jax.errors.JaxRuntimeError as error:
        # A collective has failed; leaving politely would mean to wait for the dead.
        print(f"error: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        os._exit(LOST_A_PEER)
    except BaseException:
        goodbye()
        raise
    goodbye()


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
