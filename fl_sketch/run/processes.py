"""One run on several machines, or in several processes of one.

Every process runs the same program on its share of the devices. The first one owns
the folder: it reads and writes the checkpoints, and sends the others what they need.
All must do the same at the same time, so whatever depends on clocks or signals is
agreed upon. jax ends a process whose peer has died.
"""

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Iterator

import jax

from fl_sketch.core.exit_codes import INTERRUPTED, LOST_A_PEER, STOPPED, WRONG
from fl_sketch.engine.loop import Stopped

LINES = (ValueError, TypeError, OSError, ArithmeticError, RuntimeError)
SILENCE_SECONDS = 15  # after which a process that says nothing is taken for dead


@contextlib.contextmanager
def connected(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> Iterator[None]:
    """Joins the processes of one run; must begin before anything touches a device.

    After an error that others do not have, the process ends without waiting for them.

    Args:
      coordinator: host:port of the first process. With None for all three, jax finds
        out from SLURM, GKE, Open MPI or the TPU pod.
      num_processes: the number of all processes.
      process_id: the number of this process among them, from zero.
    """
    if coordinator and not re.fullmatch(r"[^:]+:\d+|\[[^]]+\]:\d+", coordinator):
        msg = f"coordinator must be HOST:PORT, got coordinator={coordinator}."
        raise ValueError(msg)
    # Its service swallows SIGTERM, which has to stop the run.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        num_processes,
        process_id,
        # Not every address of the machine.
        coordinator_bind_address=coordinator if process_id == 0 else None,
        heartbeat_timeout_seconds=SILENCE_SECONDS,
        shutdown_timeout_seconds=SILENCE_SECONDS,
    )
    try:
        yield
    except (Stopped, SystemExit):
        raise  # all have agreed on it
    except BaseException as error:
        text, code = " ".join(str(error).split()), WRONG
        if isinstance(error, jax.errors.JaxRuntimeError):
            text, code = f"{text} Start the same command again everywhere.", LOST_A_PEER
        elif isinstance(error, KeyboardInterrupt):  # before rounds could be stopped
            text, code = INTERRUPTED, STOPPED
        elif not isinstance(error, LINES):
            traceback.print_exc()
        print(f"error: process {jax.process_index()}: {text}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    jax.distributed.shutdown()
