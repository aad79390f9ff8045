"""From the values of a config to the algorithm that they name, and its parts."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
from flax.errors import FlaxError
from ml_collections import ConfigDict

from fl_sketch import models
from fl_sketch.algorithms import catalog
from fl_sketch.algorithms.with_statistics import with_statistics
from fl_sketch.config import arguments
from fl_sketch.config.arguments import Parts
from fl_sketch.config.inputs import Seen
from fl_sketch.config.parse import Numbers, section
from fl_sketch.core import plugins, trees
from fl_sketch.core.protocols import Algorithm, Tree
from fl_sketch.core.tokens import PAD
from fl_sketch.data import inputs as seeing
from fl_sketch.data.examples import Examples
from fl_sketch.models.losses import KINDS
from fl_sketch.transforms.local import Loss

# Options of models, with the values that say nothing and that every model bears.
PLAIN = {
    "dropout": 0.0,
    "norm": "group",
    "width": 0,
    "kernels": "lecun_normal",
}


def require_trees(config: ConfigDict) -> None:
    """Raises for an algorithm that sketches vectors, which devices cannot share."""
    if config.compute.model_devices == 1:
        return
    own, name = catalog.method(config.algorithm), f"algorithm={config.algorithm}"
    if "query" in own.takes and config.sketch.query == "heaprix":
        name = "sketch.query=heaprix"
    elif not own.vectors:
        return
    msg = (
        f"config.compute: Expected model_devices=1 with {name}, which sketches vectors "
        f"of all parameters, got model_devices={config.compute.model_devices}."
    )
    raise ValueError(msg)


def loss_of(config: ConfigDict, seen: Seen, numbers: Numbers) -> models.Loss:
    """Returns the loss of a config's model: its start, its value and its metrics.

    Inputs are given as the data set has them. With a key, as in training, they are
    varied as the config asks for it.

    Raises:
      ValueError: in one line, for a model or a loss that does not exist.
    """
    bare = _bare_loss(config, seen.classes, numbers)

    def init(key, inputs):
        scaled = functools.partial(seeing.scaled, scaling=seen.scaling)
        return bare.init(key, jax.eval_shape(scaled, inputs))

    def value(params, inputs, targets, weights=None, key=None, still=False):
        if key is None:
            inputs = seeing.scaled(inputs, seen.scaling)
        else:
            key, other = jax.random.split(key)
            inputs = seeing.varied(other, inputs, seen.scaling, seen.augmentation)
        given = {"key": key} if bare.random else {}
        return bare.value(params, inputs, targets, weights, still=still, **given)

    def metrics(params, inputs, targets, weights=None):
        inputs = seeing.scaled(inputs, seen.scaling)
        return bare.metrics(params, inputs, targets, weights)

    random = bare.random or seen.augmentation is not None
    return models.Loss(init, value, metrics, bare.measured, random)


def _bare_loss(config: ConfigDict, classes: int, numbers: Numbers) -> models.Loss:
    """Returns the loss of inputs as the model sees them."""
    with section("model"):
        model = config.model
        vocabulary = config.data.vocabulary
        module = module_of(model.name, classes, model.size, model, vocabulary)
        padding = getattr(module, "padding", None)
        return models.supervised(
            module,
            model.loss,
            metrics=metrics_of(model),
            label_smoothing=numbers["model.label_smoothing"],
            weight_decay=numbers["model.weight_decay"],
            padding=PAD if model.name == "language_model" else padding,
            classes=classes,
            dtype=config.compute.dtype,
        )


def module_of(
    name: str, classes: int, size: str, options: Mapping[str, Any], vocabulary: int
) -> Any:
    """Returns the module of a model, of a file of one's own too.

    Args:
      options: values of the keys of `PLAIN`; those that say nothing are left out.
      vocabulary: the number of tokens, which a transformer reads.

    Raises:
      ValueError, TypeError: in one line, for a model that cannot be made.
    """
    given = {key: options[key] for key in PLAIN if key in options}
    options = {key: value for key, value in given.items() if value != PLAIN[key]}
    if name == "transformer":
        options["vocabulary"] = vocabulary
    try:
        return models.build(name, classes, size=size, **options)
    except Exception as error:
        if not plugins.named(name) or str(error).startswith("Expected"):
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        msg = f"Expected {name} to make a model for {classes} classes, got {text}."
        raise TypeError(msg) from error


def require_runs(name: str, loss: models.Loss, first: Examples) -> Tree:
    """Returns the shapes of a model's parameters, if it can be trained and tested.

    Args:
      name: the name of the model.
      first: the shapes of one example.

    Raises:
      ValueError: in one line, for a model that does not run on such an example.
    """
    key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
    with section("model"):
        try:
            params = jax.eval_shape(loss.init, key, first.inputs)
            jax.eval_shape(value_of(loss), params, first, *[key] * loss.random)
            jax.eval_shape(loss.metrics, params, *first)
        except (ValueError, TypeError) as error:
            raise ValueError(_complaint(name, first, error)) from None
        except Exception as error:  # whatever a module of one's own does
            raise ValueError(_complaint(name, first, error)) from error
    return params


def _complaint(name: str, first: Examples, error: Exception) -> str:
    """Returns a line on a model that does not run, with its error."""
    text = " ".join(str(error).split()).partition(" (https:")[0].rstrip(".") + "."
    if not plugins.named(name):
        return text
    shown = f"{first.inputs.dtype}{list(first.inputs.shape)}"
    hint = ""
    if isinstance(error, FlaxError):
        hint = " A module with dropout or BatchNorm takes `train`: docs/training.md."
    kind = type(error).__name__
    return f"Expected {name} to run on {shown}, got {kind}: {text}{hint}"


def options_of(model: ConfigDict) -> dict[str, Any]:
    """Returns what a `model` section says of options that its model has."""
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


def value_of(loss: models.Loss) -> Loss:
    """Returns what clients take the gradient of, with a key if `loss` wants one."""

    def value(params, batch):
        return loss.value(params, batch.inputs, batch.targets)

    def random_value(params, batch, key):
        return loss.value(params, batch.inputs, batch.targets, key=key)

    return random_value if loss.random else value


def algorithm_of(
    config: ConfigDict,
    loss: models.Loss,
    model: Tree,
    numbers: Numbers,
    noise_multiplier: float = 0.0,
) -> Algorithm:
    """Returns the algorithm that a config names, without a mechanism.

    Args:
      model: shapes of the model, or the number of its parameters.
      noise_multiplier: z, for algorithms that add noise by themselves.
    """
    value = value_of(loss)
    d, method = trees.size(trees.trained(model)), catalog.method(config.algorithm)
    require_trees(config)
    stateful = isinstance(model, trees.Stateful)
    if stateful and method.parameters_only:
        msg = (
            f"config.model: Expected a model without batch statistics with algorithm="
            f"{method.name}, got one with them: set norm=group for a resnet."
        )
        raise ValueError(msg)
    given = arguments.taken(method, Parts(config, d, numbers, noise_multiplier))
    algorithm = method.make(value, **given)
    if not isinstance(algorithm, Algorithm):
        msg = f"Expected algorithm={method.name} to return a protocols.Algorithm, got "
        raise TypeError(msg + f"{algorithm!r}.")
    return with_statistics(algorithm, model) if stateful else algorithm
