"""Rates to start with: those that were tuned in comparisons, by method and ratio.

A row of standings.csv has the values that were chosen on a grid. What it does not have,
the algorithm and the rates that were not tuned, its comparison's config says. How many
times shorter than the model the messages were is a ratio of bytes in the same file, to
a method without a sketch or with a known ratio. Where a part of the model trains, the
config says it.
"""

import math
import pathlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from fl_sketch.algorithms import catalog
from fl_sketch.config import arguments
from fl_sketch.core import files
from fl_sketch.core.mappings import flat
from fl_sketch.sweep.comparison import Comparison, config_of
from fl_sketch.workdir import rows
from fl_sketch.workdir.tables import markdown, named

STANDINGS = "standings.csv"
RATES = ("client.rate", "server.rate")  # with a column each in the table


class Tuned(NamedTuple):
    """A method as it was tuned in one setting.

    Attributes:
      method: the algorithm, with what of its config makes it another method.
      shorter: how many times shorter its messages were than the model, or than the part
        of it that trained.
      chosen: the keys that were tuned, with their best values.
      fixed: rates that the algorithm reads and that were not tuned.
      name: the name of the row.
      setting: the model, the data and the rounds.
      source: the folder of the file, below results/.
    """

    method: str
    shorter: float
    chosen: dict[str, float]
    fixed: dict[str, float]
    name: str
    setting: str
    source: str


def tuned_in(
    folder: pathlib.Path, compared: Comparison, *, results: pathlib.Path
) -> list[Tuned]:
    """Returns what was tuned in a comparison, of the standings in its folder.

    It returns nothing where all messages are shorter than a model of unknown size.
    """
    table = rows.all_plain(files.read_rows(folder / STANDINGS))
    known_rows = [row for row in table if row["method"] in compared.methods]
    each = [float(row["bytes_up"]) / float(row["rounds"]) for row in known_rows]
    configs = [
        config_of(compared, compared.methods[row["method"]], []) for row in known_rows
    ]
    longest = each.index(max(each))
    whole, found = each[longest] * _compression(configs[longest]), []
    for row, size, config in zip(known_rows, each, configs, strict=True):
        part = config.client.trains != "all"  # whose size is not that of the model
        shorter = _compression(config) if part else whole / size
        if not row["chosen"] or math.isnan(shorter):
            continue
        pairs = (word.split("=") for word in row["chosen"].split())
        chosen = {key: float(value) for key, value in pairs}
        known = flat(config)
        others = (key for key in arguments.rates(config) if key not in chosen)
        found.append(
            Tuned(
                method_of(config),
                shorter,
                chosen,
                {key: known[key] for key in others},
                row["method"],
                f"{config.model.name} on {config.data.name}, {row['rounds']} rounds",
                folder.relative_to(results).as_posix(),
            )
        )
    return found


def _compression(config: ConfigDict) -> float:
    """Returns the size of a model over that of a message; nan: the config has none."""
    read = arguments.read_by(config)
    if "compressor.name" in read:
        return math.nan
    if "sketch.operator" not in read or config.sketch.operator == "identity":
        return 1.0
    return math.nan if config.sketch.numbers else config.sketch.compression


def method_of(config: ConfigDict) -> str:
    """Returns the method of a config: its algorithm, server, query and trained part.

    >>> from configs import quickstart
    >>> method_of(quickstart.get_config())
    'safl, adam'
    """
    algorithm, parts = config.algorithm, []
    if optimizer := arguments.server_optimizer(config):
        algorithm = "fedopt" if algorithm in catalog.SERVERS else algorithm
        parts.append(optimizer)
    if "sketch.query" in arguments.read_by(config):
        parts.append(config.sketch.query)
    if config.client.trains != "all":
        parts.append(config.client.trains.partition("(")[0])
    return ", ".join([algorithm, *parts])


def lines(config: ConfigDict, ratio: float, found: Sequence[Tuned]) -> list[str]:
    """Returns what to print of the rates for a config, the nearest ratio first.

    Args:
      ratio: how many times shorter its messages are than the model.
      found: all that was tuned.
    """
    method = method_of(config)
    algorithm = _algorithm(method)
    alike = [one for one in found if _algorithm(one.method) == algorithm]
    if not alike:
        server = arguments.server_optimizer(config)
        suited = [one for one in found if one.method.endswith(f", {server}")]
        return [_unmeasured(algorithm, ratio, suited if server and suited else found)]
    mine = [one for one in alike if one.method == method] or alike
    mine.sort(key=lambda one: abs(math.log(one.shorter / ratio)))
    text = [f"rates tuned for {mine[0].method}; a message here is {ratio:.3g} times "]
    text[0] += "shorter than the model:"
    for one in mine:
        also = f" (not tuned: {named(one.fixed)})" * bool(one.fixed)
        text.append(
            f"  {_times(one.shorter)} times: {named(one.chosen)}{also}; {one.name}, "
            f"{one.setting}: results/{one.source}/{STANDINGS}"
        )
    return text


def _unmeasured(algorithm: str, ratio: float, found: Sequence[Tuned]) -> str:
    """Returns a line on an algorithm without rows; the nearest takes most alike.

    Of methods that take as many of its arguments, the nearest has the nearest ratio.
    """
    takes = {*catalog.method(algorithm).takes}

    def distance(one: Tuned) -> tuple[int, float]:
        others = {*catalog.method(_algorithm(one.method)).takes}
        return len(takes ^ others), abs(math.log(one.shorter / ratio))

    near = min(found, key=distance)
    return (
        f"rates: nothing was measured for {algorithm} at {ratio:.3g} times shorter; "
        f"the nearest method is {near.method} at {_times(near.shorter)} times: "
        f"{named(near.chosen)} (results/{near.source}/{STANDINGS})"
    )


def table(found: Iterable[Tuned]) -> list[str]:
    """Returns the lines of a table of all methods, in Markdown.

    A rate that most comparisons did not tune has a star.
    """
    groups: dict[str, list[Tuned]] = defaultdict(list)
    for one in found:
        groups[one.method].append(one)
    cells = []
    for method, group in sorted(groups.items()):
        keys = dict.fromkeys(key for one in group for key in one.chosen)
        others = (f"{key} {_values(key, group)}" for key in keys if key not in RATES)
        times = _range([float(_times(one.shorter)) for one in group])
        rates = [_values(key, group) for key in RATES]
        cells.append((f"`{method}`", times, *rates, ", ".join(others)))
    return markdown([("method", "times shorter", *RATES, "others"), *cells])


def _algorithm(method: str) -> str:
    return method.partition(",")[0]


def _times(shorter: float) -> str:
    """Returns how many times, in two digits."""
    return f"{float(f'{shorter:.2g}'):.0f}"


def _values(key: str, group: Sequence[Tuned]) -> str:
    """Returns the least and the largest value of a key; a star: mostly not tuned."""
    tuned = [one.chosen[key] for one in group if key in one.chosen]
    fixed = [one.fixed[key] for one in group if key in one.fixed]
    star = "*" * (len(fixed) > len(tuned))
    return f"{_range(tuned or fixed)}{star}" if tuned or fixed else ""


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" + f" to {high:g}" * (low < high)
