"""The release of a private run: its model, its guarantee, and a page on both.

A run's folder is only for the simulator: checkpoints have client states and
participation, and simulator.csv has metrics of clients. So nothing is copied from
there. A release is four new files: the parameters after the last round, how to use
them (params.json), the numbers of the guarantee (privacy.json), and a page (MODEL.md).
The guarantee is that of the run's entry in the privacy ledger.
"""

import contextlib
import json
import math
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from fl_sketch.core import files, plugins, pretrained, untrusted_files
from fl_sketch.core.hashing import SHUFFLED_UP_TO
from fl_sketch.models import params_io
from fl_sketch.models.params_io import Arrays
from fl_sketch.privacy import accounting
from fl_sketch.privacy.guarantee import Guarantee, rounded_down, rounded_up
from fl_sketch.workdir import odometer, secrets, weights
from fl_sketch.workdir.odometer import RUN
from fl_sketch.workdir.weights import CONFIG, SIDECAR, SUMMARY, TRAINED_ON

PROMISE, PAGE = "privacy.json", "MODEL.md"
NETWORK = "network/run"  # in the folder of a run of `fl_sketch.network`
OF_SUMMARY = ("noise", "bound", "threshold", "smallest_cohort", "versions")
NAMES = ("algorithm", "dataset", "model")  # in params.json; they may be paths
PUBLIC = (  # what else of params.json a release has; the rest, as paths, stays at home
    "part", "size", "loss", "options", "outputs", "class_names", "round", "pretrained",
    TRAINED_ON,
)  # fmt: skip
LAST_BITS = (
    "the last bits of float arithmetic that rounding does not remove "
    "(fl_sketch/privacy/gaussian.py)"
)
UNPROTECTED = (
    "the test data",
    "the planned number of clients, the model, its size and all other keys of the "
    "config",
    "the choice of config keys, unless other data were used for it",
    "the time that rounds take, and all else of simulator.csv in the run's folder",
)
SHUFFLED = (
    "{}, if an attacker can predict the shuffle: its seed is secret, but it is a fast "
    "hash and no cipher. Against such an attacker epsilon is at most {}"
)
OF_EXAMPLES = (  # what is not protected if the unit is an example
    "how many examples a client has",  # the sampling rate says it
    "which client has which examples: if labels decide it, one can move others",
)
HIDDEN = {  # what the accountant assumes to be secret besides the noise, by unit
    "client": "which clients took part in which round",
    "example": "which examples were in which batch",
}
INSTEAD = {  # what somebody's data are compared with, by relation
    "add_remove": "had not taken part",
    "replace_one": "had been any other",
}
SUMS = {  # who saw the messages of clients
    "one program": "simulated in one program, which saw every client's message",
    "network": "of messages that sites sent to a coordinator, which saw each of them",
    "masked network": "of integers that sites sent under masks. The coordinator saw "
    "only sums, if it and who made the sites' kits followed the protocol",
}
TRUST = {  # who added the noise, and must be trusted with what
    "central": "added by the server to the sum. It saw every message, so it must be "
    "trusted. The guarantee covers the models of all rounds, and not the messages",
    "local": "added by every client, here in a simulation, whose program must be "
    "trusted. With clients on machines of their own no other party must be",
    "one's own": "that of a mechanism which is not one of fl_sketch: its code decides "
    "who adds the noise, and how long a message may be",
}
SHARES = (  # of the noise, by every client
    "a share added by every client. The guarantee covers the sums, and needs secure "
    "aggregation, which reveals no single message. It holds against anyone who knows "
    "no client's share, and so not against a client. Of the {:g} clients of a round, "
    "{:g} may have dropped out or shown an observer their shares"
)
MEMBERS = (
    ". It does not hold against an observer who knows which clients took part, as a "
    "server does and in masked sums every client"
)
OTHERS = (
    "- Other runs used these data. All {} counted runs together spent (epsilon, delta) "
    "= ({}, {!r}), which is a guarantee only if they were planned in advance. Runs in "
    "other folders are not in it.\n"
)
AVERAGE = " on average in the rounds of the last row of metrics.csv"
PREDICT = "predictions = run.predict(model, inputs)"
GENERATE = 'text = run.generate(model, "It is", tokens=200)'
PUBLIC_DATA = "The config calls these data public: they may need no protection."
BY_CALL = (
    "A call of `simulate` does not record the model's code, its inputs and the "
    "name of the data set: write here what users need."
)
TEMPLATE = """# {model}, trained privately on {dataset}

A model `{model}` of {d} parameters, of which {trained} were trained on the data set \
`{dataset}` by the federated algorithm `{algorithm}` in {rounds} rounds. {by_call}

## Privacy guarantee

The parameters are ({up}, {delta!r})-differentially private per {unit}. For every \
{unit}, any result computed from them has a probability of at most e^{up} times its \
probability if this {unit}{of} {instead}, plus {delta!r}, and the other way round. \
This holds whatever an observer knows about all other data, if the observer does not \
learn {secret}the noise. {public_data}

- Unit: {unit}{site}; neighbours: {relation}.
- Sampling: {sampling}{within}, rate {sampling_rate:.4g}.
- Bound of every {bounded}: {bound}, {threshold}{average}.
- Sums: {sums}. There are {count}{beside}.
- Noise: {distribution}, of a standard deviation of at least {z} times the bound, \
{trust}.
- Accountant: {accountant}.
- Randomness: noise, cohorts and batches from {noise_from}; sketches and random \
initial weights from the seed of the config.
{others}
All numbers of the guarantee are in `privacy.json`.

## What is not protected

{not_protected}

## How to load it

`params.json` has the shapes of the arrays, and what the model takes if a config \
trained it.

```python
from safetensors.flax import load_file
params = load_file("params.safetensors")
```
{use}"""
USE = """
With fl_sketch installed:

```python
from fl_sketch import run
model = run.load_trained(".")
{}
```
"""


def release(workdir: str | os.PathLike, out: str | os.PathLike) -> list[str]:
    """Publishes the finished private run in a folder; returns lines on what it wrote.

    The folder `out`, which is new or empty, gets four files, all or none.
    """
    folder, target = pathlib.Path(workdir), pathlib.Path(out).resolve()
    there = f"workdir={folder}"
    empty = not target.exists() or (target.is_dir() and not any(target.iterdir()))
    _require(str(out) and empty, "out to be a new or an empty folder", f"out={out}")
    _require((folder / CONFIG).is_file(), "workdir to be the folder of a run", folder)
    got = f"{there}, which has not finished"
    _require((folder / SUMMARY).is_file(), "the folder of a finished run", got)
    summary, about = _json(folder / SUMMARY), _json(folder / SIDECAR)
    entries = odometer.read(folder)
    own = entries.get(RUN)
    got = f"{there}: {weights.FILE} and {SIDECAR} there are the model of a run without "
    _require(own and own.private, f"a private run in {odometer.FILE}", got + "privacy")
    assert own
    got = f"{there}, a simulation: its noise follows from the seed and protects no one"
    _require(own.randomness == "system", "a run with privacy.randomness=system", got)
    _require(math.isfinite(own.spent()), "a finite epsilon", f"inf in {there}")
    for name in (secrets.FILE, secrets.PARTIAL):
        got = f"{there} with the secret of its noise ({name})"
        _require(not (folder / name).exists(), "a finished run", got)
    try:
        promise = promise_of(summary, about, own)
        if any(name != RUN and not one.public for name, one in entries.items()):
            total = odometer.total(entries)
            assert total
            got = f"one in {odometer.FILE}, which protects nothing"
            _require(not total.simulated, "no simulated run of the same data", got)
            spent = total.epsilon if math.isfinite(total.epsilon) else None
            both = {"runs": total.runs, "epsilon": spent, "delta": total.delta}
            promise["all_runs"] = both
        promise["sums"] = "one program"
        if (folder / NETWORK).is_file():
            promise["sums"] = "masked network" if own.plan.integers else "network"
        params = weights.read(str(folder))
        same = params_io.digest(params) == summary["params_digest"]
        same = same and summary["rounds"] == about["round"] == promise["rounds"]
        expected = f"an unchanged model of round {promise['rounds']} in {folder}"
        _require(same, expected, "another")
        public = public_of(about, private=not own.public)
        text = page_of(promise, public, params, summary["d"])
    except (KeyError, AttributeError, TypeError) as error:
        lacks = str(error.args[0]).splitlines()[0].strip("\"'")
        msg = f"Expected an unchanged run, got {there} without {lacks}."
        raise ValueError(msg) from None
    with _appearing(target) as partial:
        weights.write_arrays(partial, params, public)
        numbers = json.dumps(promise, indent=2, allow_nan=False) + "\n"
        files.write_text(partial / PROMISE, numbers)
        files.write_text(partial / PAGE, text)
    size = sum(leaf.size for leaf in params.values())
    return [
        f"wrote {weights.FILE}, {SIDECAR}, {PROMISE} and {PAGE} to {out}: {size} "
        f"parameters, of which {summary['d']} were trained",
        f"privacy spent per {own.unit}: epsilon = {rounded_up(promise['epsilon'])} at "
        f"delta = {own.delta:g}; {PAGE} lists what is not protected",
    ]


def promise_of(summary, about, own: Guarantee) -> dict[str, Any]:
    """Returns the entries of privacy.json on the run itself."""
    plan, unprotected = own.plan, [*UNPROTECTED]
    shuffled = own.unit == "example" or plan.population > SHUFFLED_UP_TO
    if shuffled and plan.sampling != "everyone":
        all_in = plan._replace(sampling="everyone", sample=plan.population, cut=0.0)
        name = accounting.accountant_for(all_in)
        known = own._replace(plan=all_in, accountant=name).spent()
        unprotected.append(SHUFFLED.format(HIDDEN[own.unit], rounded_up(known)))
    if not plan.integers:  # whose sums are exact
        unprotected.append(LAST_BITS)
    if own.unit == "example":
        unprotected += OF_EXAMPLES
    if any(name.startswith("validation_") for name in summary):
        unprotected.append("the validation data")
    if begun := pathlib.Path(about.get("init_from", "")).name:
        first = f"what the first model, {begun}, was trained on"
        unprotected.append(f"{first}, which counts as public")
    threshold = ("threshold",) * (summary["bound"] == "adaptive")
    return {
        **{name: summary[name] for name in OF_SUMMARY},
        **own.facts,
        "unit": own.unit,
        "sampling": plan.sampling,
        "sampling_rate": plan.rate,
        "rounds": plan.steps // own.per_round,
        "released_beside": [*threshold],
        "cohort": plan.sample,
        "distribution": plan.noise,
        "bits": plan.integers.bits if plan.integers else None,
        "epsilon": own.spent(),
        "delta": own.delta,
        "noise_from": "a secret of the operating system",
        "public_data": own.public,
        "not_protected": unprotected,
    }


def public_of(about: Mapping[str, Any], *, private: bool) -> dict[str, Any]:
    """Returns what all may know of a model, of which `about` is params.json.

    If the training data are `private`, they may not have decided its vocabulary.
    """
    found: dict[str, Any] = {name: _last(about[name]) for name in NAMES}
    found |= {name: about[name] for name in PUBLIC if name in about}
    if inputs := {**about.get("inputs", {})}:
        if "vocabulary_file" in inputs:
            inputs["vocabulary_file"] = _last(inputs["vocabulary_file"])
        own = private and inputs.get("tokenizer", {}).get("found_in_training")
        words = "a vocabulary that does not depend on private data"
        _require(not own, words, "one found in the private training texts")
        found["inputs"] = inputs
    return found


def _last(path: str) -> str:
    """Returns a path's last part, behind what begins the name of its kind."""
    kinds = (pretrained.PREFIX, "synthetic/")
    start = "".join(one for one in kinds if path.startswith(one))
    return start + pathlib.Path(path).name


def page_of(
    promise: Mapping[str, Any], public: Mapping[str, Any], params: Arrays, trained: int
) -> str:
    """Returns MODEL.md of privacy.json, params.json, and how many numbers trained."""
    client, everyone = promise["unit"] == "client", promise["sampling"] == "everyone"
    adaptive, both = promise["bound"] == "adaptive", promise.get("all_runs")
    trust, others, use = TRUST.get(promise["noise"]), "", ""
    if trust is None:
        least, cohort = promise["smallest_cohort"], promise["cohort"]
        trust = SHARES.format(cohort, cohort - least) + MEMBERS * (not everyone)
    if both:
        total = "inf" if both["epsilon"] is None else rounded_up(both["epsilon"])
        others = OTHERS.format(both["runs"], total, both["delta"])
    if "inputs" in public and not plugins.named(public["model"]):
        language = public["model"] == "language_model"
        use = USE.format(GENERATE if language else PREDICT)
    words = {
        "d": sum(leaf.size for leaf in params.values()),
        "trained": trained,
        "by_call": "" if "inputs" in public else BY_CALL,
        "up": rounded_up(promise["epsilon"]),
        "of": " and all of its data" if client else " of a client",
        "instead": INSTEAD[promise["relation"]],
        "secret": "" if everyone else f"{HIDDEN[promise['unit']]}, or ",
        "public_data": PUBLIC_DATA * promise["public_data"],
        "site": ", a site with all its data" * promise["sums"].endswith("network"),
        "within": "" if client else " batches of a client's examples",
        "bounded": "client's message" if client else "example's gradient",
        "average": AVERAGE * adaptive,
        "sums": SUMS[promise["sums"]],
        "count": promise["rounds"] * promise["releases"],
        "beside": ", and further released numbers" * bool(promise["released_beside"]),
        "z": rounded_down(promise["noise_multiplier"]),
        "trust": trust,
        "others": others,
        "not_protected": "\n".join(f"- {line}" for line in promise["not_protected"]),
        "use": use,
    }
    return TEMPLATE.format_map({**public, **promise, **words})


def _require(holds: Any, expected: str, got: Any) -> None:
    if not holds:
        msg = f"Expected {expected}, got {got}."
        raise ValueError(msg)


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
