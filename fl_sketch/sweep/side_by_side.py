"""Several runs side by side, and what one of them saves."""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch.run.run import run
from fl_sketch.workdir.rows import megabytes, plain, score_of

Summary = dict[str, Any]
ROW = "{:<24} {:>13} {:>10} {:>10} {:>12} {:>9}"
HEAD = ("kB up", "kB down", "MB up in all", "rounds/s")


def side_by_side(
    configs: Mapping[str, ConfigDict],
    workdir: str | os.PathLike,
    data_dir: str | None = None,
    *,
    say: Callable[[str], None] = tqdm.write,
) -> dict[str, Summary]:
    """Runs every config in a folder of its own and prints a table of them.

    Args:
      configs: the configs by name; others are compared with the first.
      workdir: the folder that gets one for each.
      data_dir: the folder of raw data sets.
      say: what prints a line.

    Returns:
      The summary of each run, by name.
    """
    summaries = {}
    for name, config in configs.items():
        folder = os.path.join(workdir, re.sub(r"\W+", "_", name).lower())
        summaries[name] = run(config, folder, data_dir, say=say)
        say("")
    for line in table(summaries):
        say(line)
    return summaries


def table(summaries: Mapping[str, Summary]) -> list[str]:
    """Returns a head, a line for each run, and lines on what the first one saves.

    Args:
      summaries: what summary.json holds of each run, by the run's name.
    """
    summaries = {name: plain(summary) for name, summary in summaries.items()}
    first, *others = summaries
    by = score_of(summaries[first])
    lines = [ROW.format("", by.title, *HEAD)]
    for name, summary in summaries.items():
        lines.append(
            ROW.format(
                name,
                f"{by.of(summary):.4f}",
                f"{summary['bytes_up_per_client_round'] / 1e3:.2f}",
                f"{summary['bytes_down_per_client_round'] / 1e3:.2f}",
                megabytes(summary["bytes_up_total"]),
                f"{summary['rounds_per_second']:.0f}",
            )
        )
    for other in others:
        ratio = _up(summaries[other]) / _up(summaries[first])
        lost = by.of(summaries[other]) - by.of(summaries[first])
        lines.append(
            f"{first} sent {ratio:.1f} times fewer bytes up than {other}, at "
            f"{abs(lost):.4f} {'less' if lost > 0 else 'more'} {by.title}."
        )
    return lines


def _up(summary: Summary) -> float:
    return summary["bytes_up_per_client_round"]
