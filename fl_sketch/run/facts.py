"""What a folder has of a config's run: facts for its summary, and its model."""

from typing import Any

import jax
import numpy as np

from fl_sketch.config import build
from fl_sketch.config.build import source_of
from fl_sketch.core import pretrained, trees
from fl_sketch.core.protocols import Mechanism
from fl_sketch.models import huggingface
from fl_sketch.run.folder import About
from fl_sketch.run.setup import Setup
from fl_sketch.transforms import lora


def about(setup: Setup) -> About:
    """Returns the contents of a folder of the run of a setup."""
    own = setup.config.to_dict(), setup.identity, facts_of(setup), model_of(setup)
    return About(*own, setup.parts.frozen.tree if setup.parts else {})


def facts_of(setup: Setup) -> dict[str, Any]:
    """Returns the facts of a run before it is compiled, for its summary."""
    config, experiment = setup.config, setup.experiment
    traffic, prices, d = experiment.traffic, experiment.prices, experiment.d
    leaves = jax.tree.leaves_with_path(setup.parts.frozen.tree if setup.parts else ())
    parameters = (leaf for path, leaf in leaves if lora.SCALE not in str(path[-1]))
    frozen, sent = sum(leaf.size for leaf in parameters), sum(traffic.sent)
    passes = len(traffic.sent) + traffic.stateful
    return {
        "algorithm": config.algorithm,
        "dataset": config.data.name,
        "model": config.model.name,
        "d": d,
        **({"frozen": frozen} if frozen else {}),
        "sketch_size": sent,
        "compression": d / sent,
        "clients": config.data.clients,
        "data": experiment.placement,
        "devices": setup.mesh.size,
        "exchanges": len(traffic.sent),
        "download": "messages" if prices.followed else "model",
        "bytes_down_of_the_model": prices.model,
        "bytes_down_to_follow": prices.follow.missed + prices.follow.always,
        **({"bytes_down_once": prices.once} if prices.once else {}),
        "bytes_up_planned": traffic.bits_up and -(-traffic.bits_up // 8),
        "client_state_bytes": experiment.client_state_bytes,
        "kept_updates": "a chunk" if passes == 1 else "the whole cohort",
        "seed": config.seed,
        "metrics": list(setup.metrics),
        **_protection(setup),
    }


def _protection(setup: Setup) -> dict[str, Any]:
    """Returns the facts of the run's privacy, if messages are bounded."""
    if not (guarantee := setup.experiment.guarantee):
        return {}
    local = {"noise": "local", "smallest_cohort": 0, "bound": "clip"}
    local["threshold"] = setup.config.privacy.threshold
    guard = setup.experiment.noisy(setup.hyperparameters).mechanism
    return {**guarantee.facts, **(noise_facts(guard) or local)}


def noise_facts(mechanism: Mechanism | None) -> dict[str, Any]:
    """Returns the facts of a mechanism's noise and its bound."""
    if mechanism is None:
        return {}
    noise, bound, limit = mechanism.description
    return {
        "noise": noise,
        "smallest_cohort": mechanism.smallest,
        "bound": bound,
        "threshold": None if limit is None else float(limit),
    }


def model_of(setup: Setup) -> dict[str, Any]:
    """Returns the contents of params.json, to use the model elsewhere."""
    config, train, seen = setup.config, setup.splits.train.inputs, setup.seen
    names = setup.splits.class_names
    scaling = seen.scaling._asdict() if seen.scaling else {}
    return {
        "algorithm": config.algorithm,
        "dataset": config.data.name,
        "part": config.data.part,
        "public": config.data.public,
        "init_from": source_of(config)[1],
        "model": config.model.name,
        "size": config.model.size,
        "loss": config.model.loss,
        "options": build.options_of(config.model),
        **({"trains": config.client.trains} if setup.parts else {}),
        "outputs": seen.classes,
        **({"class_names": list(names)} if names else {}),
        "inputs": {
            "shape": list(train.shape[1:]),
            "dtype": str(train.dtype),
            "divided_by": 255 if train.dtype == np.uint8 else 1,
            **scaling,
            **(_tokens(setup) if train.dtype == np.int32 else {}),
        },
        **_pretrained(setup),
    }


def _tokens(setup: Setup) -> dict[str, Any]:
    """Returns which tokens a model takes, and how texts become these."""
    data, tokenizer = setup.config.data, setup.splits.tokenizer
    shape = setup.splits.train.inputs.shape[1:]
    size, model = data.vocabulary, setup.config.model.name
    if pretrained.named(model):
        size = pretrained.read(model).count("vocab_size")
    elif model != "transformer" and tokenizer:
        size = tokenizer.size
    if model == "language_model":
        size = setup.seen.classes  # outputs are inputs
    return {
        "length": shape[-1] if shape else data.length,
        "vocabulary": size,
        "vocabulary_file": data.vocabulary_file,
        **({"tokenizer": tokenizer.to_json()} if tokenizer else {}),
    }


def _pretrained(setup: Setup) -> dict[str, Any]:
    """Returns the entries on the folder of a pretrained model, if there is one.

    "config" describes the model. "fresh" names its arrays that begin anew, "left_out"
    those of the folder that it does not use.
    """
    name = setup.config.model.name
    if not pretrained.named(name):
        return {}
    folder = pretrained.read(name)
    found: dict[str, Any] = {"config": pretrained.described(folder)}
    if source_of(setup.config)[0] == "name":
        model, begun = setup.params, {**setup.initial.tree}
        if setup.parts:
            model, begun = setup.parts.model, begun | setup.parts.frozen.tree
        left = huggingface.find(folder, model, read=False).left_out
        found["fresh"] = [
            own for own, _ in trees.named_leaves(model) if own not in begun
        ]
        found["left_out"] = list(left)
    return {"pretrained": found}
