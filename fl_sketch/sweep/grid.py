"""The grid of a sweep: which keys take which values, and what shares a program.

Continuous keys and the seed are arguments of a program, so all their values share
one; every combination of the other keys is a program of its own.

>>> from configs import default
>>> config = default.get_config()
>>> axes = read_axes(config, ["client.rate=0.03,0.1", "sketch.compression=10,20"])
>>> [program.points for program in programs(config, axes)][1]  # doctest: +ELLIPSIS
({'client.rate': 0.03, 'sketch.compression': 20.0}, {'client.rate': 0.1, ...})
>>> read_axes(config, ["client.rat=1"])
Traceback (most recent call last):
ValueError: Expected --over=key=value,value with a key of the config, got \
--over=client.rat=1. Did you mean 'client.rate'?
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fl_sketch.config import parse
from fl_sketch.core import validate
from fl_sketch.core.mappings import flat

BETWEEN = re.compile(r",(?![^()]*\))")  # values, whose options have commas too
MOST = 10_000  # points, of which a table can still be read

READ: dict[type, Callable[[str], Any]] = {
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    float: float,
    int: int,
    str: str,
}


class Axis(NamedTuple):
    """A `key` of the config, by its dotted name, and the `values` that it takes."""

    key: str
    values: tuple[Any, ...]


class Group(NamedTuple):
    """The points that share a program: all seeds with all continuous values.

    Attributes:
      config: the config of the program; where points differ, it is the first one's.
      seeds: the seeds of the points.
      numbers: the continuous keys that are swept, for each point of one seed.
      points: all swept keys of each point, those of one seed next to each other.
      first: the number of points of the programs before it.
    """

    config: ConfigDict
    seeds: tuple[int, ...]
    numbers: tuple[dict[str, float], ...]
    points: tuple[dict[str, Any], ...]
    first: int


def read_axes(
    config: ConfigDict, over: Sequence[str], *, flag: str = "over"
) -> tuple[Axis, ...]:
    """Returns the axes of a grid, from lines "key=value,value".

    They come in the order of the config, the seed last, so that the same grid is the
    same however it was written down.

    Args:
      config: the config whose keys they may name, and whose types values must have.
      over: the lines; a comma within brackets belongs to a value, as in "adam(b1=0.8,
        b2=0.9)", and with another flag than "over" every comma does.
      flag: the flag that they were given with.

    Raises:
      ValueError: in one line. It is raised for what is no axis of this config, a key or
        a value given twice, a value that its key may not have, no axis at all, or more
        than `MOST` points.
    """
    if not over:
        msg = "Expected at least one --over=key=value,value, got none."
        raise ValueError(msg)
    legal = flat(config)
    order = [*(key for key in legal if key != "seed"), "seed"]
    axes = sorted(
        (_axis(legal, line, flag) for line in over),
        key=lambda axis: order.index(axis.key),
    )
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            msg = f"Expected each key once, got --{flag}={key} {keys.count(key)} times."
            raise ValueError(msg)
    points = math.prod(len(axis.values) for axis in axes)
    if points > MOST:
        sizes = " x ".join(str(len(axis.values)) for axis in axes)
        msg = f"Expected at most {MOST} points, got {sizes} = {points}."
        raise ValueError(msg)
    return tuple(axes)


def programs(config: ConfigDict, axes: Sequence[Axis]) -> list[Group]:
    """Returns the points of the grid, program by program.

    Args:
      config: what the points have in common.
      axes: the axes, in the order of `read_axes`; the seed need not be among them.
    """
    static = [axis for axis in axes if not shares_program(axis.key)]
    numbers = tuple(_product([a for a in axes if a.key in parse.CONTINUOUS]))
    seeds = {axis.key: axis.values for axis in axes}.get("seed", (config.seed,))
    groups, first = [], 0
    for fixed in _product(static):
        points = tuple(
            {axis.key: {**fixed, **own, "seed": seed}[axis.key] for axis in axes}
            for seed, own in itertools.product(seeds, numbers)
        )
        whole = config.copy_and_resolve_references()
        whole.update_from_flattened_dict(points[0])
        groups.append(Group(whole, tuple(seeds), numbers, points, first))
        first += len(points)
    return groups


def points_of(
    config: ConfigDict, over: Sequence[str]
) -> Iterator[tuple[dict[str, Any], ConfigDict]]:
    """Yields every point of a grid with its config; without axes `config` alone.

    Args:
      config: what the points have in common.
      over: lines "key=value,value", as in `read_axes`.
    """
    if not over:
        yield {}, config
        return
    for group in programs(config, read_axes(config, over)):
        for point in group.points:
            own = group.config.copy_and_resolve_references()
            own.update_from_flattened_dict(point)
            yield point, own


def shares_program(key: str) -> bool:
    """Returns whether points that differ in `key` alone run in one program."""
    return key == "seed" or key in parse.CONTINUOUS


def listed(axes: Sequence[Axis]) -> dict[str, list[Any]]:
    """Returns the values of every key of `axes`, as json has them."""
    return {axis.key: list(axis.values) for axis in axes}


def typed(value: Any, like: Any) -> Any:
    """Returns a `value`, of which a file may have a text, with the type of `like`.

    >>> typed("False", True), typed("3", 0.5), typed(7, 0)
    (False, 3.0, 7)
    """
    return READ[type(like)](value) if isinstance(value, str) else type(like)(value)


def shown(value: Any) -> str:
    """Returns `value` as short as it can be without becoming another."""
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def _axis(legal: Mapping[str, Any], line: str, flag: str) -> Axis:
    key, equals, listed = line.partition("=")
    if key in legal and not equals:
        msg = f"Expected --{flag}={key}=value,value, got no values in --{flag}={line}."
        raise ValueError(msg)
    if key not in legal:
        near = validate.nearest(key, tuple(legal))
        msg = f"Expected --{flag}=key=value,value with a key of the config, got "
        raise ValueError(msg + f"--{flag}={line}.{near}")
    kind = type(legal[key])
    texts = BETWEEN.split(listed) if flag == "over" else [listed]
    try:
        values = tuple(READ[kind](text.strip()) for text in texts)
    except (ValueError, KeyError):
        values = ()
    if not values or "" in values:
        kind = kind.__name__
        msg = f"Expected --{flag}={key}= and {kind} values, got --{flag}={line}."
        raise ValueError(msg)
    if len(set(values)) < len(values):
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
