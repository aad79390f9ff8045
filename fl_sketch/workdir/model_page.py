"""The page on a published model: what is promised, to whom, and what is not."""

import math
from collections.abc import Mapping
from typing import Any

PROMISE, PAGE = "privacy.json", "MODEL.md"
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
    with_it = " and safetensors" * (form == "safetensors")
    return f"""# {model["name"]}, trained privately on {model["data"]}

A model `{model["name"]}` of {model["d"]} parameters and {model["outputs"]}, \
trained on the data set `{model["data"]}` by the federated algorithm \
`{model["algorithm"]}` in {promise["rounds"]} rounds.

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


def _five_lines(model: Mapping[str, Any], form: str) -> str:
    first = "from safetensors.numpy import load_file"
    loaded = f'load_file("params.{form}")'
    if form == "npz":
        first, loaded = "import numpy as np", f'dict(np.load("params.{form}"))'
    if not model["build"]:
        return f"{first}\nparams = {loaded}"
    return f"""{first}
from flax.traverse_util import unflatten_dict
from fl_sketch import models
params = unflatten_dict({loaded}, sep="/")
logits = models.build({model["build"]}).apply({{"params": params}}, inputs)"""
