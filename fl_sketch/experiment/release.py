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

import numpy as np
from ml_collections import ConfigDict

import fl_sketch
from fl_sketch import files, validate
from fl_sketch.experiment import checkpoint, odometer, privately, secrets
from fl_sketch.experiment.promise import UNPROTECTED, spent
from fl_sketch.experiment.run import RUN
from fl_sketch.experiment.workdir import read_config

FORMS = ("safetensors", "npz")
PROMISE, PAGE = "privacy.json", "MODEL.md"
ROUND, PARAMS = "state/server/round", "state/server/params/"  # in a checkpoint
PACKAGES = ("jax", "numpy", "dp-accounting")
TEXTS = ("transformer", "language_model")  # models whose inputs are tokens
ROUNDING = 1e-6  # of an epsilon that is counted again
EXPLAINED = 10  # an epsilon up to which e^epsilon is a number to be read
OTHERS = {  # files by which a folder is known to be that of something else
    "a sweep": ("sweep.csv", "sweep.json"),
    "a comparison": ("search.csv", "comparison.csv", "standings.md"),
}
INSTEAD = {  # what somebody's data are compared with, by relation
    "add_remove": "had never been there",
    "replace_one": "had been anything else",
}
TRUST = {
    "central": "The server saw every message before noise was added, and is trusted "
    "with that; the promise is about what it publishes.",
    "distributed": "Every client added its share of the noise, so the promise is about "
    "the sums, and needs an aggregation that shows nobody a single message.",
    "local": "Every client added the noise by itself, so nobody else is trusted.",
}

Params = dict[str, np.ndarray]


class Release(NamedTuple):
    """All that is published of a run.

    Attributes:
      params: of the model, by their paths.
      promise: what privacy.json holds.
      model: what the page says of the model.
    """

    params: Params
    promise: dict[str, Any]
    model: dict[str, Any]


def release(
    workdir: str | os.PathLike, out: str | os.PathLike, form: str = FORMS[0]
) -> list[str]:
    """Publishes a finished private run; returns lines on what was written.

    Args:
      workdir: the folder of the run.
      out: a folder that is new or empty, which gets three files.
      form: one of `FORMS`, how parameters are written.

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
        f"promised to every {promise['unit']}: epsilon {promise['epsilon']:.4g} at "
        f"delta {promise['delta']:g}; what is not protected stands in {PAGE}",
    ]


def read(workdir: str | os.PathLike) -> Release:
    """Returns what may be published of a run.

    Args:
      workdir: its folder.

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
    config, path = ConfigDict(read_config(path)), folder / "summary.json"
    _require(path.is_file(), "a finished run", f"{there} without {path.name}")
    try:
        summary = json.loads(path.read_text())
        _require_publishable(config, summary, folder)
        entries = odometer.read(folder)
        own = _counted(summary, entries)
        promise = _promise(config, summary, own) | _of_all(entries)
        params = _params(folder, summary)
        return Release(params, promise, _model(config, params))
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
    texts = {folder / PROMISE: promise, folder / PAGE: _page(found, form)}
    params = folder / f"params.{form}"
    try:
        with files.replacing(params) as partial, open(partial, "wb") as file:
            _save(file, found.params, form)
        for path, text in texts.items():
            files.write_text(path, text)
        right = {path: path.read_text() == text for path, text in texts.items()}
        right[params] = _bits(_load(params, form)) == _bits(found.params)
        if not all(right.values()):
            wrong = min(right, key=right.__getitem__)
            msg = f"{wrong} reads otherwise than it was written: nothing is published."
            raise OSError(msg)
    except BaseException:
        for path in (params, *texts):
            path.unlink(missing_ok=True)
        raise


def _page(found: Release, form: str) -> str:
    """Returns the text of MODEL.md."""
    promise, model = found.promise, found.model
    with_it = " and safetensors" * (form == "safetensors")
    return f"""# {model["name"]}, trained privately on {model["data"]}

A model `{model["name"]}` ({model["size"]}) of {model["d"]} parameters and \
{model["classes"]} classes, trained on the data set `{model["data"]}` by the \
federated algorithm `{model["algorithm"]}` in {promise["rounds"]} rounds.

Inputs: {model["inputs"]}.

## What is promised, and to whom

{_promised(promise)}

{_others(promise)}{_how(promise)} All numbers of the promise are in `{PROMISE}`.

## What is not protected

{chr(10).join(f"- {line}" for line in promise["not_protected"])}

## How to load it

In this folder, with fl_sketch{with_it} installed, for a batch of `inputs`:

```python
{_five_lines(model, form)}
```
"""


def _promised(promise: Mapping[str, Any]) -> str:
    """Returns a promise as one sentence."""
    unit, epsilon, delta = promise["unit"], _up(promise["epsilon"]), promise["delta"]
    times = f"e^{epsilon}"
    if promise["epsilon"] <= EXPLAINED:
        times += f" (about {math.exp(promise['epsilon']):.4g})"
    of = " and all of its data" if unit == "client" else " of a client"
    public = ", although the config calls these data public, so that nobody is owed it"
    return (
        f"To every {unit}: whatever anybody sees in these parameters or computes from "
        f"them, whatever else they know, its probability is at most {times} times "
        f"what it would be if this {unit}{of} {INSTEAD[promise['relation']]}, plus "
        f"{delta!r}, and the other way round, which is called "
        f"({epsilon}, {delta!r})-differential privacy{public * promise['public_data']}."
    )


def _up(number: float) -> str:
    """Returns a number in at most four decimals, never a smaller one."""
    return f"{math.ceil(number * 1e4) / 1e4:.4f}".rstrip("0").rstrip(".")


def _others(promise: Mapping[str, Any]) -> str:
    """Returns a paragraph on what else was made of the same data, if anything was."""
    both = promise.get("all_runs")
    if not both:
        return ""
    epsilon = "no finite epsilon" if both["epsilon"] is None else _up(both["epsilon"])
    return (
        f"More than this model was made of the same data: all {both['runs']} runs that "
        "were counted give away (epsilon, delta) = "
        f"({epsilon}, {both['delta']!r}) together.\n\n"
    )


def _how(promise: Mapping[str, Any]) -> str:
    what = "example's gradient" if promise["unit"] == "example" else "client's message"
    sums = promise["rounds"] * promise["releases_a_round"]
    return (
        f"It was kept by bounding every {what} ({promise['bound']}, "
        f"{promise['threshold']:g}), adding Gaussian noise of "
        f"{promise['noise_multiplier']:.4g} times that bound to sums of them, and "
        f"counting {sums} such sums (accountant `{promise['accountant']}`), all with "
        f"randomness of the operating system. {TRUST[promise['noise']]}"
    )


def _five_lines(model: Mapping[str, Any], form: str) -> str:
    first = "from safetensors.numpy import load_file"
    loaded = f'load_file("params.{form}")'
    if form == "npz":
        first, loaded = "import numpy as np", f'dict(np.load("params.{form}"))'
    return f"""{first}
from flax.traverse_util import unflatten_dict
from fl_sketch import models
params = unflatten_dict({loaded}, sep="/")
logits = models.build({model["build"]}).apply({{"params": params}}, inputs)"""


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


def _counted(summary, entries: list[odometer.Entry]) -> odometer.Entry:
    """Returns the run's own entry in the odometer, if that and the summary agree."""
    found = [one for one in entries if one.name == RUN]
    expected = f"{odometer.FILE} to count this run once"
    _require(len(found) == 1, expected, f"{len(found)} entries of it")
    own, plan = found[0], found[0].plan
    counted = {
        "noise_multiplier": own.noise_multiplier,
        "delta": own.delta,
        "privacy_unit": own.unit,
        "relation": plan.relation,
        "randomness": own.randomness,
        "rounds": plan.steps * plan.releases / summary["releases"],
    }
    for name, value in counted.items():
        expected = f"{name}={value!r} in summary.json, as {odometer.FILE} counts"
        _require(summary[name] == value, expected, f"{name}={summary[name]!r}")
    least = spent(plan, own.noise_multiplier, own.delta, summary["accountant"])
    enough = summary["epsilon"] * (1 + ROUNDING) >= least
    expected = f"epsilon >= {least:.6g} in summary.json, as the run gave away"
    _require(enough, expected, f"epsilon={summary['epsilon']}")
    return own


def _promise(config: ConfigDict, summary, own: odometer.Entry) -> dict[str, Any]:
    """Returns what privacy.json holds of the run itself."""
    local = config.algorithm in privately.LOCAL_NOISE
    # The sampling rate of a client's examples says how many there are.
    sizes = ("how many examples a client has",) * (own.unit == "example")
    now = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {
        "unit": own.unit,
        "relation": own.plan.relation,
        "sampling": own.plan.sampling,
        "sampling_rate": own.plan.rate,
        "rounds": summary["rounds"],
        "releases_a_round": summary["releases"],
        "noise_multiplier": own.noise_multiplier,
        "noise": "local" if local else config.privacy.noise,
        "bound": "clip" if local else privately.kind(config),
        "threshold": config.privacy.threshold,
        "epsilon": summary["epsilon"],
        "delta": own.delta,
        "accountant": summary["accountant"],
        "randomness": own.randomness,
        "public_data": own.public,
        "not_protected": [*UNPROTECTED, *sizes],
        "versions": {
            "of_the_run": {name: summary["versions"][name] for name in PACKAGES[:2]},
            "of_the_release": {"fl_sketch": fl_sketch.__version__, **now},
        },
    }


def _of_all(entries: list[odometer.Entry]) -> dict[str, Any]:
    """Returns what privacy.json holds of all runs, if there is any but this one."""
    if all(one.name == RUN or one.public for one in entries):
        return {}
    both = odometer.total(entries)
    got = f"another in {odometer.FILE}, which gives away all"
    _require(not both.simulated, "no simulated run of the same data", got)
    epsilon = both.epsilon if math.isfinite(both.epsilon) else None
    return {"all_runs": {"runs": both.runs, "epsilon": epsilon, "delta": both.delta}}


def _params(folder: pathlib.Path, summary) -> Params:
    """Returns the parameters of the last checkpoint; its other leaves are not read."""
    last, rounds = summary["rounds"], checkpoint.rounds(folder / "checkpoints")
    expected = f"round {last} to have the newest checkpoint"
    got = f"{f'round {rounds[-1]}' if rounds else 'none'} in workdir={folder}"
    _require(rounds[-1:] == [last], expected, got)
    path = folder / "checkpoints" / f"round_{last:08d}.npz"
    try:
        # Opened here, since numpy leaves a damaged file open.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            number = int(arrays[ROUND])
            names = sorted(name for name in arrays if name.startswith(PARAMS))
            # Safetensors writes the bytes of an array as they lie.
            leaves = [np.array(arrays[name], order="C") for name in names]
    except Exception as error:  # zipfile and numpy raise a dozen kinds
        msg = f"Expected {path} to be a checkpoint as it was written, got: {error}."
        raise ValueError(msg) from None
    size = sum(leaf.size for leaf in leaves)
    expected = f"{summary['d']} parameters after round {last} in {path}"
    right = (size, number) == (summary["d"], last)
    _require(right, expected, f"{size} after round {number}")
    paths = (name.removeprefix(PARAMS) for name in names)
    return dict(zip(paths, leaves, strict=True))


def _model(config: ConfigDict, params: Params) -> dict[str, Any]:
    """Returns what the page says of the model."""
    model, data = config.model, config.data
    last = max(name for name in params if re.fullmatch(r"dense\d*/bias", name))
    build = f'"{model.name}", {params[last].size}'
    build += f', size="{model.size}"' * (model.size != "small")
    build += f", vocabulary={data.vocabulary}" * (model.name == "transformer")
    inputs = "float32: bytes of pixels divided by 255, floats as the data set has them"
    inputs += ", here levels of grey divided by 16" * (data.name == "digits")
    if model.name in TEXTS:
        words = pathlib.Path(data.vocabulary_file).name or "made of the training texts"
        inputs = f"{data.length} tokens a text, int32 numbers of a vocabulary that is "
        inputs += f"not part of this release: {words}"
    return {
        "name": model.name,
        "size": model.size,
        "d": sum(leaf.size for leaf in params.values()),
        "classes": params[last].size,
        "build": build,
        "data": data.name,
        "algorithm": config.algorithm,
        "inputs": inputs,
    }


def _save(file, params: Params, form: str) -> None:
    if form == "npz":
        np.savez(file, allow_pickle=False, **params)
    else:
        from safetensors.numpy import save

        file.write(save(params))


def _load(path: pathlib.Path, form: str) -> Params:
    if form == "npz":
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    from safetensors.numpy import load_file

    return load_file(path)


def _bits(params: Params) -> dict[str, tuple]:
    return {name: (x.dtype, x.shape, x.tobytes()) for name, x in params.items()}
