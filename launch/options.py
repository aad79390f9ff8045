"""Flags for the fields of a named tuple, so that each is said once.

A field is annotated with its type, the help of its flag and, if it is one of a few
words, these: `prior: Annotated[str, "What is known.", ("none", "gaussian")] = "none"`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, get_args, get_type_hints

from absl import flags

if TYPE_CHECKING:  # commands without a model do without it
    from fl_sketch.run import Trained

Settings = TypeVar("Settings")

flags.disclaim_key_flags()  # they are flags of the command that asks for them
DEFINED = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}


def of(settings: Callable[..., Settings]) -> Callable[[], Settings]:
    """Defines a flag for each field; returns what reads `settings` off them."""
    holders, defaults = {}, vars(settings)["_field_defaults"]
    for name, hint in get_type_hints(settings, include_extras=True).items():
        kind, text, *words = get_args(hint)
        holders[name] = (
            flags.DEFINE_enum(name, defaults[name], words[0], text)
            if words
            else DEFINED[kind](name, defaults[name], text)
        )
    return lambda: settings(**{name: flag.value for name, flag in holders.items()})


def data_dir() -> flags.FlagHolder:
    """Returns the flag --data_dir."""
    text = "Folder of raw data sets; the default is $FL_SKETCH_DATA."
    return flags.DEFINE_string("data_dir", None, text)


def trained() -> Callable[[], "Trained"]:
    """Defines flags that name a trained model; returns what loads it."""
    text = "Folder of a finished run."
    workdir = flags.DEFINE_string("workdir", None, text)
    text = "Folder of a release, instead of --workdir."
    release = flags.DEFINE_string("release", None, text)
    text = "Values FILE.py:NAME of the stored config whose code may run."
    plugin = flags.DEFINE_list("plugin", [], text)

    def load():
        from fl_sketch import run

        given = [flag for flag in (workdir, release) if flag.value is not None]
        if len(given) != 1:
            got = " and ".join(f"--{flag.name}" for flag in given) or "neither"
            msg = f"Expected --workdir or --release, got {got}."
            raise ValueError(msg)
        return run.load_trained(given[0].value, plugin.value)

    return load
