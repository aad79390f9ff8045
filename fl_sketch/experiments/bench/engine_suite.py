"""Whole rounds of the engine, timed against the same round written by hand.

Each workload's forms, see engine_forms, in one process and in turn; and with them
products of large matrices, which say what the machine can do at that moment.
"""

import itertools
import math
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fl_sketch.core import trees, validate
from fl_sketch.experiments.bench import arithmetic
from fl_sketch.experiments.bench.engine_forms import (
    BASE,
    WORKLOADS,
    Form,
    Setting,
    by_engine,
    operations_of,
    plain,
    prepare,
)
from fl_sketch.experiments.bench.timing import Timed, interleaved, ratio

PRODUCTS = "products of matrices"  # their name among the forms that are timed


class Row(NamedTuple):
    """One line of the table; seconds are medians over rounds.

    `workload`, `form`, `d`, `cohort`, `devices` and `chunk` say what was timed, and a
    `note` whether numbers stayed finite.

    Attributes:
      seconds: the seconds of a round.
      ratio: these to those of plain, the median of rounds timed in turn.
      share: the part of the round that the channel takes: 1 - engine / this.
      clients_per_second: the cohort over the seconds.
      gigaflops: the billions of operations a second of the local work, as its layers
        are defined, however they are computed.
      of_peak: this as a part of what products of large matrices reach on the same
        devices, the median of those timed in turn.
      trace_seconds: the time that Python took to make the program.
      compile_seconds: the time that compiling it took.
      first_seconds: the time of the first call.
      program_megabytes: arguments and temporaries, of one device.
      peak_megabytes: the most of the process up to here, all forms together.
    """

    workload: str
    form: str
    d: int
    cohort: int
    devices: int
    chunk: int
    seconds: float
    ratio: float | None
    share: float | None
    clients_per_second: float
    gigaflops: float
    of_peak: float
    trace_seconds: float
    compile_seconds: float
    first_seconds: float
    program_megabytes: float
    peak_megabytes: float
    note: str


def run(
    names: Sequence[str],
    forms: Sequence[str],
    *,
    rounds: int,
    chunk: int = 0,
    cohort: int = 0,
) -> Iterator[Row]:
    """Returns the rows of the table, timed while they are read.

    Args:
      names: the names of the workloads.
      forms: the forms of the rounds.
      rounds: the number of timed rounds; three at least are.
      chunk: the clients at a time on a device; 0 leaves their number to the platform.
      cohort: the number of clients of a round; 0 leaves it to the workload.

    Raises:
      ValueError: for a cohort that is more than a workload's population.
    """
    works = {}
    for name in names:  # all checked before the first is timed
        work = WORKLOADS[name]
        if cohort:
            people = f"the population of {name}"
            validate.at_most(work.population, people, cohort=cohort)
            work = work._replace(cohort=cohort)
        works[name] = work
    return itertools.chain.from_iterable(
        _compare(name, prepare(work, chunk), forms, rounds)
        for name, work in works.items()
    )


def _compare(
    name: str, setting: Setting, forms: Sequence[str], rounds: int
) -> Iterator[Row]:
    made = {
        form: plain(setting) if form == "plain" else by_engine(setting, form)
        for form in forms
    }
    last, first = {}, {}  # the newest state of every form, and its first call's seconds

    def timed(form: str) -> Timed:
        def call(state):
            begin = time.perf_counter()
            last[form] = made[form].call(state)
            first.setdefault(form, time.perf_counter() - begin)
            return last[form]

        return Timed(made[form].start, call)

    products, count = arithmetic.products(setting.mesh)
    all_timed = {form: timed(form) for form in made} | {PRODUCTS: products}
    samples = interleaved(all_timed, rounds=rounds, budget_seconds=math.inf)
    operations = operations_of(setting)
    for form in made:
        taken, unit = samples[form], samples[PRODUCTS]
        yield Row(
            workload=name,
            form=form,
            d=trees.size(setting.params),
            cohort=setting.work.cohort,
            devices=setting.mesh.size,
            chunk=setting.chunk,
            ratio=ratio(taken, samples["plain"]) if "plain" in samples else None,
            share=_share(form, samples),
            gigaflops=operations / statistics.median(taken) / 1e9,
            of_peak=operations / count * ratio(unit, taken),
            first_seconds=first[form],
            note="" if _finite(last[form]) else "not finite",
            **_of_form(made[form], taken, setting.work.cohort),
        )


def _of_form(made: Form, taken: Sequence[float], cohort: int) -> dict[str, float]:
    """Returns the columns of a row that are of its form alone."""
    memory = made.compiled.memory_analysis()
    whole = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    seconds = statistics.median(taken)
    return {
        "seconds": seconds,
        "clients_per_second": cohort / seconds,
        "trace_seconds": made.trace_seconds,
        "compile_seconds": made.compile_seconds,
        "program_megabytes": whole / 1e6,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def _share(form: str, samples: dict[str, list[float]]) -> float | None:
    """Returns the part of a round that a channel takes, if it adds one to the base."""
    adds = form not in ("plain", BASE) and BASE in samples
    return 1 - ratio(samples[BASE], samples[form]) if adds else None


def _finite(state: Any) -> bool:
    floats = [
        leaf
        for leaf in jax.tree.leaves(state)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    return all(bool(jnp.isfinite(leaf).all()) for leaf in floats)


COLUMNS = (
    "{:8} {:13} {:>8} {:>8} {:>6} {:>9} {:>8} {:>7} {:>6} {:>8} {:>6} {:>7} {:>7}  {}"
)
HEAD = COLUMNS.format(
    "workload", "form", "s/round", "/ plain", "share", "clients/s", "GFLOP/s",
    "of peak", "trace", "compile", "first", "MB", "peak MB", "",
)  # fmt: skip


def line(row: Row) -> str:
    """Returns `row` as a line of the printed table."""
    ratio, share = ("" if n is None else f"{n:.3f}" for n in (row.ratio, row.share))
    return COLUMNS.format(
        row.workload, row.form, f"{row.seconds:.4f}", ratio, share,
        f"{row.clients_per_second:.0f}", f"{row.gigaflops:.1f}", f"{row.of_peak:.2f}",
        f"{row.trace_seconds:.2f}", f"{row.compile_seconds:.1f}",
        f"{row.first_seconds:.2f}", f"{row.program_megabytes:.0f}",
        f"{row.peak_megabytes:.0f}", row.note,
    )  # fmt: skip
