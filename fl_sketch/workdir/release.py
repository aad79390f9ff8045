"""The release of a private run: its model, its guarantee, and a page on both.

A run's folder is only for the simulator: checkpoints have client states and
participation, and rows have metrics of clients. So nothing is copied from there. A
release is four new files: the parameters after the last round, how to use them, the
numbers of the guarantee, and a page.
"""

import contextlib
import importlib.metadata
import json
import math
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import fl_sketch
from fl_sketch.core import files, untrusted_files, validate
from fl_sketch.core.hashing import SHUFFLED_UP_TO
from fl_sketch.models import params_io
from fl_sketch.models.params_io import FORMS, Arrays
from fl_sketch.privacy import accounting
from fl_sketch.privacy.guarantee import Guarantee, rounded_up
from fl_sketch.workdir import (
    checkpoint,
    model_page,
    odometer,
    origin,
    released_model,
    secrets,
    weights,
)
from fl_sketch.workdir.folder import SUMMARY
from fl_sketch.workdir.model_page import HIDDEN, PAGE, PROMISE
from fl_sketch.workdir.odometer import RUN
from fl_sketch.workdir.origin import SIDECAR

ROUND = "state/server/round"  # in a checkpoint
NETWORK = "network/run"  # in the folder of a run of `fl_sketch.network`
SHUFFLED = (
    "{}, if an attacker can predict the shuffle: its seed is secret, but it is a fast "
    "hash and no cipher. Towards such an attacker epsilon is at most {}"
)
OF_EXAMPLES = (  # what is not protected if the unit is an example
    "how many examples a client has",  # the sampling rate says it
    "which client has which examples: if labels decide it, one can move others",
)
PACKAGES = ("jax", "numpy", "dp-accounting")
ROUNDING = 1e-6  # of an epsilon that is counted again
OTHERS = {  # files by which a folder is known to be that of something else
    "a sweep": ("sweep.csv", "sweep.json"),
    "a comparison": ("search.csv", "comparison.csv", "standings.md"),
}
LAST_BITS = (
    "the last bits of float arithmetic that rounding does not remove "
    "(fl_sketch/privacy/gaussian.py)"
)
UNPROTECTED = (
    "the test data",
    "the planned number of clients, the model, its size and all other keys of the "
    "config",
    "the choice of config keys, unless other data were used for it",
    "the time that rounds take, and columns of the run that begin with simulator_only_",
)


class Release(NamedTuple):
    """All that is published of a run.

    Attributes:
      params: the whole model by path, with the arrays that did not train.
      promise: the contents of privacy.json.
      model: the page's section on the model.
      about: the contents of params.json.
      seen: the record of the data that it has seen.
    """

    params: Arrays
    promise: dict[str, Any]
    model: dict[str, Any]
    about: dict[str, Any]
    seen: origin.Record


def release(
    workdir: str | os.PathLike, out: str | os.PathLike, form: str = FORMS[0]
) -> list[str]:
    """Publishes a finished private run; returns lines on what was written.

    Args:
      workdir: the folder of the run.
      out: a folder that is new or empty, which gets four files, all or none.
      form: one of `FORMS`, how parameters are written.

    Raises:
      ValueError: in one line, for a run that may not be published or cannot be read.
      OSError: if the files cannot be written.
    """
    validate.one_of(FORMS, format=form)
    folder = pathlib.Path(out).resolve()
    empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    _require(
        bool(str(out)) and empty, "out to be a new or an empty folder", f"out={out}"
    )
    found = read(workdir)
    with _appearing(folder) as partial:
        _write(found, partial, form)
    promise, epsilon = found.promise, rounded_up(found.promise["epsilon"])
    still = found.model["d"] - found.model["trained"]
    more = f", and {still} that did not train" * bool(still)
    return [
        f"wrote params.{form}, {SIDECAR}, {PROMISE} and {PAGE} to {out}: "
        f"{found.model['trained']} parameters, those of the last checkpoint{more}",
        f"privacy spent per {promise['unit']}: epsilon = {epsilon} at delta = "
        f"{promise['delta']:g}; {PAGE} lists what is not protected",
    ]


def read(workdir: str | os.PathLike) -> Release:
    """Returns what may be published of a run.

    Raises:
      ValueError: in one line, for a folder of anything but a private run that is over
        and whose randomness was the system's, or for files that do not fit together.
    """
    folder = pathlib.Path(workdir)
    there = f"workdir={folder}"
    for kind, names in OTHERS.items():
        own = not any((folder / name).exists() for name in names)
        _require(own, "workdir to be the folder of one run", f"{kind}'s, {there}")
    path = folder / origin.CONFIG
    _require(path.is_file(), "workdir to be the folder of a run", there)
    got = f"{there}, which has not finished: train it to its end, then release it"
    _require((folder / SUMMARY).is_file(), "a finished run", got)
    summary, about = _json(folder / SUMMARY), _json(folder / origin.SIDECAR)
    try:
        _require_publishable(summary, folder)
        entries = odometer.read(folder)
        own = _counted(summary, entries)
        promise = _promise(summary, about, own) | _of_all(entries)
        promise["sums"] = _sums(folder, own)
        params = weights.whole(folder, _params(folder, summary))
        model = released_model.facts(about, params) | {"trained": summary["d"]}
        public = released_model.public(about, params, private=not own.public)
        seen = about[origin.TRAINED_ON]
        record = json.loads(origin.text_of(seen, released=True))
        return Release(params, promise, model, public | record, seen)
    except (KeyError, AttributeError, TypeError) as error:
        lacks = str(error.args[0]).splitlines()[0].strip("\"'")
        msg = f"Expected an unchanged run, got {there} without {lacks}."
        raise ValueError(msg) from None


def _json(path: pathlib.Path) -> dict[str, Any]:
    with untrusted_files.reading(path, "to be unchanged"):
        return dict(json.loads(path.read_text()))


@contextlib.contextmanager
def _appearing(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a folder that is renamed to `folder` when all went well.

    Of several that write to it at once, one comes first, and the others raise.
    """
    files.writable_folder(folder.parent, "out")
    partial = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}.partial")
    try:
        partial.mkdir()
        yield partial
        files.flush(partial)
        partial.rename(folder)  # which may be there, if it is empty
        files.flush(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write(found: Release, folder: pathlib.Path, form: str) -> None:
    """Writes the files, and reads them back."""
    promise, about = (
        json.dumps(whole, indent=2, allow_nan=False) + "\n"
        for whole in (found.promise, found.about)
    )
    page = model_page.written(found.promise, found.model, form)
    texts = {folder / SIDECAR: about, folder / PROMISE: promise, folder / PAGE: page}
    params = folder / f"params.{form}"
    weights.save(params, found.params, found.seen, released=True)
    for path, text in texts.items():
        files.write_text(path, text)
    right = {path: path.read_text() == text for path, text in texts.items()}
    right[params] = _bits(params_io.load(params)) == _bits(found.params)
    if not all(right.values()):
        wrong = min(right, key=right.__getitem__)
        msg = f"Expected {wrong.name} to read back as written, got other bytes."
        raise OSError(msg)


def _require(holds: bool, expected: str, got: str) -> None:
    if not holds:
        msg = f"Expected {expected}, got {got}."
        raise ValueError(msg)


def _require_publishable(summary, folder: pathlib.Path) -> None:
    """Raises unless a run is private, no simulation, and over."""
    there, z = f"workdir={folder}", summary.get("noise_multiplier")
    _require(bool(z), "a private run", f"noise_multiplier={z} in {there}")
    system = summary["randomness"] == "system"
    got = f"{there}, a simulation: its noise follows from config.seed, so that it is "
    got += "not private"
    _require(system, "privacy.randomness=system to publish a run", got)
    epsilon = summary["epsilon"]
    finite = epsilon is not None and math.isfinite(epsilon)
    _require(finite, "a run with a finite epsilon", f"epsilon={epsilon} in {there}")
    for name in (secrets.FILE, secrets.PARTIAL):
        got = f"{there} with the secret of its noise ({name})"
        _require(not (folder / name).exists(), "a finished run", got)


def _counted(summary, entries: Mapping[str, Guarantee]) -> Guarantee:
    """Returns the run's own entry in the odometer, if that and the summary agree."""
    expected = f"{odometer.FILE} to count this run once"
    _require(RUN in entries, expected, "no entry of it")
    own = entries[RUN]
    counted = {
        "noise_multiplier": own.noise_multiplier,
        "delta": own.delta,
        "privacy_unit": own.unit,
        "relation": own.plan.relation,
        "randomness": own.randomness,
        "rounds": own.plan.steps // own.per_round,
    }
    for name, value in counted.items():
        expected = f"{name}={value!r} in summary.json, as {odometer.FILE} counts"
        _require(summary[name] == value, expected, f"{name}={summary[name]!r}")
    least = own._replace(accountant=summary["accountant"]).spent()
    enough = summary["epsilon"] * (1 + ROUNDING) >= least
    expected = f"epsilon >= {rounded_up(least, 6)} in summary.json, as the run spent"
    _require(enough, expected, f"epsilon={summary['epsilon']}")
    return own


def _promise(summary, about, own: Guarantee) -> dict[str, Any]:
    """Returns what privacy.json holds of the run itself."""
    threshold = ("threshold",) * (summary["bound"] == "adaptive")
    now = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "unit": own.unit,
        "relation": own.plan.relation,
        "sampling": own.plan.sampling,
        "sampling_rate": own.plan.rate,
        "rounds": summary["rounds"],
        "releases_a_round": summary["releases"],
        "released_beside": [*threshold],
        "noise_multiplier": own.noise_multiplier,
        "noise": summary["noise"],
        "cohort": own.plan.sample,
        "smallest_cohort": summary["smallest_cohort"],
        "distribution": own.plan.noise,
        "bits": own.plan.integers.bits if own.plan.integers else None,
        "bound": summary["bound"],
        "threshold": summary["threshold"],
        "epsilon": summary["epsilon"],
        "delta": own.delta,
        "accountant": summary["accountant"],
        "randomness": own.randomness,
        "noise_from": "a secret of the operating system",
        "public_data": own.public,
        "not_protected": _unprotected(summary, about, own),
        "versions": {
            "of_the_run": {name: summary["versions"][name] for name in PACKAGES[:2]},
            "of_the_release": {"fl_sketch": fl_sketch.__version__, **now},
        },
    }


def _sums(folder: pathlib.Path, own: Guarantee) -> str:
    """Returns who saw the messages of clients; a network masks those of integers."""
    if not (folder / NETWORK).is_file():
        return "one program"
    return "masked network" if own.plan.integers else "network"


def _unprotected(summary, about, own: Guarantee) -> list[str]:
    """Returns what the guarantee of a run does not cover, in words."""
    lines, plan = [*UNPROTECTED], own.plan
    shuffled = own.unit == "example" or plan.population > SHUFFLED_UP_TO
    if shuffled and plan.sampling != "everyone":
        all_in = plan._replace(sampling="everyone", sample=plan.population, cut=0.0)
        name = accounting.accountant_for(all_in)
        known = own._replace(plan=all_in, accountant=name).spent()
        lines += [SHUFFLED.format(HIDDEN[own.unit], rounded_up(known))]
    if not plan.integers:  # whose sums are exact
        lines += [LAST_BITS]
    if own.unit == "example":
        lines += [*OF_EXAMPLES]
    if any(name.startswith("validation_") for name in summary):
        lines += ["the validation data"]
    if begun := pathlib.Path(about.get("init_from", "")).name:
        first = f"what the first model, {begun}, was trained on"
        lines += [f"{first}, which counts as public"]
    return lines


def _of_all(entries: Mapping[str, Guarantee]) -> dict[str, Any]:
    """Returns what privacy.json holds of all runs, if there is any but this one."""
    alone = all(name == RUN or one.public for name, one in entries.items())
    whole = None if alone else odometer.total(entries)
    if whole is None:
        return {}
    got = f"one in {odometer.FILE}, which protects nothing"
    _require(not whole.simulated, "no simulated run of the same data", got)
    epsilon = whole.epsilon if math.isfinite(whole.epsilon) else None
    return {"all_runs": {"runs": whole.runs, "epsilon": epsilon, "delta": whole.delta}}


def _params(folder: pathlib.Path, summary) -> Arrays:
    """Returns what trained, of the last checkpoint; its other leaves are not read."""
    last, rounds = summary["rounds"], checkpoint.rounds(folder / "checkpoints")
    expected = f"round {last} to have the newest checkpoint"
    got = f"{f'round {rounds[-1]}' if rounds else 'none'} in workdir={folder}"
    _require(rounds[-1:] == [last], expected, got)
    path = checkpoint.path_of(folder / "checkpoints", last)
    try:
        number = int(checkpoint.array_of(path, ROUND))
        found = weights.in_checkpoint(path)
    except Exception as error:  # zipfile and numpy raise a dozen kinds
        msg = f"Expected {path} to be an unchanged checkpoint, got: {error}."
        raise ValueError(msg) from None
    size = sum(leaf.size for leaf in found.values())
    expected = f"{summary['d']} parameters after round {last} in {path}"
    right = (size, number) == (summary["d"], last)
    _require(right, expected, f"{size} after round {number}")
    return found


def _bits(params: Arrays) -> dict[str, tuple]:
    return {name: (x.dtype, x.shape, x.tobytes()) for name, x in params.items()}
