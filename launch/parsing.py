"""The command line: the flag for config files, and one line for what is wrong."""

import math
import pathlib
import re
import sys
from collections.abc import Callable, Sequence

from absl import flags
from ml_collections import config_flags

from configs import default
from fl_sketch import validate
from fl_sketch.config import choices
from fl_sketch.run import NotFinite
from fl_sketch.workdir.checkpoint import Unreadable
from launch import clone

flags.disclaim_key_flags()  # --config is a flag of the command that asks for it here
WRONG = 2  # the exit code
ERRORS = (ValueError, TypeError, OSError, ArithmeticError, NotFinite, Unreadable)
CONFIG_HELP = (
    "A file such as configs/quickstart.py. --config.rounds=50 changes one of its keys; "
    "configs/default.py lists them all, with what they mean."
)


def config_flag(preset: str | None = None) -> flags.FlagHolder:
    """Returns the flag --config, of files with `get_config`.

    Args:
      preset: the file that is taken if none is given. Its keys are set already when
        the flag is made, so that a wrong one must be found here.
    """
    if preset:
        _one_line(lambda: _require_known_keys(sys.argv))
        preset = str(clone.ROOT / preset)
    return config_flags.DEFINE_config_file("config", preset, CONFIG_HELP)


def parse(argv: Sequence[str]) -> Sequence[str]:
    """Returns what of `argv` is no flag, or ends with a line that says what is wrong.

    That is the program's name alone, since commands take flags only.
    """
    return _one_line(lambda: _checked(clone.with_configs(argv)))


def _checked(argv: Sequence[str]) -> Sequence[str]:
    _require_known_keys(argv)
    if "config" in flags.FLAGS and type(flags.FLAGS["config"]) is not flags.Flag:
        _require_config_file(argv)  # a plain one is a comparison's
    rest = flags.FLAGS(argv)
    if rest[1:]:
        msg = f"Expected flags only, got {' '.join(rest[1:])}."
        raise ValueError(msg)
    for name in flags.FLAGS:
        value = flags.FLAGS[name].value
        if isinstance(value, float) and not math.isfinite(value):
            msg = f"Expected a finite {name}, got {name}={value}."
            raise ValueError(msg)
    return rest


def _one_line(parse: Callable[[], Sequence[str]]) -> Sequence[str]:
    """Returns what a parser returns, or ends with a line that says what is wrong."""
    try:
        return parse()
    except flags.IllegalFlagValueError as error:  # it may hold a whole traceback
        missing = re.match(r"flag --(\w+)=None: ", str(error))
        if missing:
            refuse(f"Expected --{missing[1]}, got none: see --help.")
        refuse(re.split(r"\n\w*Error: ", str(error).strip())[-1])
    except (flags.Error, SyntaxError, ImportError, NameError, *ERRORS) as error:
        refuse(error)
    except (AttributeError, KeyError) as error:  # a key that a config file invents
        refuse(str(error.args[0]).strip("'").splitlines()[-1])


def _require_config_file(argv: Sequence[str]) -> None:
    for argument in argv:
        found = re.match(r"--?config=([^:]*)", argument)
        if not found:
            continue
        file = pathlib.Path(found[1])
        if not file.is_file() or file.suffix != ".py":
            ours = (
                path.relative_to(clone.ROOT) for path in clone.ROOT.glob("configs/*.py")
            )
            near = validate.nearest(found[1], [*map(str, ours)])
            msg = f"Expected config to name a Python file, got config={found[1]}.{near}"
            raise ValueError(msg)
        if "def get_config(" not in file.read_text():
            msg = f"Expected a file with get_config, got config={file}"
            raise ValueError(msg + ": see launch.compare.")


def _require_known_keys(argv: Sequence[str]) -> None:
    legal = tuple(choices.flat(default.get_config()))
    for argument in argv:
        found = re.match(r"--?config\.([^=]+)", argument)
        if found and found[1] not in legal:
            near = validate.nearest(found[1], legal)
            msg = f"Expected a key of configs/default.py, got config.{found[1]}.{near}"
            raise ValueError(msg)


def refuse(error: Exception | str) -> None:
    """Ends the program with an error in one line and the exit code `WRONG`."""
    line = " ".join(str(error).split())
    print(f"error: {line}", file=sys.stderr)
    sys.exit(WRONG)
