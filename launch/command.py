"""What all commands share: devices, flags, and one line for what is wrong."""

import os
import sys
from collections.abc import Callable

import jax
from absl import app, logging

from fl_sketch.experiment import Stopped
from launch import parsing

STOPPED = 130  # the exit code that shells take for Ctrl-C


def run(main: Callable[[], None], *, devices: int = 0) -> None:
    """Runs a command and turns what goes wrong into a line and an exit code.

    Args:
      main: the command, called when the flags are known.
      devices: how many devices a CPU makes; 0: one for each core, so that every core
        visits its share of the clients.
    """
    jax.config.update("jax_num_cpu_devices", devices or len(os.sched_getaffinity(0)))
    app.run(lambda argv: _guarded(main), flags_parser=parsing.parse)


def _guarded(main: Callable[[], None]) -> None:
    logging.set_verbosity(logging.WARNING)  # jax reports every backend it lacks
    try:
        main()
    except parsing.ERRORS as error:
        parsing.refuse(error)
    except Stopped as stopped:
        print(f"{stopped}; the same command goes on", file=sys.stderr)
        sys.exit(STOPPED)
    except KeyboardInterrupt:
        print("interrupted; what was saved before is as it was", file=sys.stderr)
        sys.exit(STOPPED)
