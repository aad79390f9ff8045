"""The odometer: everything that was released from the same data in a folder.

Every run that protects somebody has an entry in odometer.json, written before its first
round and then as far as it came. Searches, seeds and points of a sweep count as much as
the run that is reported. So does a program that was interrupted and begun again. What
they come to together is said wherever their numbers stand.
"""

import json
import math
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fl_sketch.core import files
from fl_sketch.privacy import composition
from fl_sketch.privacy.accounting import Plan
from fl_sketch.privacy.guarantee import Guarantee

FILE = "odometer.json"
INTERRUPTED = ", interrupted "  # ends the names of runs that were begun again


class Entry(NamedTuple):
    """One run by its `name`, as far as it came.

    `plan` is of the rounds that were released, with noise of `noise_multiplier` and of
    this `randomness`. `delta` is that of the promise to each `unit`, which for `public`
    data protects nobody. `trials`, mean and shape, are of a selection, whose best run
    it is.
    """

    name: str
    plan: Plan
    noise_multiplier: float
    delta: float
    unit: str
    randomness: str
    public: bool
    trials: tuple[float, float] | None = None


class Total(NamedTuple):
    """What several runs come to: (`epsilon`, `delta`) to each `unit`, for a `relation`.

    `runs` are counted, and `public` ones, on public data, are not. `simulated`: the
    noise of one of them follows from its seed.
    """

    epsilon: float
    delta: float
    unit: str
    relation: str
    runs: int
    public: int
    simulated: bool


def entry(name: str, guarantee: Guarantee, rounds: int) -> Entry:
    """Returns entry `name` of a run that released so many `rounds` of `guarantee`."""
    return Entry(
        name,
        guarantee.plan._replace(steps=rounds * guarantee.per_round),
        guarantee.noise_multiplier,
        guarantee.delta,
        guarantee.unit,
        guarantee.randomness,
        guarantee.public,
    )


def read(folder: str | os.PathLike) -> list[Entry]:
    """Returns the entries of `folder`.

    Raises:
      ValueError: for a file that was damaged.
    """
    path = pathlib.Path(folder) / FILE
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_text())
        return [_entry(one) for one in found]
    except (ValueError, TypeError, KeyError) as error:
        msg = f"Expected {path} to be an odometer as it was written, got: {error}."
        raise ValueError(msg) from None


def _entry(found: dict[str, Any]) -> Entry:
    trials = found["trials"]
    plan = Plan(**found["plan"])
    return Entry(**{**found, "plan": plan, "trials": trials and tuple(trials)})


def write(folder: str | os.PathLike, entries: Sequence[Entry]) -> None:
    """Writes `entries`, all those of `folder`."""
    listed: list[dict[str, Any]] = [
        {**one._asdict(), "plan": one.plan._asdict()} for one in entries
    ]
    text = json.dumps(listed, indent=2) + "\n"
    files.write_text(pathlib.Path(folder) / FILE, text)


def note(folder: str | os.PathLike, own: Iterable[Entry]) -> None:
    """Writes `own` entries to `folder`, in place of those of the same names, or last.

    An entry never goes back: rounds that were released once stay released, also while
    a run that was killed plays them again.
    """
    entries = {one.name: one for one in read(folder)}
    for one in own:
        before = entries.get(one.name)
        if before is None or before.plan.steps <= one.plan.steps:
            entries[one.name] = one
    write(folder, list(entries.values()))


def total(entries: Sequence[Entry]) -> Total | None:
    """Returns what the runs of `entries` give away together; None: nobody is protected.

    They are composed at the largest delta of any of them, and for one relation, which
    all of them keep. Entries of several units (clients, examples) are none of one
    total, and are refused.
    """
    counted = [one for one in entries if not one.public]
    if not counted:
        return None
    units = sorted({one.unit for one in counted})
    if len(units) > 1:
        msg = f"Expected one unit of privacy in a folder, got {' and '.join(units)}."
        raise ValueError(msg)
    delta = max(one.delta for one in counted)
    relation = composition.common_relation([one.plan for one in counted])
    counted = [
        one._replace(plan=one.plan._replace(relation=relation)) for one in counted
    ]
    return Total(
        epsilon=_epsilon(counted, delta),
        delta=delta,
        unit=units[0],
        relation=relation,
        runs=len(counted),
        public=len(entries) - len(counted),
        simulated=any(one.randomness == "simulated" for one in counted),
    )


def _epsilon(entries: Sequence[Entry], delta: float) -> float:
    runs = [(one.plan, one.noise_multiplier) for one in entries if not one.trials]
    selections = [one for one in entries if one.trials]
    each = delta / (len(selections) + bool(runs))
    chosen = sum(selected(one, each) for one in selections)
    return chosen + (composition.together(runs, delta=each) if runs else 0.0)


def selected(one: Entry, delta: float) -> float:
    """Returns the epsilon at `delta` of `one` selection; infinite if none knows it."""
    assert one.trials is not None
    trials = composition.Trials(*one.trials)
    try:
        return composition.best_of_a_random_number(
            one.plan, one.noise_multiplier, trials, delta=delta
        )
    except ValueError:  # no accountant of Renyi divergences knows such a plan
        return math.inf


def below(folder: str | os.PathLike, apart: str) -> list[Entry]:
    """Returns the entries of all folders below one, but for those of a name.

    Args:
      folder: the folder of a comparison.
      apart: the name of folders whose runs an entry stands for already.
    """
    root, found = pathlib.Path(folder), []
    for path in sorted(root.rglob(FILE)):
        inside = path.relative_to(root).parts[:-1]
        if inside and apart not in inside:
            found += [
                one._replace(name="/".join((*inside, one.name)))
                for one in read(path.parent)
            ]
    return found


def said(found: Total | None) -> list[str]:
    """Returns a line on the total `found`; none where that is None."""
    if found is None:
        return []
    also = f"; {found.public} more on public data" * bool(found.public)
    how = " (simulated: all noise follows from the seed)" * found.simulated
    runs = f"all {found.runs} runs together" if found.runs > 1 else "this run"
    return [
        f"privacy of every {found.unit}: {runs} give away epsilon "
        f"{found.epsilon:.4g} at delta {found.delta:g} ({found.relation}){also}{how}"
    ]


def facts(found: Total | None) -> dict[str, Any]:
    """Returns what a summary says of the total `found`; nothing where that is None."""
    if found is None:
        return {}
    return {
        "epsilon_of_all": found.epsilon,
        "delta_of_all": found.delta,
        "relation_of_all": found.relation,
        "runs_of_all": found.runs,
    }


def set_apart(folder: str | os.PathLike, names: Sequence[str]) -> None:
    """Renames entries in `folder` of interrupted runs, `names`, that are begun again.

    What was released of them stays released: with other noise it counts once more.
    """
    entries = read(folder)
    before = sum(INTERRUPTED in one.name for one in entries)
    renamed = [
        one._replace(name=f"{one.name}{INTERRUPTED}{before + number}")
        if one.name in names and one.plan.steps
        else one
        for number, one in enumerate(entries, 1)
    ]
    if renamed != entries:
        write(folder, renamed)
