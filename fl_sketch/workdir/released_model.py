"""What a release says of its model: the contents of params.json, and of the page.

Both are made of the entries that are named here, so that nothing else of the run's own
params.json, such as a path, leaves its folder.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

from fl_sketch.core import plugins, pretrained
from fl_sketch.models.losses import KINDS
from fl_sketch.models.params_io import Arrays
from fl_sketch.workdir import weights

ONE = {"classes": "class", "labels": "label", "numbers": "number"}
NAMES = ("algorithm", "dataset", "model")  # which may be paths
MADE_UP = "synthetic/"  # begins the name of a data set
PUBLIC = (
    *NAMES, "part", "size", "loss", "options", "outputs", "class_names", "round",
    "pretrained",
)  # fmt: skip
INPUTS = (
    "shape", "dtype", "divided_by", "mean", "deviation", "length", "vocabulary",
    "vocabulary_file", "tokenizer",
)  # fmt: skip


def public(
    about: Mapping[str, Any], params: Arrays, *, private: bool
) -> dict[str, Any]:
    """Returns what all may know of a model, of which `about` is params.json.

    Args:
      private: whether the training data are.

    Raises:
      ValueError: in one line, for a vocabulary that private texts decided.
    """
    found = {name: about[name] for name in PUBLIC if name in about}
    found |= {name: _last(about[name]) for name in NAMES}
    given = about.get("inputs", {})
    if inputs := {name: given[name] for name in INPUTS if name in given}:
        if "vocabulary_file" in inputs:
            inputs["vocabulary_file"] = _last(inputs["vocabulary_file"])
        tokenizer = inputs.get("tokenizer", {})
        if private and tokenizer.get("found_in_training"):
            msg = "Expected a vocabulary that does not depend on private data, got one "
            raise ValueError(msg + "found in the private training texts.")
        found["inputs"] = inputs
    return found | weights.arrays_of(params)


def facts(about: Mapping[str, Any], params: Arrays) -> dict[str, Any]:
    """Returns what the page says of the model, of which `about` is params.json."""
    outputs = _outputs(about, params)
    what = KINDS[about["loss"]].targets if "loss" in about else "numbers"
    own = plugins.named(about["model"]) or "size" not in about
    return {
        "name": _last(about["model"]),
        "by_call": "inputs" not in about,  # of `engine.simulate`
        "size": about.get("size", ""),
        "d": sum(leaf.size for leaf in params.values()),
        "outputs": f"{outputs} {what if outputs != 1 else ONE[what]}",
        "own": own,
        "float32": all(leaf.dtype == "float32" for leaf in params.values()),
        "layers": [] if own else _layers(about["model"], params),
        "by_class": about["model"] == "logistic",
        "scaled": "mean" in about.get("inputs", {}),
        "prompt": _prompt(about),
        "data": _last(about["dataset"]),
        "algorithm": _last(about["algorithm"]),
        "inputs": _inputs(about),
    }


def _prompt(about: Mapping[str, Any]) -> str | None:
    """Returns an example of a prompt for the model; None: it takes none."""
    if about["model"] == "language_model":
        return ""
    size = about.get("pretrained", {}).get("config", {}).get("vocab_size")
    return "It is" if size and size == about["outputs"] else None


def _last(path: str) -> str:
    """Returns a path's last part, behind what begins the name of its kind."""
    kinds = [one for one in (pretrained.PREFIX, MADE_UP) if path.startswith(one)]
    return "".join(kinds) + pathlib.Path(path).name


def _layers(model: str, params: Arrays) -> list[str]:
    """Returns the dense layers of a model that consists of them, in their order."""
    if model not in ("logistic", "mlp"):
        return []
    names = {name.partition("/")[0] for name in params}
    return sorted(names, key=lambda name: (len(name), name))


def _inputs(about: Mapping[str, Any]) -> str:
    """Returns what the model takes, in words."""
    given = about.get("inputs", {})
    if given.get("dtype") == "int32":
        words = _last(given["vocabulary_file"]) or "made from the training texts"
        if pretrained.named(about["model"]):
            words = "that of the pretrained model"
        part = "in `params.json`"
        if "tokenizer" not in given:
            part = "not part of this release"
        return (
            f"{given['length']} tokens per text, int32 numbers of a vocabulary that is "
            f"{part}: {words}"
        )
    text = "float32 numbers of the same scale as in the training data"
    if about["dataset"] == "digits":
        text = "float32 numbers from 0 to 1: scikit-learn's levels of grey, 0 to 16, "
        text += "divided by 16"
    elif given.get("dtype") == "uint8":
        text = "pixels as bytes from 0 to 255, which are divided by 255"
    if "mean" in given:
        mean, deviation = (",".join(map(str, given[k])) for k in ("mean", "deviation"))
        text += f"; then subtract {mean} and divide by {deviation}, per channel"
    return text


def _outputs(about: Mapping[str, Any], params: Arrays) -> int:
    """Returns how many numbers the model predicts."""
    last = [name for name in params if re.fullmatch(r"dense\d*/bias", name)]
    return params[max(last)].size if last else about.get("outputs", 0)
