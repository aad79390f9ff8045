"""What all commands share: devices, flags, and one line for what is wrong."""

import gc
import os
import pathlib
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
from absl import app, flags, logging

from fl_sketch import engine
from fl_sketch.core.exit_codes import INTERRUPTED, STOPPED
from launch import compiled, leaving, parsing

if TYPE_CHECKING:  # benchmarks do without it
    from ml_collections import ConfigDict

SELDOM = (50_000, 10, 10)  # when the garbage collector comes by
COMPILE_CACHE = flags.DEFINE_string(
    "compile_cache",
    None,
    "Folder for compiled programs; default: ~/.cache/fl_sketch/compiled. If empty, "
    "programs are not kept.",
)


def run(
    main: Callable[[], None], *, devices: int = 0, keep: bool = True, waits: bool = True
) -> None:
    """Runs a command and turns what goes wrong into a line and an exit code.

    Args:
      main: the command, called when the flags are known.
      devices: the number of devices that a CPU makes; 0: one for each core, so that
        every core visits its share of the clients.
      keep: whether compiled programs are kept for the next start.
      waits: whether the process ends only after threads that a library has started.
    """
    gc.freeze()  # what was imported stays, and tracing makes much that is soon gone
    gc.set_threshold(*SELDOM)
    jax.config.update("jax_num_cpu_devices", devices or engine.cores())
    # Else it stands in --helpfull alone.
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS["compile_cache"])

    def whole() -> None:
        app.run(lambda argv: _guarded(main, keep), flags_parser=parsing.parse)

    whole() if waits else leaving.after(whole)


def print_notes(config: "ConfigDict", before: "ConfigDict", name: str = "") -> None:
    """Prints a note for each changed key that has no effect, or hardly any.

    Args:
      config: the config of a run.
      before: the config that it was changed from.
      name: what the run is called, if it is one of several.
    """
    from fl_sketch.config import arguments  # benchmarks have no configs

    who = name or f"{config.algorithm} as configured"
    for key in arguments.unread(config, before):
        print(f"note: {who} does not read {key}")
    for hint in () if name else arguments.hints(config, before):
        print(f"note: {hint}")


def _as_note(message, category, filename, lineno, file=None, line=None) -> None:
    """Prints what the project warns of as it prints its own notes."""
    if category is UserWarning:
        print(f"note: {message}", file=file or sys.stderr)
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        print(text, end="", file=file or sys.stderr)


def _of_platforms(error: Exception) -> bool:
    """Returns whether jax raised an `error` because it found no platform."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (pathlib.Path(last.filename).name, last.name) == (
        "xla_bridge.py",
        "backends",
    )


def _no_platform(error: Exception) -> str:
    asked = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
    first = str(error).partition("\n")[0]
    reason = first or "install jax for it, or unset the variable"
    return f"jax finds no platform of JAX_PLATFORMS={asked}: {reason}."


def _guarded(main: Callable[[], None], keep: bool) -> None:
    logging.set_verbosity(logging.WARNING)  # jax reports every backend it lacks
    warnings.showwarning = _as_note
    try:
        with compiled.kept(COMPILE_CACHE.value if keep else ""):
            main()
            print(end="", flush=True)
    except BrokenPipeError:  # `| head` has read enough; a run resumes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(STOPPED)
    except parsing.ERRORS as error:
        parsing.refuse(error)
    except engine.Stopped as stopped:
        print(f"{stopped}; run the same command again to resume", file=sys.stderr)
        sys.exit(STOPPED)
    except (RuntimeError, AssertionError) as error:
        if not _of_platforms(error):
            raise
        parsing.refuse(_no_platform(error))
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        sys.exit(STOPPED)
