"""The page on a published model: what is promised, to whom, and what is not."""

import math
from collections.abc import Mapping
from typing import Any

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
EXPLAINED = 10  # an epsilon up to which e^epsilon is a number to be read
INSTEAD = {  # what somebody's data are compared with, by relation
    "add_remove": "had never been there",
    "replace_one": "had been anything else",
}
TRUST = {
    "central": "The server saw every message before noise was added, and is trusted "
    "with that; the promise is about what it publishes.",
    "distributed": "Every client added its share of the noise, so the promise is about "
    "the sums, and needs an aggregation that shows nobody a single message; who took "
    "part knows an own share and sees that much less noise.",
    "one's own": "Who adds the noise is decided by the mechanism of this run.",
    "local": "Every client added the noise by itself, so nobody else is trusted.",
}


def written(promise: Mapping[str, Any], model: Mapping[str, Any], form: str) -> str:
    """Returns the text of the page; arguments are those of `release.Release`."""
    still = model["d"] - model["trained"]
    of_them = f" ({still} of them as they were before)" * bool(still)
    return f"""# {model["name"]}, trained privately on {model["data"]}

A model `{model["name"]}` of {model["d"]} parameters{of_them} and {model["outputs"]}, \
trained on the data set `{model["data"]}` by the federated algorithm \
`{model["algorithm"]}` in {promise["rounds"]} rounds.

Inputs: {model["inputs"]}.

## What is promised, and to whom

{_promised(promise)}

{_others(promise)}{_how(promise)} All numbers of the promise are in `{PROMISE}`.

## What is not protected

{chr(10).join(f"- {line}" for line in promise["not_protected"])}

## How to load it

`{SIDECAR}` says what the model takes, what its outputs are, and what the axes of its
arrays are. {_said(model)}

```python
{_by_numpy(model, form)}
```
{_by_fl_sketch(model)}"""


def _promised(promise: Mapping[str, Any]) -> str:
    """Returns a promise as one sentence."""
    unit, epsilon, delta = (
        promise["unit"],
        _up(promise["epsilon"]),
        promise["delta"],
    )
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
    beside = " and numbers beside" * bool(promise["released_beside"])
    return (
        f"It was kept by bounding every {what} ({promise['bound']}, "
        f"{promise['threshold']}), adding Gaussian noise to sums of them{beside}, "
        "which is worth "
        f"{promise['noise_multiplier']:.4g} times that bound on one sum, and "
        f"counting {sums} such sums (accountant `{promise['accountant']}`), all with "
        f"randomness of the operating system. {TRUST[promise['noise']]}"
    )


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
    if model["writes"]:
        use = 'text = run.generate(model, "", tokens=200)'
    return f"""
With fl_sketch installed:

```python
from fl_sketch import run
model = run.load_trained(".")
{use}
```
"""
