"""What may leave a private run's folder: its model, its promise, and a page on both.

A run's folder is the simulator's own: checkpoints hold what every client remembers and
when it took part, rows what clients measured. So nothing is copied from there. Three
new files are made of what is named here and of nothing else: the parameters after the
last round, the numbers of the promise, and a few keys of the config.
"""

import importlib.metadata
import json
import math
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

import fl_sketch
from fl_sketch.config import privacy
from fl_sketch.config.inputs import MEASURED
from fl_sketch.core import files, plugins, validate
from fl_sketch.engine.resumable import RUN
from fl_sketch.models import params_io
from fl_sketch.models.losses import KINDS
from fl_sketch.models.params_io import FORMS, Arrays
from fl_sketch.privacy.guarantee import UNPROTECTED, Guarantee, rounded_up
from fl_sketch.run import model_page
from fl_sketch.run.model_page import PAGE, PROMISE
from fl_sketch.workdir import checkpoint, odometer, secrets, weights
from fl_sketch.workdir.config_file import read as read_config

ROUND = "state/server/round"  # in a checkpoint
PACKAGES = ("jax", "numpy", "dp-accounting")
TEXTS = ("transformer", "language_model")  # models whose inputs are tokens
ONE = {"classes": "class", "labels": "label", "numbers": "number"}
ROUNDING = 1e-6  # of an epsilon that is counted again
OTHERS = {  # files by which a folder is known to be that of something else
    "a sweep": ("sweep.csv", "sweep.json"),
    "a comparison": ("search.csv", "comparison.csv", "standings.md"),
}


class Release(NamedTuple):
    """All that is published of a run.

    Attributes:
      params: the parameters of the model, by their paths.
      promise: what privacy.json holds.
      model: what the page says of the model.
    """

    params: Arrays
    promise: dict[str, Any]
    model: dict[str, Any]


def release(
    workdir: str | os.PathLike, out: str | os.PathLike, form: str = FORMS[0]
) -> list[str]:
    """Publishes a finished private run; returns lines on what was written.

    Args:
      workdir: the folder of the run.
      out: a folder that is new or empty, which gets three files.
      form: one of `FORMS`, the way parameters are written.

    Raises:
      ValueError: in one line, for a run that may not be published or cannot be read.
      OSError: if the files cannot be written; then none is left.
    """
    validate.one_of(FORMS, format=form)
    folder = pathlib.Path(out)
    empty = not folder.is_dir() or not any(folder.iterdir())
    _require(empty, "out to be a new or an empty folder", f"out={out}")
    found = read(workdir)
    _write(found, files.writable_folder(out, "out"), form)
    promise = found.promise
    return [
        f"params.{form}, {PROMISE} and {PAGE} are in {out}: {found.model['d']} "
        "parameters, equal to those of the last checkpoint",
        f"promised to every {promise['unit']}: epsilon {rounded_up(promise['epsilon'])} at "
        f"delta {promise['delta']:g}; what is not protected stands in {PAGE}",
    ]


def read(workdir: str | os.PathLike) -> Release:
    """Returns what may be published of a run.

    Args:
      workdir: the run's folder.

    Raises:
      ValueError: in one line, for a folder of anything but a private run that is over
        and whose randomness was the system's, or for files that do not fit together.
    """
    folder = pathlib.Path(workdir)
    path, there = folder / "config.json", f"workdir={folder}"
    for kind, names in OTHERS.items():
        own = not any((folder / name).exists() for name in names)
        _require(own, "workdir to be the folder of one run", f"{kind}'s, {there}")
    _require(path.is_file(), "workdir to be the folder of a run", there)
    config, path = ConfigDict(read_config(path).config), folder / "summary.json"
    _require(path.is_file(), "a finished run", f"{there} without {path.name}")
    try:
        summary = json.loads(path.read_text())
        _require_publishable(config, summary, folder)
        entries = odometer.read(folder)
        own = _counted(summary, entries)
        promise = _promise(config, summary, own) | _of_all(entries)
        params = _params(folder, summary)
        return Release(params, promise, _model(config, params, folder))
    except json.JSONDecodeError as error:
        msg = f"Expected {path} to be a summary as it was written, got: {error}."
        raise ValueError(msg) from None
    except (KeyError, AttributeError) as error:
        lacks = str(error.args[0]).splitlines()[0].strip("\"'")
        msg = f"Expected a run as launch.train leaves it, got {there} without {lacks}."
        raise ValueError(msg) from None


def _write(found: Release, folder: pathlib.Path, form: str) -> None:
    """Writes the three files to an empty folder and reads them back, or leaves none."""
    promise = json.dumps(found.promise, indent=2, allow_nan=False) + "\n"
    page = model_page.written(found.promise, found.model, form)
    texts = {folder / PROMISE: promise, folder / PAGE: page}
    params = folder / f"params.{form}"
    try:
        params_io.save(params, found.params)
        for path, text in texts.items():
            files.write_text(path, text)
        right = {path: path.read_text() == text for path, text in texts.items()}
        right[params] = _bits(params_io.load(params)) == _bits(found.params)
        if not all(right.values()):
            wrong = min(right, key=right.__getitem__)
            msg = f"{wrong} reads otherwise than it was written: nothing is published."
            raise OSError(msg)
    except BaseException:
        for path in (params, *texts):
            path.unlink(missing_ok=True)
        raise


def _require(holds: bool, expected: str, got: str) -> None:
    if not holds:
        msg = f"Expected {expected}, got {got}."
        raise ValueError(msg)


def _require_publishable(config: ConfigDict, summary, folder: pathlib.Path) -> None:
    """Raises unless a run is private, no simulation, and over."""
    there, z = f"workdir={folder}", summary.get("noise_multiplier")
    _require(bool(z), "a private run", f"noise_multiplier={z} in {there}")
    system = {config.privacy.randomness, summary["randomness"]} == {"system"}
    got = f"{config.privacy.randomness!r} in {there}: all noise follows from the config"
    _require(system, "privacy.randomness=system for what is published", got)
    epsilon = summary["epsilon"]
    finite = epsilon is not None and math.isfinite(epsilon)
    _require(finite, "a run with a finite epsilon", f"epsilon={epsilon} in {there}")
    for name in (secrets.FILE, secrets.PARTIAL):
        got = f"{there} with a secret in it ({name}), from which its noise follows"
        _require(not (folder / name).exists(), "a run that is over", got)


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


def _promise(config: ConfigDict, summary, own: Guarantee) -> dict[str, Any]:
    """Returns what privacy.json holds of the run itself."""
    local = privacy.local_noise(config)
    # The sampling rate of a client's examples says how many there are.
    sizes = ("how many examples a client has",) * (own.unit == "example")
    threshold = ("threshold",) * (privacy.bound_of(config) == "adaptive")
    shown = any(name.startswith("validation_") for name in summary)
    begun = pathlib.Path(config.model.init_from).name
    more = ("the validation data",) * shown + (
        f"what the first model, {begun}, was trained on, which counts as public",
    ) * bool(begun)
    now = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "unit": own.unit,
        "relation": own.plan.relation,
        "sampling": own.plan.sampling,
        "sampling_rate": own.plan.rate,
        "rounds": summary["rounds"],
        "releases_a_round": summary["releases"],
        "released_beside": [*summary["noised"], *threshold],
        "noise_multiplier": own.noise_multiplier,
        "noise": "local" if local else config.privacy.noise,
        "bound": "clip" if local else privacy.bound_of(config),
        "threshold": config.privacy.threshold,
        "epsilon": summary["epsilon"],
        "delta": own.delta,
        "accountant": summary["accountant"],
        "randomness": own.randomness,
        "public_data": own.public,
        "not_protected": [*UNPROTECTED, *sizes, *more],
        "versions": {
            "of_the_run": {name: summary["versions"][name] for name in PACKAGES[:2]},
            "of_the_release": {"fl_sketch": fl_sketch.__version__, **now},
        },
    }


def _of_all(entries: Mapping[str, Guarantee]) -> dict[str, Any]:
    """Returns what privacy.json holds of all runs, if there is any but this one."""
    alone = all(name == RUN or one.public for name, one in entries.items())
    whole = None if alone else odometer.total(entries)
    if whole is None:
        return {}
    got = f"another in {odometer.FILE}, which gives away all"
    _require(not whole.simulated, "no simulated run of the same data", got)
    epsilon = whole.epsilon if math.isfinite(whole.epsilon) else None
    return {"all_runs": {"runs": whole.runs, "epsilon": epsilon, "delta": whole.delta}}


def _params(folder: pathlib.Path, summary) -> Arrays:
    """Returns the parameters of the last checkpoint; its other leaves are not read."""
    last, rounds = summary["rounds"], checkpoint.rounds(folder / "checkpoints")
    expected = f"round {last} to have the newest checkpoint"
    got = f"{f'round {rounds[-1]}' if rounds else 'none'} in workdir={folder}"
    _require(rounds[-1:] == [last], expected, got)
    path = checkpoint.path_of(folder / "checkpoints", last)
    try:
        number = int(checkpoint.array_of(path, ROUND))
        found = weights.in_checkpoint(path)
    except Exception as error:  # zipfile and numpy raise a dozen kinds
        msg = f"Expected {path} to be a checkpoint as it was written, got: {error}."
        raise ValueError(msg) from None
    size = sum(leaf.size for leaf in found.values())
    expected = f"{summary['d']} parameters after round {last} in {path}"
    right = (size, number) == (summary["d"], last)
    _require(right, expected, f"{size} after round {number}")
    return found


def _model(config: ConfigDict, params: Arrays, folder) -> dict[str, Any]:
    """Returns what the page says of the model."""
    model, data = config.model, config.data
    outputs, what = _outputs(params, folder), KINDS[model.loss].targets
    name = pathlib.Path(model.name).name
    build = f'"{name}", {outputs}'
    build += f', size="{model.size}"' * (model.size != "small")
    build += f", vocabulary={data.vocabulary}" * (model.name == "transformer")
    inputs = "float32: bytes of pixels divided by 255, floats as the data set has them"
    inputs += ", here levels of grey divided by 16" * (data.name == "digits")
    if data.standardise != "none":
        inputs += f", and then {_scaled(data.standardise, folder)}"
    if model.name in TEXTS:
        words = pathlib.Path(data.vocabulary_file).name or "made of the training texts"
        inputs = f"{data.length} tokens a text, int32 numbers of a vocabulary that is "
        inputs += f"not part of this release: {words}"
    return {
        "name": name + ", of a file beside this release" * plugins.named(model.name),
        "size": model.size,
        "d": sum(leaf.size for leaf in params.values()),
        "outputs": f"{outputs} {what if outputs > 1 else ONE[what]}",
        "build": build,
        "data": data.name,
        "algorithm": config.algorithm,
        "inputs": inputs,
    }


def _outputs(params: Arrays, folder: pathlib.Path) -> int:
    """Returns how many numbers the model foretells."""
    last = [name for name in params if re.fullmatch(r"dense\d*/bias", name)]
    if last:
        return params[max(last)].size
    return json.loads((folder / weights.SIDECAR).read_text())["outputs"]


def _scaled(text: str, folder: pathlib.Path) -> str:
    """Returns how inputs were standardised, of which a text of a config tells."""
    if text == MEASURED:
        own = json.loads((folder / weights.SIDECAR).read_text())["inputs"]
        text = "/".join(",".join(map(str, own[key])) for key in ("mean", "deviation"))
    mean, deviation = text.split("/")
    return f"less {mean} and divided by {deviation}, for each channel"


def _bits(params: Arrays) -> dict[str, tuple]:
    return {name: (x.dtype, x.shape, x.tobytes()) for name, x in params.items()}
