"""The same round in jax: by the engine as its users have it, and by hand.

  engine       a call of the engine's round
  engine_many  rounds of which one call plays `MANY`, as the calls of a run do
  engine_one   as engine, on one device: a CPU's cores share each matrix product
  plain        `engine_forms.plain_round`

Images stay bytes on the devices, as those of a run do. See `serving` for how the
program is used.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others share the GPU

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch import engine, models
from fl_sketch.core import free_memory
from fl_sketch.data.examples import aligned, normalise
from fl_sketch.experiments.bench import engine_forms
from fl_sketch.experiments.bench.peers import inputs, serving
from fl_sketch.experiments.bench.peers.serving import Player
from fl_sketch.experiments.bench.workloads import Workload
from fl_sketch.models.huggingface import bert

FORMS = ("engine", "engine_many", "engine_one", "plain")
MANY = 10


class Setting:
    """What all forms share: a workload on the devices.

    Attributes:
      data: images and targets.
      value: the loss, `(params, (inputs, targets)) -> scalar`.
      chunk: the number of clients that a device works on at a time.
    """

    data: Any
    value: Callable
    chunk: int

    def __init__(self, work: Workload, chunk: int = 0):
        """Puts examples and initial weights on all devices; 0: chunks by platform."""
        self.work, self.mesh = work, engine.mesh_over(jax.devices())
        self.same = NamedSharding(self.mesh, P())
        loss = models.classification(model_of(work))
        self.value = lambda params, batch: loss.value(
            params, normalise(batch[0]), batch[1]
        )
        examples, targets = inputs.drawn_examples(work)
        self.data = self.put((aligned(examples), targets))
        sizes = work, self.value, self.first_params(), self.data
        self.chunk = chunk or engine_forms.chunk_of(self.mesh, *sizes)

    def put(self, tree: Any) -> Any:
        """Returns a tree on all devices."""
        return jax.device_put(tree, self.same)

    def first_params(self) -> Any:
        """Returns the initial weights, in new memory."""
        flat = inputs.initial_weights(self.work)
        return self.put(flax.traverse_util.unflatten_dict(flat, sep="/"))

    def compiled(self, function: Callable, *arguments: Any) -> Any:
        """Returns a program whose first argument is donated."""
        lowered = jax.jit(function, donate_argnums=0).lower(*arguments)
        program = lowered.compile(engine.compiler_options(self.mesh))
        free_memory.give_back()
        return program


def model_of(work: Workload) -> nn.Module:
    """Returns the model of a workload."""
    if work.model == "bert":
        return bert.Bert(
            work.classes,
            work.vocabulary,
            work.width,
            work.depth,
            inputs.BERT_HEADS,
            inputs.WIDENING * work.width,
            positions=work.image[0],
            types=2,
            activation="gelu",
            epsilon=inputs.EPSILON,
            pad=0,
            pool="mean",
            dropout=0.0,
        )
    sizes = {"width": work.width, "depth": work.depth}
    options: dict[str, Any] = {name: size for name, size in sizes.items() if size}
    return models.build(work.model, work.classes, **options)


class Rounds:
    """Rounds that carry a state and are compiled when the first is played.

    Attributes:
      function: `(state, key, data, plan, count) -> (state, report)`, not jitted.
      state: the state, which is donated.
    """

    function: Callable
    state: Any

    def __init__(self, setting: Setting, function: Callable, state: Any):
        """Takes the parts; nothing is compiled yet."""
        self.setting, self.function, self.state = setting, function, state
        self._key, self._program = setting.put(jax.random.key(0)), None

    def play(self, placed: tuple[Any, Any]) -> None:
        """Plays rounds, until all devices are done."""
        given = self._key, self.setting.data, *placed
        if self._program is None:
            self._program = self.setting.compiled(self.function, self.state, *given)
        self.state, _ = jax.block_until_ready(self._program(self.state, *given))

    def player(self, params: Callable[[Any], Any], at_once: int = 1) -> Player:
        """Returns what is served; `params` takes the model out of a state."""

        def weights():
            flat = flax.traverse_util.flatten_dict(params(self.state), sep="/")
            return {path: np.array(weight) for path, weight in flat.items()}

        def place(plans):
            most = max(at_once, len(plans))
            filled = [*plans, *plans[:1] * (most - len(plans))]
            plan = np.stack(filled) if at_once > 1 else filled[0]
            placed = self.setting.put((plan, np.int32(len(plans))))
            return jax.block_until_ready(placed)

        device = jax.devices()[0]
        name = f"{device.platform} {device.device_kind}"
        return Player(
            place, self.play, weights, name, _device_megabytes, at_once=at_once
        )


def _device_megabytes() -> float | None:
    stats = jax.devices()[0].memory_stats() or {}
    peak = stats.get("peak_bytes_in_use")
    return None if peak is None else peak / 1e6


def by_engine(setting: Setting, at_once: int) -> Player:
    """Returns the engine's rounds; those of a call are played in one program."""
    cohort = setting.work.cohort
    algorithm = engine_forms.averaging(setting.work, setting.value)
    one_round = engine.make_round(algorithm, _fetch, setting.mesh, chunk=setting.chunk)
    everyone = engine.everyone(cohort)

    def one(state, key, data, plan, count):
        del count
        return one_round(state, key, everyone(key), data, plan)

    def many(state, key, data, plans, count):
        first = state.server.round

        def of_number(state, key, cohort, data):
            plan = plans[state.server.round - first]
            return one_round(state, key, cohort, data, plan)

        return engine.run_rounds(
            of_number, everyone, state, key, data, count, most=at_once
        )

    state = engine.initial_state(algorithm, setting.first_params(), cohort)
    rounds = Rounds(setting, many if at_once > 1 else one, setting.put(state))
    return rounds.player(lambda state: state.server.params, at_once)


def _fetch(data, client, plan, key):
    del client, key
    return jax.tree.map(lambda leaf: leaf[plan], data)


def by_hand(setting: Setting) -> Player:
    """Returns rounds as a plain program of jax has them."""
    work, mesh, chunk = setting.work, setting.mesh, setting.chunk
    one_round = engine_forms.plain_round(setting.value, mesh, work, chunk=chunk)
    extra = -work.cohort % (mesh.size * chunk)
    weights = jnp.pad(jnp.ones(work.cohort), (0, extra))

    def function(params, key, data, plan, count):
        del key, count
        plan = jnp.pad(plan, ((0, extra), (0, 0), (0, 0)), mode="edge")
        return one_round(params, data, plan, weights), ()

    return Rounds(setting, function, setting.first_params()).player(lambda p: p)


def main(argv: Sequence[str] | None = None) -> None:
    """Serves the rounds that the arguments ask for."""
    given = serving.arguments(argv, forms=FORMS, add=("chunk", "devices"))
    one = given.form == "engine_one"
    devices = 1 if one else given.devices or engine.cores()
    jax.config.update("jax_num_cpu_devices", devices)
    if one and jax.default_backend() != "cpu":
        sys.exit("engine_one is a form for CPUs")
    if not given.tf32:
        jax.config.update("jax_default_matmul_precision", "float32")
    work = serving.workload(given)

    def build():
        setting = Setting(work, given.chunk)
        if given.form == "plain":
            return by_hand(setting)
        return by_engine(setting, MANY if given.form == "engine_many" else 1)

    serving.serve(work, f"jax {jax.__version__}", build)


if __name__ == "__main__":
    main()
