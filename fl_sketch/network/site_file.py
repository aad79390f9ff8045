r"""site.toml: what the owner of a site lends to runs, and what may leave the site.

>>> import tempfile, pathlib
>>> file = pathlib.Path(tempfile.mkdtemp()) / "site.toml"
>>> _ = file.write_text('data = "mine.npz"\nepsilon_in_all = 4.0')
>>> read(file).epsilon_in_all, read(file).data.name, read(file).tells
(4.0, 'mine.npz', ())
"""

import os
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from fl_sketch.core import validate
from fl_sketch.privacy.accounting import SAMPLINGS
from fl_sketch.privacy.lattice import KINDS

FILE = "site.toml"
TELLS = ("size", "measured")
NOISES = ("central", *KINDS)
TABLE = "files"


class Lent(NamedTuple):
    """What a site.toml says.

    Attributes:
      data: an npz file with train_inputs and train_targets.
      model: a folder of a pretrained model or a file of weights, in place of that which
        a config names; None: the site has none.
      folder: where the site keeps states, secrets and what it spent.
      files: the site's own FILE.py:NAME in place of one that a config names; a config
        that names any other file is refused.
      algorithms: the algorithms that it takes part in; empty: all of this package.
      versions: the versions of fl_sketch that it runs; empty: any.
      epsilon_in_a_run: the most that one run may spend; 0: no limit.
      epsilon_in_all: the most that all runs together may spend; 0: no limit.
      delta: the largest delta of these.
      smallest_sum: the least number of sites in a masked sum. In a sum of two, each of
        them learns the other's message.
      noises: who may add the noise: "central" trusts the coordinator with it. If not
        all are named, a run must have noise.
      samplings: how cohorts may be drawn. The coordinator knows them, so that only of
        "everyone" what a run spends holds towards it.
      tells: what the coordinator may be told if a run asks for it: "size", the number
        of examples; "measured", the loss of local steps and what else they measure.
      device: a platform of jax, as cpu, gpu; empty: the best that there is.
    """

    data: pathlib.Path
    folder: pathlib.Path
    model: pathlib.Path | None = None
    files: Mapping[str, str] = {}
    algorithms: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    epsilon_in_a_run: float = 0.0
    epsilon_in_all: float = 0.0
    delta: float = 1e-3
    smallest_sum: int = 2
    noises: tuple[str, ...] = NOISES
    samplings: tuple[str, ...] = SAMPLINGS
    tells: tuple[str, ...] = ()
    device: str = ""

    @property
    def capped(self) -> bool:
        """Whether there is a limit on epsilon."""
        return bool(self.epsilon_in_a_run or self.epsilon_in_all)

    @property
    def private(self) -> bool:
        """Whether a run must have noise, and not from the seed of its config."""
        return self.capped or {*self.noises} != {*NOISES}


def read(path: str | os.PathLike) -> Lent:
    """Returns what a site.toml says; its paths are relative to its folder.

    Raises:
      FileNotFoundError, ValueError: in one line, for a file that is missing or wrong.
    """
    place = pathlib.Path(path).resolve()
    try:
        said = tomllib.loads(place.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"Expected {place} to be a TOML file, got {error}."
        raise ValueError(msg) from None
    for key in said:
        if key not in Lent._fields:
            near = validate.nearest(key, Lent._fields)
            msg = f"Expected keys of {', '.join(Lent._fields)} in {place}, got {key}."
            raise ValueError(msg + near)
    if "data" not in said:
        msg = f"Expected data, the npz file of the site, in {place}, got none."
        raise ValueError(msg)
    found = {key: _value(place, key, value) for key, value in said.items()}
    found.setdefault("folder", place.parent / "state")
    return Lent(**found)


def write(path: str | os.PathLike, said: Mapping[str, Any]) -> None:
    """Writes a site.toml of strings, numbers and lists of strings."""
    shown = [f"{key} = {_toml(value)}" for key, value in said.items()]
    pathlib.Path(path).write_text("\n".join(shown) + "\n")


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value) if isinstance(value, int | float) else '"' + str(value) + '"'


def _value(place: pathlib.Path, key: str, value: Any) -> Any:
    """Returns the value of a key in the type that it has."""
    what = f"{key} in {place}"
    if key in ("data", "folder", "model"):
        _require(what, "a path", isinstance(value, str) and value, value)
        return place.parent / pathlib.Path(value).expanduser()
    if key == TABLE:
        right = isinstance(value, dict) and all(
            isinstance(v, str) for v in value.values()
        )
        _require(what, "a table of FILE.py:NAME", right, value)
        return value
    if key.startswith("epsilon") or key == "delta":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        _require(what, "a number >= 0", number and 0 <= value < float("inf"), value)
        return float(value)
    if key == "smallest_sum":
        whole = isinstance(value, int) and not isinstance(value, bool)
        _require(what, "a whole number >= 2", whole and value >= 2, value)
        return value
    if key == "device":
        _require(what, "a platform of jax", isinstance(value, str), value)
        return value
    right = isinstance(value, list) and all(isinstance(one, str) for one in value)
    _require(what, "a list of strings", right, value)
    allowed = {"tells": TELLS, "noises": NOISES, "samplings": SAMPLINGS}
    for one in value if key in allowed else ():
        validate.one_of(allowed[key], **{what: one})
    return tuple(value)


def _require(what: str, expected: str, right: Any, value: Any) -> None:
    if not right:
        msg = f"Expected {what} to be {expected}, got {value!r}."
        raise ValueError(msg)
