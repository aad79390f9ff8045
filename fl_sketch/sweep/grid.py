"""Grids of configs: which keys take which values, and which points share a program.

Continuous keys and the seed are arguments of a program, so all their values share one.
Every combination of the other keys is a separate program.

>>> from configs import default
>>> config = default.get_config()
>>> axes = read_axes(config, ["client.rate=0.03,0.1", "sketch.compression=10,20"])
>>> [program.points for program in programs(config, axes)][1]  # doctest: +ELLIPSIS
({'client.rate': 0.03, 'sketch.compression': 20.0}, {'client.rate': 0.1, ...})
"""

import collections
import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fl_sketch.config import parse
from fl_sketch.core import validate
from fl_sketch.core.mappings import flat
from fl_sketch.workdir.tables import shown

BETWEEN = re.compile(r",(?![^()]*\))")  # between values, whose options have commas too
MOST = 10_000  # points of which a table can be read
READ: dict[type, Callable[[str], Any]] = {
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    float: float,
    int: int,
    str: str,
}


class Axis(NamedTuple):
    """A dotted `key` of the config, and the `values` that it takes."""

    key: str
    values: tuple[Any, ...]


class Group(NamedTuple):
    """The points that share a program: all seeds with all continuous values.

    `config` has the values of the first point. `hyperparameters` are the swept
    continuous keys of each point of one seed, and `points` all swept keys of each
    point, one seed after the other. `first` is the number of points in the programs
    before it.
    """

    config: ConfigDict
    seeds: tuple[int, ...]
    hyperparameters: tuple[dict[str, float], ...]
    points: tuple[dict[str, Any], ...]
    first: int


def read_axes(
    config: ConfigDict, over: Sequence[str], *, flag: str = "over"
) -> tuple[Axis, ...]:
    """Returns the axes of a grid, in the order of the config with the seed last.

    Args:
      config: the config that has the keys, and values of the right types.
      over: lines "key=value,value". A comma in brackets belongs to a value, as in
        "adam(b1=0.8, b2=0.9)"; under another flag than "over" every comma does.
      flag: the name of the flag that had the lines.
    """
    if not over:
        msg = "Expected at least one --over=KEY=VALUE,VALUE, got none."
        raise ValueError(msg)
    legal = flat(config)
    axes = [_axis(legal, line, flag) for line in over]
    axes.sort(key=lambda axis: (axis.key == "seed", [*legal].index(axis.key)))
    for key, count in collections.Counter(axis.key for axis in axes).items():
        if count > 1:
            msg = f"Expected each key once, got --{flag}={key} {count} times."
            raise ValueError(msg)
    sizes = [len(axis.values) for axis in axes]
    if math.prod(sizes) > MOST:
        product = f"{' x '.join(map(str, sizes))} = {math.prod(sizes)}"
        msg = f"Expected at most {MOST} points, got {product}."
        raise ValueError(msg)
    return tuple(axes)


def programs(config: ConfigDict, axes: Sequence[Axis]) -> list[Group]:
    """Returns the points of a grid of `axes`, in their order, program by program."""
    static = [axis for axis in axes if not shares_program(axis.key)]
    hyperparameters = tuple(_product([a for a in axes if a.key in parse.CONTINUOUS]))
    seeds = {axis.key: axis.values for axis in axes}.get("seed", (config.seed,))
    groups, first = [], 0
    for fixed in _product(static):
        points = tuple(
            {axis.key: {**fixed, **values, "seed": seed}[axis.key] for axis in axes}
            for seed, values in itertools.product(seeds, hyperparameters)
        )
        whole = changed(config, points[0])
        groups.append(Group(whole, tuple(seeds), hyperparameters, points, first))
        first += len(points)
    return groups


def points_of(
    config: ConfigDict, over: Sequence[str]
) -> Iterator[tuple[dict[str, Any], ConfigDict]]:
    """Yields every point of a grid with its config; without axes `config` alone."""
    for group in programs(config, read_axes(config, over)) if over else ():
        for point in group.points:
            yield point, changed(group.config, point)
    if not over:
        yield {}, config


def changed(config: ConfigDict, keys: Mapping[str, Any]) -> ConfigDict:
    """Returns a copy of `config` with other values of some dotted keys."""
    copy = config.copy_and_resolve_references()
    copy.update_from_flattened_dict(dict(keys))
    return copy


def shares_program(key: str) -> bool:
    """Returns whether points that differ in `key` alone share a program."""
    return key == "seed" or key in parse.CONTINUOUS


def typed(value: Any, like: Any) -> Any:
    """Returns a `value`, which may be a file's text, with the type of `like`.

    >>> typed("False", True), typed("3", 0.5), typed(7, 0)
    (False, 3.0, 7)
    """
    return READ[type(like)](value) if isinstance(value, str) else type(like)(value)


def beyond(
    tune: Mapping[str, Sequence[Any]], best: Mapping[str, Any]
) -> tuple[str, float] | None:
    """Returns a key whose best value is at an end of its grid, and the next value.

    It continues the sequence: 0.1 is next after 0.003, 0.01, 0.03. It is None if the
    best point has a worse neighbour on both sides in all continuous keys with two
    values or more, or if the key does not allow the next value.

    >>> beyond({"server.rate": (0.001, 0.003, 0.01)}, {"server.rate": 0.001})
    ('server.rate', 0.0003)
    >>> beyond({"server.rate": (0.0003, 0.001, 0.003)}, {"server.rate": 0.001})
    """
    for key, tried in tune.items():
        values = sorted({*tried})
        if key not in parse.CONTINUOUS or len(values) < 2 or values[0] <= 0:
            continue
        if best[key] == values[-1]:
            values.reverse()
        if best[key] == values[0]:
            ratio = values[2] / values[1] if values[2:] else values[1] / values[0]
            value = float(f"{values[0] / ratio:.6g}")
            with contextlib.suppress(ValueError):
                parse.check_number(key, value)
                return key, value
    return None


def _axis(legal: Mapping[str, Any], line: str, flag: str) -> Axis:
    key, _, text = line.partition("=")
    more = ",VALUE" * (flag == "over")
    if key not in legal:
        near = validate.nearest(key, tuple(legal))
        msg = f"Expected --{flag}=KEY=VALUE{more} with a key of the config, got "
        raise ValueError(msg + f"--{flag}={line}.{near}")
    kind = type(legal[key])
    texts = BETWEEN.split(text) if flag == "over" else [text]
    try:
        values = tuple(READ[kind](value.strip()) for value in texts)
    except (ValueError, KeyError):
        values = ()
    if not values or "" in values:
        msg = f"Expected --{flag}={key}=VALUE{more} with {kind.__name__}, got "
        raise ValueError(msg + f"--{flag}={line}.")
    if len({shown(value) for value in values}) < len(values):  # a row's name is unique
        msg = f"Expected different values of {key}, got --{flag}={line}."
        raise ValueError(msg)
    for value in values:
        if key in parse.CONTINUOUS:
            parse.check_number(key, value)
        if key == "seed":
            parse.check_seed(value)
    return Axis(key, values)


def _product(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    combinations = itertools.product(*(axis.values for axis in axes))
    keys = [axis.key for axis in axes]
    return [dict(zip(keys, values, strict=True)) for values in combinations]
