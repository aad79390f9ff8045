"""Rounds of a model of one's own, timed against those of the same model of `models`.

  models      the model of `fl_sketch.models` by the engine: the unit
  linen       the same layers as a module of Flax Linen, by the engine
  nnx         as a module of Flax NNX, by the engine
  loop        that of Flax Linen without the engine: one jitted step after the other

All have the same data, and start from the same kind of numbers.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from fl_sketch.data.examples import normalise
from fl_sketch.experiments.bench import engine_forms
from fl_sketch.experiments.bench.engine_forms import Setting
from fl_sketch.experiments.bench.timing import Timed, interleaved, ratio
from fl_sketch.experiments.bench.workloads import CLASSES, WORKLOADS
from fl_sketch.experiments.measurements import Column, Table

MODELS = ("W1", "W2")  # workloads with a model that is here too
FORMS = ("models", "linen", "nnx", "loop")


class Row(NamedTuple):
    """The times of a round; seconds are medians over rounds.

    Attributes:
      ratio: the seconds over those of `models`, the median of rounds timed in turn.
    """

    workload: Annotated[str, Column("8")]
    form: Annotated[str, Column("10")]
    cohort: int
    devices: int
    seconds: Annotated[float, Column("8.4f", "s/round")]
    ratio: Annotated[float | None, Column("8.3f", "/ models")]


TABLE = Table.of(Row)


def run(
    models: Sequence[str], model_forms: Sequence[str], *, rounds: int, cohort: int = 0
) -> Iterator[Row]:
    """Returns the rows of the table, timed while they are read.

    Args:
      models: the workloads, some of `MODELS`.
      model_forms: some of `FORMS`.
      rounds: the number of timed rounds.
      cohort: the clients of a round; 0: those of the workload.
    """
    for workload in models:
        work = WORKLOADS[workload]
        work = work._replace(cohort=cohort or work.cohort)
        setting = engine_forms.prepare(work)
        timed = {name: _timed(setting, name) for name in model_forms}
        samples = interleaved(timed, rounds=rounds, budget_seconds=math.inf)
        for name, taken in samples.items():
            unit = samples.get("models")
            yield Row(
                workload=workload,
                form=name,
                cohort=work.cohort,
                devices=setting.mesh.size,
                seconds=statistics.median(taken),
                ratio=ratio(taken, unit) if unit else None,
            )


def _timed(setting: Setting, name: str) -> Timed:
    if name == "models":
        return engine_forms.form(setting, "engine").timed
    make = _of_nnx if name == "nnx" else _of_linen
    value, params = make(setting.work.model, setting.work.image)
    if name == "loop":
        return _by_steps(setting, value, params)
    return engine_forms.form(
        setting._replace(value=value, params=params), "engine"
    ).timed


def _by_steps(setting: Setting, value: Any, params: Any) -> Timed:
    """Returns rounds of one jitted step after the other, in a loop of Python."""
    work, (inputs, targets) = setting.work, jax.device_get(setting.data)
    plan = jax.device_get(setting.plan)

    @jax.jit
    def step(params, batch):
        slopes = jax.grad(value)(params, batch)
        return jax.tree.map(lambda x, slope: x - work.rate * slope, params, slopes)

    def one_round(params):
        total = jax.tree.map(jnp.zeros_like, params)
        for batches in plan:
            model = params
            for rows in batches:
                model = step(model, (inputs[rows], targets[rows]))
            total = jax.tree.map(jnp.add, total, model)
        mean = jax.tree.map(lambda leaf: leaf / work.cohort, total)
        return jax.block_until_ready(mean)

    return Timed(lambda: params, one_round)


def _entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    each = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return each.mean()


class LinenNet(nn.Module):
    """The layers of `models.cnn` or `models.lenet`."""

    name_of: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits of images."""
        if self.name_of == "cnn":
            x = nn.relu(nn.Conv(32, (3, 3), padding="VALID")(x))
            x = nn.relu(nn.Conv(64, (3, 3), padding="VALID")(x))
            x = nn.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
            return nn.Dense(CLASSES)(nn.relu(nn.Dense(128)(x)))
        x = nn.max_pool(nn.relu(nn.Conv(6, (5, 5))(x)), (2, 2), (2, 2))
        x = nn.relu(nn.Conv(16, (5, 5), padding="VALID")(x))
        x = nn.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
        return nn.Dense(CLASSES)(nn.relu(nn.Dense(84)(nn.relu(nn.Dense(120)(x)))))


class NnxNet(nnx.Module):
    """The same."""

    def __init__(self, model: str, rngs: nnx.Rngs):
        """Takes "cnn" or "lenet"."""
        self.is_cnn, valid = model == "cnn", {"padding": "VALID", "rngs": rngs}
        if self.is_cnn:
            self.conv1 = nnx.Conv(3, 32, (3, 3), **valid)
            self.conv2 = nnx.Conv(32, 64, (3, 3), **valid)
            sizes = (12544, 128, CLASSES)
        else:
            self.conv1 = nnx.Conv(1, 6, (5, 5), rngs=rngs)
            self.conv2 = nnx.Conv(6, 16, (5, 5), **valid)
            sizes = (400, 120, 84, CLASSES)
        pairs = zip(sizes, sizes[1:], strict=False)
        self.dense = nnx.List([nnx.Linear(*pair, rngs=rngs) for pair in pairs])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits of images."""
        x = nnx.relu(self.conv1(x))
        x = x if self.is_cnn else nnx.max_pool(x, (2, 2), (2, 2))
        x = nnx.max_pool(nnx.relu(self.conv2(x)), (2, 2), (2, 2))
        x = x.reshape(len(x), -1)
        for layer in self.dense[:-1]:
            x = nnx.relu(layer(x))
        return self.dense[-1](x)


def _of_linen(model: str, image: tuple[int, ...]) -> tuple[Any, Any]:
    net = LinenNet(model)
    params = net.init(jax.random.key(0), jnp.zeros((1, *image)))

    def value(params, batch):
        logits: Any = net.apply(params, normalise(batch[0]))
        return _entropy(logits, batch[1])

    return value, params


def _of_nnx(model: str, image: tuple[int, ...]) -> tuple[Any, Any]:
    del image
    graph, params = nnx.split(NnxNet(model, nnx.Rngs(0)))

    def value(params, batch):
        return _entropy(nnx.merge(graph, params)(normalise(batch[0])), batch[1])

    return value, params
