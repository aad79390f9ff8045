"""The command line: the flag for config files, and one line for what is wrong."""

import math
import re
import sys
from collections.abc import Callable, Sequence

from absl import flags

from fl_sketch.core import validate
from fl_sketch.core.exit_codes import WRONG
from fl_sketch.core.mappings import flat
from fl_sketch.engine import NotFinite, StandsStill
from launch import clone, config_file, flag_errors

flags.disclaim_key_flags()  # --config is a flag of the command that asks for it here
ERRORS = (
    *(ValueError, TypeError, OSError, ArithmeticError),
    *(NotFinite, StandsStill),
)
CONFIG_HELP = (
    "Config file, such as configs/quickstart.py. --config.KEY=VALUE changes a key; "
    "configs/default.py lists and explains all keys."
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
    from ml_collections import config_flags  # benchmarks do without it

    return config_flags.DEFINE_config_file("config", preset, CONFIG_HELP)


def parse(argv: Sequence[str]) -> Sequence[str]:
    """Returns what of `argv` is no flag, or ends with a line that says what is wrong.

    That is the program's name alone, since commands take flags only.
    """
    return _one_line(lambda: _checked(clone.with_configs(argv)))


def _checked(argv: Sequence[str]) -> Sequence[str]:
    _require_known_keys(argv)
    if "config" in flags.FLAGS and type(flags.FLAGS["config"]) is not flags.Flag:
        config_file.require(argv)  # a plain one is a comparison's
    rest = flags.FLAGS(argv)
    config_file.require_config(
        flags.FLAGS["config"].value if "config" in flags.FLAGS else None
    )
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
    except flags.IllegalFlagValueError as error:
        refuse(flag_errors.line(error))
    except flags.Error as error:
        refuse(error)
    except SystemExit as error:  # of --help, or of a config file
        where = config_file.placed(error)
        if not where:
            raise
        refuse(where + "a config file ends the program, which it must not.")
    except Exception as error:  # whatever a config file does
        text = str(error.args[0] if error.args else type(error).__name__)
        # Of a key that it invents: what the key is, and which may have been meant.
        if isinstance(error, KeyError) and text.isidentifier():
            text = f"Expected a config with a key {text}, got another one."
        text = re.sub(r" Other fields present: .*?(Did you mean|$)", r" \1", text)
        refuse(config_file.placed(error) + text)


def _require_known_keys(argv: Sequence[str]) -> None:
    keys = [word for word in argv if re.match(r"--?config\.", word)]
    if not keys:
        return
    from configs import default  # commands without configs do without these
    from fl_sketch.workdir.secrets import RENAMED

    legal = tuple(flat(default.get_config()))
    for argument in keys:
        found = re.match(r"--?config\.([^=]+)", argument)
        if found and found[1] not in legal:
            now = {old: new for new, old in RENAMED.items()}.get(found[1])
            near = validate.nearest(found[1], legal)
            near = f" It is now config.{now}." if now else near
            msg = f"Expected a key of configs/default.py, got config.{found[1]}.{near}"
            raise ValueError(msg)


def refuse(error: Exception | str) -> None:
    """Ends the program with an error in one line and the exit code of wrong input."""
    line = " ".join(str(error).split())
    print(f"error: {line}", file=sys.stderr)
    sys.exit(WRONG)
