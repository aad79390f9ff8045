"""From a config to its model, with its first arrays, its loss and its algorithm."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.errors import FlaxError
from ml_collections import ConfigDict

from fl_sketch import models
from fl_sketch.algorithms import catalog
from fl_sketch.algorithms.with_statistics import with_statistics
from fl_sketch.config import arguments, privacy
from fl_sketch.config.inputs import Seen
from fl_sketch.config.parse import section
from fl_sketch.core import plugins, pretrained, trees, validate
from fl_sketch.core.constants import Constant
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.protocols import Algorithm, Tree
from fl_sketch.core.tokens import PAD
from fl_sketch.core.trees import Stateful
from fl_sketch.data import inputs as seeing
from fl_sketch.data.examples import Examples
from fl_sketch.engine.experiment import Hyperparameters
from fl_sketch.engine.mesh import placed
from fl_sketch.models import huggingface
from fl_sketch.models.losses import KINDS
from fl_sketch.models.params_io import Arrays, select
from fl_sketch.transforms.local import Loss
from fl_sketch.transforms.parts import Parts, split
from fl_sketch.transforms.trains import ALL
from fl_sketch.workdir import weights

# Options of models, with the values that say nothing and that every model bears.
PLAIN = {
    "dropout": 0.0,
    "norm": "group",
    "width": 0,
    "kernels": "lecun_normal",
}


def module_of(
    name: str, classes: int, size: str, options: Mapping[str, Any], vocabulary: int
) -> Any:
    """Returns the module of a model, of a file of one's own too.

    Of `options` only what differs from `PLAIN` is read.
    """
    known = {key: options.get(key, plain) for key, plain in PLAIN.items()}
    given = {key: value for key, value in known.items() if value != PLAIN[key]}
    if name == "transformer":
        given["vocabulary"] = vocabulary
    try:
        return models.build(name, classes, size=size, **given)
    except Exception as error:
        if not plugins.named(name) or str(error).startswith("Expected"):
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        msg = f"Expected {name} to make a model for {classes} classes, got {text}."
        raise TypeError(msg) from error


def options_of(model: ConfigDict) -> dict[str, Any]:
    """Returns the options of a `model` section that its model has."""
    # Of functions of one's own only what is set is known.
    known = () if plugins.named(model.name) else models.options_of(model.name)
    return {
        key: model[key]
        for key in PLAIN
        if model[key] != PLAIN[key] or (key in known and key != "width")
    }


def metrics_of(model: ConfigDict) -> tuple[str, ...]:
    """Returns the names of what a `model` section measures."""
    asked = tuple(name for name in model.metrics.split(",") if name)
    return asked or KINDS[model.loss].metrics


def loss_of(
    config: ConfigDict,
    seen: Seen,
    hyperparameters: Hyperparameters,
    parts: Parts | None = None,
) -> models.Loss:
    """Returns the loss of what trains of a config's model; without parts all of it.

    Inputs are given as the data set has them. With a key, as in training, they are
    varied as the config asks for it. Weight decay applies to what trains. If statistics
    do not change, the model runs in evaluation mode.
    """
    model, classes, vocabulary = config.model, seen.classes, config.data.vocabulary
    decay = hyperparameters["model.weight_decay"]
    with section("model"):
        module = module_of(model.name, classes, model.size, model, vocabulary)
        padding = getattr(module, "padding", None)
        bare = models.supervised(
            module,
            model.loss,
            metrics=metrics_of(model),
            label_smoothing=hyperparameters["model.label_smoothing"],
            weight_decay=0.0 if parts else decay,
            padding=PAD if model.name == "language_model" else padding,
            classes=classes,
            dtype=config.compute.dtype,
        )
    still = parts is not None and isinstance(parts.model, Stateful)

    def whole(params: Tree) -> Tree:
        return parts.whole(params) if parts else params

    def init(key, inputs):
        scaled = functools.partial(seeing.scaled, scaling=seen.scaling)
        params = bare.init(key, jax.eval_shape(scaled, inputs))
        return parts.start(params, apart(key, Purpose.FACTORS)) if parts else params

    def value(params, inputs, targets, weights=None, key=None):
        every = whole(params)
        if key is None:
            inputs = seeing.scaled(inputs, seen.scaling)
        else:
            key, other = jax.random.split(key)
            inputs = seeing.varied(other, inputs, seen.scaling, seen.augmentation)
        given = {"key": key} if bare.random else {}
        mean = bare.value(every, inputs, targets, weights, still=still, **given)
        mean = mean[0] if still else mean
        if not parts or validate.is_off(decay):
            return mean
        counts = True if weights is None else jnp.sum(weights) > 0
        norm = optax.tree.norm(params, squared=True)
        return mean + jnp.where(counts, decay / 2 * norm, 0)

    def metrics(params, inputs, targets, weights=None):
        inputs = seeing.scaled(inputs, seen.scaling)
        return bare.metrics(whole(params), inputs, targets, weights)

    random = bare.random or seen.augmentation is not None
    return models.Loss(init, value, metrics, bare.measured, random)


def value_of(loss: models.Loss) -> Loss:
    """Returns the clients' objective, with a key if `loss` takes one."""

    def value(params, batch, weights=None):
        return loss.value(params, batch.inputs, batch.targets, weights)

    def random_value(params, batch, key, weights=None):
        return loss.value(params, batch.inputs, batch.targets, weights, key)

    return random_value if loss.random else value


def require_runs(name: str, loss: models.Loss, first: Examples) -> Tree:
    """Returns the shapes of a model's parameters, if it runs on such an example."""
    key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
    with section("model"):
        try:
            params = jax.eval_shape(loss.init, key, first.inputs)
            jax.eval_shape(value_of(loss), params, first, *[key] * loss.random)
            jax.eval_shape(loss.metrics, params, *first)
        except Exception as error:  # whatever a module of one's own does
            text = " ".join(str(error).split()).partition(" (https:")[0]
            text = text.rstrip(".") + "."
            if plugins.named(name):
                kind = f"{first.inputs.dtype}{list(first.inputs.shape)}"
                text = f"{type(error).__name__}: {text}"
                text = f"Expected {name} to run on {kind}, got {text}"
                if isinstance(error, FlaxError):
                    text += " A module with dropout or BatchNorm takes `train`: "
                    text += "docs/training.md."
            raise ValueError(text) from None
    return params


def algorithm_of(
    config: ConfigDict,
    loss: models.Loss,
    model: Tree,
    hyperparameters: Hyperparameters,
    z: float,
) -> Algorithm:
    """Returns the algorithm of a config with its mechanism, and noise of multiplier z.

    `model` has the shapes of what trains of the model.
    """
    method, statistics = catalog.method(config.algorithm), isinstance(model, Stateful)
    heaprix = "query" in method.takes and config.sketch.query == "heaprix"
    if config.compute.model_devices > 1 and (heaprix or method.vectors):
        name = "sketch.query=heaprix" if heaprix else f"algorithm={method.name}"
        msg = (
            f"config.compute: Expected model_devices=1 with {name}, which sketches "
            "vectors of all parameters, got model_devices="
            f"{config.compute.model_devices}."
        )
        raise ValueError(msg)
    if statistics and method.parameters_only:
        msg = (
            f"config.model: Expected a model without batch statistics with algorithm="
            f"{method.name}, got one with them: set norm=group for a resnet."
        )
        raise ValueError(msg)
    d = trees.size(trees.trained(model))
    given = arguments.taken(method, config, d, hyperparameters, noise_multiplier=z)
    algorithm = method.make(value_of(loss), **given)
    if not isinstance(algorithm, Algorithm):
        msg = f"Expected algorithm={method.name} to return a protocols.Algorithm, got "
        raise TypeError(msg + f"{algorithm!r}.")
    algorithm = with_statistics(algorithm, model) if statistics else algorithm
    return privacy.guarded(config, algorithm, z, hyperparameters, model)


def parts_of(
    config: ConfigDict, model: Tree, arrays: Arrays, mesh: jax.sharding.Mesh | None
) -> Parts | None:
    """Returns the parts of a model that begins with `arrays`; None: all of it trains.

    With a mesh its devices have what does not train from here on.
    """
    if config.client.trains == ALL:
        return None
    with section("client"):
        parts = split(model, config.client.trains, arrays)
    if mesh:
        parts = parts._replace(frozen=Constant(placed(mesh, parts.frozen.tree)))
    return parts


def initial_of(config: ConfigDict, model: Tree) -> Arrays:
    """Returns the arrays that a config's model begins with; none: all are random.

    A private run may not begin with weights that have seen a data set of the name of
    the one which it protects.
    """
    key, source = source_of(config)
    fresh = [name for name in config.model.fresh.split(",") if name]
    if not source:
        return {}
    with section("model"):
        name = weights.name_of_data(config.data.name)
        if privacy.protection_of(config).private and name in _trained_on(config):
            msg = (
                "Expected weights of other data in a private run, got "
                f"{key}={source}, trained on {name!r}, and "
                f"data.name={config.data.name} without data.public=True."
            )
            raise ValueError(msg)
        if key == "init_from":
            return select(model, weights.read(source), fresh)
        found = huggingface.find(pretrained.read(source), model)
        return select(model, found.arrays, [*fresh, *found.fresh])


def source_of(config: ConfigDict) -> tuple[str, str]:
    """Returns the key that names what a config's model begins with, and its value.

    A run that begins with weights of another run takes none of the folder of a
    pretrained model. The value is empty if all arrays are random.
    """
    model = config.model
    if model.init_from or not pretrained.named(model.name):
        return "init_from", model.init_from
    return "name", model.name


def seen_by_model(config: ConfigDict) -> tuple[str, ...]:
    """Returns the names of the data sets that a config's trained model has seen."""
    own = () if config.data.public else (weights.name_of_data(config.data.name),)
    return tuple({*_trained_on(config), *own})


def _trained_on(config: ConfigDict) -> tuple[str, ...]:
    """Returns the names of the data sets that a config's first model has seen."""
    key, source = source_of(config)
    if source and key == "name":
        source = pretrained.weights(pretrained.read(source))
    return weights.trained_on(source) if source else ()
