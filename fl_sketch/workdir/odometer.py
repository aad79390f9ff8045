"""The privacy ledger: the privacy that all runs on the same data in a folder spent.

It is no odometer of theory (Rogers et al., 2016), which would allow to choose later
runs by the results of earlier ones: see `privacy.composition`.

Every private run has an entry in odometer.json, written before its first round and then
as far as it came: a name, and a `Guarantee` whose plan has the rounds that were
released. Searches, seeds, points of a sweep and programs that were interrupted and
begun again count as much as the run that is reported.
"""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fl_sketch.core import files, untrusted_files
from fl_sketch.privacy import composition
from fl_sketch.privacy.accounting import Plan
from fl_sketch.privacy.guarantee import RANDOMNESS, Guarantee, rounded_up
from fl_sketch.privacy.lattice import Integers

FILE = "odometer.json"
RUN = "run"  # the name of a run that is alone in its folder
UNNAMED = "simulate"  # the partition of a run that does not name it
INTERRUPTED = ", interrupted "  # ends the names of runs that were begun again
Entries = dict[str, Guarantee]


class Total(NamedTuple):
    """The epsilon of several runs together.

    Attributes:
      runs: the number of private runs, without those on `public` data.
      simulated: whether the noise of one of them follows from its seed.
    """

    epsilon: float
    delta: float
    unit: str
    relation: str
    runs: int
    public: int
    simulated: bool


class NoTotal(ValueError):
    """Several runs have no common epsilon; says why."""


def read(folder: str | os.PathLike) -> Entries:
    """Returns the entries of `folder`; raises a ValueError for a damaged file."""
    path = pathlib.Path(folder) / FILE
    if not path.exists():
        return {}
    entries: Entries = {}
    with untrusted_files.reading(path, "to be an unchanged list of private runs"):
        for name, fields in json.loads(path.read_text()):
            plan = dict(fields["plan"])
            sums = dict(plan.get("integers") or {})
            if sums:
                sums["lengths"] = tuple(sums["lengths"])
                plan["integers"] = Integers(**sums)
            entries[name] = Guarantee(**{**fields, "plan": Plan(**plan)})
    return entries


def write(folder: str | os.PathLike, entries: Mapping[str, Guarantee]) -> None:
    """Writes `entries` as all those of `folder`."""
    listed = []
    for name, one in entries.items():
        sums = one.plan.integers
        plan = one.plan._asdict() | {"integers": sums and sums._asdict()}
        listed.append((name, one._asdict() | {"plan": plan}))
    text = json.dumps(listed, indent=2) + "\n"
    files.write_text(pathlib.Path(folder) / FILE, text)


def note(folder: str | os.PathLike, entries: Mapping[str, Guarantee]) -> None:
    """Writes `entries` to `folder`, in place of those of the same names, or last.

    An entry never goes back: rounds that were released once stay released, also while
    a run that was killed plays them again.
    """
    before = read(folder)
    for name, one in entries.items():
        if name in before and _price(before[name]) != _price(one):
            msg = (
                f"Expected {pathlib.Path(folder) / FILE} to count {name!r} by the plan "
            )
            raise ValueError(msg + "and the noise with which it began, got others.")
        if name not in before or before[name].plan.steps <= one.plan.steps:
            before[name] = one
    write(folder, before)


def _price(one: Guarantee) -> tuple[Any, ...]:
    """Returns the cost of a round, whatever their number is."""
    return one.plan._replace(steps=0), one.noise_multiplier, one.delta, one.unit


def set_apart(folder: str | os.PathLike, names: Sequence[str]) -> None:
    """Renames the entries of interrupted runs, `names`, that are begun again.

    What was released of them stays released: with new noise it counts once more.
    """
    before, after = read(folder), {}
    count = sum(INTERRUPTED in name for name in before)
    for number, (name, one) in enumerate(before.items(), 1):
        again = name in names and one.plan.steps
        after[f"{name}{INTERRUPTED}{count + number}" if again else name] = one
    if {*after} != {*before}:
        write(folder, after)


def below(folder: str | os.PathLike) -> Entries:
    """Returns the entries of all folders below one."""
    root, entries = pathlib.Path(folder), {}
    for path in sorted(root.rglob(FILE)):
        inside = path.relative_to(root).parts[:-1]
        if inside:
            own = read(path.parent)
            entries |= {"/".join((*inside, name)): one for name, one in own.items()}
    return entries


def total(entries: Mapping[str, Guarantee]) -> Total | None:
    """Returns the epsilon of all runs together; None if none is private.

    They are composed at the largest delta, for a relation that all of them keep. Runs
    with different units or different examples of clients have none: removing a client
    means something else in each of them.
    """
    counted = [one for one in entries.values() if not one.public]
    if not counted:
        return None
    units = sorted({one.unit for one in counted})
    if len(units) > 1:
        msg = f"Expected one unit of privacy in a folder, got {' and '.join(units)}."
        raise NoTotal(msg)
    partitions = [one.partition for one in counted]
    if len({*partitions}) > 1 or (UNNAMED in partitions and len(partitions) > 1):
        msg = "Expected the same partition of the data in all runs, got several"
        named = " or unnamed ones: pass simulate(partition=NAME)"
        raise NoTotal(msg + named * (UNNAMED in partitions) + ".")
    delta = max(one.delta for one in counted)
    relation = composition.common_relation([one.plan for one in counted])
    runs = [
        (one.plan._replace(relation=relation), one.noise_multiplier) for one in counted
    ]
    return Total(
        epsilon=composition.together(runs, delta=delta),
        delta=delta,
        unit=units[0],
        relation=relation,
        runs=len(runs),
        public=len(entries) - len(runs),
        simulated=any(one.randomness == RANDOMNESS["seed"] for one in counted),
    )


def lines(entries: Mapping[str, Guarantee]) -> list[str]:
    """Returns a line on the privacy that all runs spent together, if any is private."""
    try:
        whole = total(entries)
    except NoTotal as error:
        return [f"privacy: these runs have no common epsilon. {error}"]
    if whole is None:
        return []
    also = f"; {whole.public} more on public data" * bool(whole.public)
    how = " (simulated: the noise follows from the seed)" * whole.simulated
    runs = f"all {whole.runs} runs together" if whole.runs > 1 else "this run"
    return [
        f"privacy spent per {whole.unit}, {runs}: epsilon = "
        f"{rounded_up(whole.epsilon)} at delta = {whole.delta:g} "
        f"({whole.relation}){also}{how}"
    ]


def facts(entries: Mapping[str, Guarantee]) -> dict[str, Any]:
    """Returns the entries of a summary about the total, if there is one."""
    try:
        whole = total(entries)
    except NoTotal as error:
        return {"epsilon_of_all": None, "no_total": str(error)}
    if whole is None:
        return {}
    return {
        "epsilon_of_all": whole.epsilon,
        "delta_of_all": whole.delta,
        "relation_of_all": whole.relation,
        "runs_of_all": whole.runs,
    }
