"""Whole rounds of the engine, timed against the same round written by hand.

All forms of a workload (see engine_forms) are timed in one process and in turn,
together with products of large matrices, which measure the machine's peak.
"""

import itertools
import math
import resource
import statistics
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

from fl_sketch.core import trees, validate
from fl_sketch.experiments import machine
from fl_sketch.experiments.bench import engine_forms
from fl_sketch.experiments.bench.engine_forms import BASE, Setting
from fl_sketch.experiments.bench.extrapolation import temporaries
from fl_sketch.experiments.bench.timing import interleaved, ratio
from fl_sketch.experiments.bench.workloads import WORKLOADS
from fl_sketch.experiments.measurements import Column, Table

PRODUCTS = "products of matrices"  # their name among the forms that are timed


class Row(NamedTuple):
    """The times of a form of a round; seconds are medians over rounds.

    Attributes:
      ratio: the seconds over those of plain, the median of rounds timed in turn.
      share: the part of the round that the channel takes: 1 - engine / this.
      gigaflops: the billions of operations a second of the local work.
      of_peak: this as a part of what products of large matrices reach on the same
        devices, the median of those timed in turn.
      program_megabytes: arguments and temporaries, of one device.
      peak_megabytes: the most of the process so far, with all forms before.
      forecast: the seconds that a forecast from few clients says, over the measured.
      forecast_memory: the same of temporaries.
      note: whether numbers stayed finite.
    """

    workload: Annotated[str, Column("8")]
    form: Annotated[str, Column("13")]
    d: int
    cohort: int
    devices: int
    chunk: int
    seconds: Annotated[float, Column("8.4f", "s/round")]
    ratio: Annotated[float | None, Column("8.3f", "/ plain")]
    share: Annotated[float | None, Column("6.3f")]
    clients_per_second: Annotated[float, Column("9.0f", "clients/s")]
    gigaflops: Annotated[float, Column("8.1f", "GFLOP/s")]
    of_peak: Annotated[float, Column("7.2f", "of peak")]
    trace_seconds: Annotated[float, Column("6.2f", "trace")]
    compile_seconds: Annotated[float, Column("8.1f", "compile")]
    first_seconds: Annotated[float, Column("6.2f", "first")]
    program_megabytes: Annotated[float, Column("7.0f", "MB")]
    peak_megabytes: Annotated[float, Column("7.0f", "peak MB")]
    forecast: Annotated[float | None, Column("8.3f")]
    forecast_memory: Annotated[float | None, Column("6.3f", "memory")]
    note: Annotated[str, Column("", "")]


TABLE = Table.of(Row)


def run(
    workloads: Sequence[str],
    forms: Sequence[str],
    *,
    rounds: int,
    chunk: int = 0,
    cohort: int = 0,
    forecast: bool = False,
) -> Iterator[Row]:
    """Returns the rows of the table, timed while they are read.

    Args:
      rounds: the number of timed rounds; at least three are.
      chunk: the clients at a time on a device; 0: by platform.
      cohort: the number of clients of a round; 0: that of the workload.
      forecast: whether each form is forecast too, as `launch.plan` does it.

    Raises:
      ValueError: for a cohort that is more than a workload's population, or a workload
        of texts, which the suite of peers alone has.
    """
    for name in workloads:
        validate.one_of(tuple(WORKLOADS), workloads=name)
    works = {name: WORKLOADS[name] for name in workloads}
    for name in works if cohort else ():  # all checked before the first is timed
        people = f"the population of {name}"
        validate.at_most(works[name].population, people, cohort=cohort)
        works[name] = works[name]._replace(cohort=cohort)
    return itertools.chain.from_iterable(
        _compare(name, engine_forms.prepare(work, chunk), forms, rounds, forecast)
        for name, work in works.items()
    )


def _compare(
    workload: str, setting: Setting, names: Sequence[str], rounds: int, forecast: bool
) -> Iterator[Row]:
    said = {name: engine_forms.forecast(setting, name) for name in names if forecast}
    forms = {name: engine_forms.form(setting, name) for name in names}
    timed = {name: form.timed for name, form in forms.items()}
    timed[PRODUCTS], peak = machine.products(setting.mesh)
    samples = interleaved(timed, rounds=rounds, budget_seconds=math.inf)
    operations, cohort = engine_forms.operations_of(setting), setting.work.cohort
    for name, form in forms.items():
        taken, memory = samples[name], form.program.memory_analysis()
        seconds = statistics.median(taken)
        adds = name not in ("plain", BASE) and BASE in samples  # to the base's time
        program = memory.argument_size_in_bytes + memory.temp_size_in_bytes
        cost, work = said.get(name), max(1.0, temporaries(form.program))
        yield Row(
            workload=workload,
            form=name,
            d=trees.size(setting.params),
            cohort=cohort,
            devices=setting.mesh.size,
            chunk=setting.chunk,
            seconds=seconds,
            ratio=ratio(taken, samples["plain"]) if "plain" in samples else None,
            share=1 - ratio(samples[BASE], taken) if adds else None,
            clients_per_second=cohort / seconds,
            gigaflops=operations / seconds / 1e9,
            of_peak=operations / peak * ratio(samples[PRODUCTS], taken),
            trace_seconds=form.trace_seconds,
            compile_seconds=form.compile_seconds,
            first_seconds=form.timed.first_seconds,
            program_megabytes=program / 1e6,
            peak_megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
            forecast=cost and cost.seconds / seconds,
            forecast_memory=cost and cost.temporaries / work,
            note="" if trees.finite(form.timed.value) else "not finite",
        )
