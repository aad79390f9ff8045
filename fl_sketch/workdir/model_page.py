"""The page on a published model: its privacy guarantee, its limits, how to load it."""

import math
from collections.abc import Mapping
from typing import Any

from fl_sketch.privacy.guarantee import rounded_down
from fl_sketch.privacy.lattice import KINDS
from fl_sketch.workdir.origin import SIDECAR

PROMISE, PAGE = "privacy.json", "MODEL.md"
LOADED = {  # code that reads `params`, by the form of their file
    "npz": ('with np.load("params.npz") as arrays:', "    params = dict(arrays)"),
    "safetensors": (
        'raw, params = Path("params.safetensors").read_bytes(), {}',
        'begin = 8 + int.from_bytes(raw[:8], "little")',
        "for name, array in json.loads(raw[8:begin]).items():",
        '    if name != "__metadata__":',
        '        first, end = (begin + at for at in array["data_offsets"])',
        '        numbers = np.frombuffer(raw[first:end], "<f4")',
        '        params[name] = numbers.reshape(array["shape"])',
    ),
    "others": (
        "from safetensors.numpy import load_file",
        'params = load_file("params.safetensors")',
    ),
}
SAYS = {  # what the file on a model says, by whether a call of Python trained it
    False: "says what the model takes, and the shapes of its outputs and arrays",
    True: "has the shapes of the arrays",
}
EXPLAINED = 10  # an epsilon up to which e^epsilon is a number to be read
INSTEAD = {  # what somebody's data are compared with, by relation
    "add_remove": "had not taken part",
    "replace_one": "had been any other",
}
HIDDEN = {  # what the accountant assumes to be secret besides the noise, by unit
    "client": "which clients took part in which round",
    "example": "which examples were in which batch",
}
_SHARES = (
    "Every client added a share of the noise. The guarantee covers the sums, and "
    "needs secure aggregation, which reveals no single message."
)
TRUST = {
    "central": "The server saw every message before it added the noise, so it must be "
    "trusted. The guarantee covers the models of all rounds, and not the messages.",
    **dict.fromkeys(KINDS, _SHARES),
    "one's own": "The mechanism is not one of fl_sketch: its code decides who adds the "
    "noise, and how long a message may be.",
    "local": "Every client added the noise itself, here in a simulation, whose program "
    "must be trusted. With clients on machines of their own no other party must be.",
}

SUMS = {  # who saw the messages of clients
    "one program": "simulated in one program, which saw every client's message",
    "network": "of messages that sites sent to a coordinator, which saw each of them",
    "masked network": "of integers that sites sent under masks. The coordinator saw "
    "only sums, if it and who made the sites' kits followed the protocol",
}
ADDED = {  # by whom noise was added
    "central": "central: added to the sum by who formed it",
    **dict.fromkeys(KINDS, "distributed: a share by every client, of integers"),
    "one's own": "that of a mechanism of the run's own",
    "local": "local: added by every client",
}
NEIGHBOURS = {
    "add_remove": "with or without one {unit} (add_remove)",
    "replace_one": "one {unit} replaced by any other (replace_one)",
}


def written(promise: Mapping[str, Any], model: Mapping[str, Any], form: str) -> str:
    """Returns the text of the page; arguments are those of `release.Release`."""
    return f"""{_described(promise, model)}

## Privacy guarantee

{_promised(promise)}

{_facts(promise)}

{_others(promise)}{_how(promise)} All numbers of the guarantee are in `{PROMISE}`.

## What is not protected

{chr(10).join(f"- {line}" for line in promise["not_protected"])}

## How to load it

`{SIDECAR}` {SAYS[model["by_call"]]}. {_said(model)}

```python
{_by_numpy(model, form)}
```
{_by_fl_sketch(model)}"""


def _described(promise: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Returns the title, and what the model is, as far as the run knows it."""
    still = model["d"] - model["trained"]
    of_them = f" ({still} of them as they were before)" * bool(still)
    if model["by_call"]:
        return f"""# A model trained privately

A model of {model["d"]} parameters{of_them}, trained by a call of `engine.simulate` in \
{promise["rounds"]} rounds. Such a call does not record the model's code, its inputs, \
its outputs and the name of the data set: write here what users need of them."""
    return f"""# {model["name"]}, trained privately on {model["data"]}

A model `{model["name"]}` of {model["d"]} parameters{of_them} and {model["outputs"]}\
{", of code that is not part of this release" * model["own"]}, trained on the data set \
`{model["data"]}` by the federated algorithm `{model["algorithm"]}` in \
{promise["rounds"]} rounds.

Inputs: {model["inputs"]}."""


def _promised(promise: Mapping[str, Any]) -> str:
    """Returns a guarantee as one sentence."""
    unit, epsilon, delta = (
        promise["unit"],
        _up(promise["epsilon"]),
        promise["delta"],
    )
    times = f"e^{epsilon}"
    if promise["epsilon"] <= EXPLAINED:
        times += f" (about {math.exp(promise['epsilon']):.4g})"
    of = " and all of its data" if unit == "client" else " of a client"
    drawn = f"{HIDDEN[unit]}, or " * (promise["sampling"] != "everyone")
    public = " The config calls these data public, so they may need no protection."
    return (
        f"The parameters are ({epsilon}, {delta!r})-differentially private per "
        f"{unit}. For every {unit}, any result computed from them has a probability of "
        f"at most {times} times its probability if this {unit}{of} "
        f"{INSTEAD[promise['relation']]}, plus {delta!r}, and the other way round. "
        f"This holds whatever an observer knows about all other data, if the observer "
        f"does not learn {drawn}the noise.{public * promise['public_data']}"
    )


def _facts(promise: Mapping[str, Any]) -> str:
    """Returns a list of what the guarantee is about and how sums were formed."""
    unit, rate = promise["unit"], promise["sampling_rate"]
    site = ", which is a site with all its data" * promise["sums"].endswith("network")
    within = " batches of a client's examples" * (unit == "example")
    facts = {
        "Unit": f"{unit}{site}, at delta = {promise['delta']!r}",
        "Neighbours": NEIGHBOURS[promise["relation"]].format(unit=unit),
        "Sampling": f"{promise['sampling']}{within}, rate {rate:.4g}",
        "Sums": SUMS[promise["sums"]],
        "Noise": ADDED[promise["noise"]],
        "Source of noise": f"{promise['noise_from']}, not the seed of the config",
    }
    return "\n".join(f"- {name}: {words}." for name, words in facts.items())


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
        f"The same data were used for other runs. All {both['runs']} counted runs "
        f"together spent (epsilon, delta) = ({epsilon}, {both['delta']!r}). This total "
        "is a guarantee only if these runs were planned in advance. Runs in other "
        "folders are not in it.\n\n"
    )


def _how(promise: Mapping[str, Any]) -> str:
    what = "example's gradient" if promise["unit"] == "example" else "client's message"
    sums = promise["rounds"] * promise["releases_a_round"]
    noise = promise["distribution"].replace("_gaussian", " Gaussian")
    noise = noise[:1].upper() + noise[1:]
    more = " and to further released numbers" * bool(promise["released_beside"])
    bound = f"{promise['bound']}, {promise['threshold']}"
    if promise["bound"] == "adaptive":
        bound += " on average in the rounds of the last row of metrics.csv"
    if promise["bound"] == "one's own":
        bound = "by the mechanism of the run"
    trust = TRUST[promise["noise"]]
    if trust == _SHARES:
        trust += _towards(promise)
    return (
        f"Every {what} was bounded ({bound}). {noise} noise was added to their "
        f"sums{more}. The accountant `{promise['accountant']}` counted {sums} such "
        f"sums, each with noise of a standard deviation of at least "
        f"{rounded_down(promise['noise_multiplier'])} times the bound. Noise, cohorts "
        "and batches came from a secret of the operating system; sketches and random "
        f"initial weights came from the seed. {trust}"
    )


def _towards(promise: Mapping[str, Any]) -> str:
    """Returns towards whom a guarantee holds for which clients add the noise."""
    known = promise["cohort"] - promise["smallest_cohort"]
    text = " It holds towards who knows no client's share, and so not towards a client."
    if known:
        text = (
            f" Of the {promise['cohort']:g} clients of a round, {known:g} may have "
            f"dropped out or shown an observer their shares, as a client knows its own."
        )
    if promise["sampling"] != "everyone":
        text += " It does not hold towards who knows who took part, as a server does, "
        text += "and in masked sums every client of the round."
    return text


def _said(model: Mapping[str, Any]) -> str:
    """Returns what the code by numpy does, in words."""
    if not model["layers"]:
        return "By numpy alone, the arrays are"
    return "By numpy alone, for a batch of `inputs` as the data set has them:"


def _by_numpy(model: Mapping[str, Any], form: str) -> str:
    """Returns code that loads the arrays, and applies a model of dense layers."""
    about = f'about = json.loads(Path("{SIDECAR}").read_text())'
    plain = form == "npz" or model["float32"]
    lines = ["import json", "from pathlib import Path", "import numpy as np", about]
    lines += LOADED[form if plain else "others"]
    if not model["layers"]:
        return "\n".join(lines)
    lines += ['given = about["inputs"]']
    lines += ['x = np.asarray(inputs, np.float32) / given["divided_by"]']
    if model["scaled"]:
        lines += ['mean, deviation = given["mean"], given["deviation"]']
        lines += ["x = (x - np.float32(mean)) / np.float32(deviation)"]
    lines += ["x = x.reshape(len(x), -1)"]
    *hidden, last = (_dense(name, model["by_class"]) for name in model["layers"])
    lines += [f"x = np.maximum({layer}, 0)" for layer in hidden]
    return "\n".join([*lines, f"logits = {last}"])


def _dense(name: str, by_class: bool) -> str:
    """Returns the code of a layer of that name."""
    return f'x @ params["{name}/kernel"]{".T" * by_class} + params["{name}/bias"]'


def _by_fl_sketch(model: Mapping[str, Any]) -> str:
    """Returns how to use a model of the project's own."""
    if model["own"]:
        return ""
    use = "predictions = run.predict(model, inputs)"
    if model["prompt"] is not None:
        use = f'text = run.generate(model, "{model["prompt"]}", tokens=200)'
    return f"""
With fl_sketch installed:

```python
from fl_sketch import run
model = run.load_trained(".")
{use}
```
"""
