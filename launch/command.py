"""What all commands share: devices, flags, and one line for what is wrong."""

import os
import re
import sys
from collections.abc import Callable, Sequence

import jax
from absl import app, flags, logging

from configs import default
from fl_sketch import validate
from fl_sketch.experiment import NotFinite, Stopped, choices
from fl_sketch.experiment.checkpoint import Unreadable

WRONG, STOPPED = 2, 130  # exit codes; the latter is what shells take for Ctrl-C
ERRORS = (ValueError, TypeError, OSError, NotFinite, Unreadable)


def run(main: Callable[[], None], *, devices: int = 0) -> None:
    """Runs a command and turns what goes wrong into a line and an exit code.

    Args:
      main: the command, called when the flags are known.
      devices: how many devices a CPU makes; 0: one for each core, so that every core
        visits its share of the clients.
    """
    jax.config.update("jax_num_cpu_devices", devices or len(os.sched_getaffinity(0)))
    app.run(lambda argv: _guarded(main), flags_parser=_parse)


def _guarded(main: Callable[[], None]) -> None:
    logging.set_verbosity(logging.WARNING)  # jax reports every backend it lacks
    try:
        main()
    except ERRORS as error:
        _refuse(error)
    except Stopped as stopped:
        print(f"{stopped}; the same command goes on", file=sys.stderr)
        sys.exit(STOPPED)
    except KeyboardInterrupt:
        print("interrupted; what was saved before is as it was", file=sys.stderr)
        sys.exit(STOPPED)


def _parse(argv: Sequence[str]) -> Sequence[str]:
    try:
        _require_known_keys(argv)
        rest = flags.FLAGS(argv)
        if rest[1:]:
            msg = f"Expected flags only, got {' '.join(rest[1:])}."
            raise ValueError(msg)
    except (flags.Error, *ERRORS) as error:
        _refuse(error)
    except (AttributeError, KeyError) as error:  # a key that a config file invents
        _refuse(str(error.args[0]).strip("'").splitlines()[-1])
    return rest


def _require_known_keys(argv: Sequence[str]) -> None:
    legal = tuple(choices.flat(default.get_config()))
    for argument in argv:
        found = re.match(r"--?config\.([^=]+)", argument)
        if found and found[1] not in legal:
            near = validate.nearest(found[1], legal)
            msg = f"Expected a key of configs/default.py, got config.{found[1]}.{near}"
            raise ValueError(msg)


def _refuse(error: Exception | str) -> None:
    line = " ".join(str(error).split())
    print(f"error: {line}", file=sys.stderr)
    sys.exit(WRONG)
