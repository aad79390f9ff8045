"""Whole rounds of a workload in jax: by hand, and by the engine in several forms.

  plain          FedAvg by hand, see `plain_round`: the unit
  engine         the same by the engine
  count_sketch   the engine with messages of one row: of d/20 entries; W5: d/100
  heaprix        five rows, then exact values of heavy coordinates: two exchanges
  client_state   count_sketch with a control variate of every client (FedSKETCHGATE)
  private        count_sketch, clipped, with every client's share of Gaussian noise
  integers       the same on integers of 16 bits, with Skellam noise

`benchmarks.peers` starts each as a program of its own, see `rounds`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.rounds import (
    CLASSES,
    Player,
    Weights,
    Workload,
    drawn_examples,
    drawn_plan,
    serve,
)
from fl_sketch import channels, engine, fast, models, sketch
from fl_sketch.core import chacha
from fl_sketch.core.protocols import Algorithm
from fl_sketch.data.examples import aligned, normalise
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.transforms import local

FORMS = (
    "plain", "engine", "count_sketch", "heaprix", "client_state", "private", "integers"
)  # fmt: skip
PRIVATE = ("private", "integers")


class Setting(NamedTuple):
    """What all forms of one workload share.

    Attributes:
      chunk: the number of clients that a device works on at a time.
      data: images and targets, on every device.
      value: the loss, `(params, (bytes, targets)) -> scalar`.
    """

    work: Workload
    mesh: jax.sharding.Mesh
    chunk: int
    data: tuple[jax.Array, jax.Array]
    params: Any
    value: Callable

    def put(self, tree: Any) -> Any:
        """Returns a tree on all devices."""
        return jax.device_put(tree, NamedSharding(self.mesh, P()))


def loss_of(work: Workload) -> models.Loss:
    """Returns the loss of a workload's model."""
    return models.classification(models.build(work.model, CLASSES))


def initial_weights(work: Workload) -> Weights:
    """Returns a model's first parameters by their paths."""
    shape = jax.ShapeDtypeStruct((1, *work.image), jnp.float32)
    params = loss_of(work).init(jax.random.key(0), shape)
    return flax.traverse_util.flatten_dict(jax.device_get(params), sep="/")


def prepare(
    work: Workload,
    weights: Weights,
    *,
    devices: int = 0,
    chunk: int = 0,
) -> Setting:
    """Returns a workload on the devices.

    Args:
      devices: the number of devices; 0: all.
      chunk: the clients at a time on a device; 0: by platform.
    """
    mesh, loss = engine.mesh_over(jax.devices()[: devices or None]), loss_of(work)

    def value(params, batch):
        inputs, targets = batch
        return loss.value(params, normalise(inputs), targets)

    own = initial_weights(work)
    weights = {  # another checkout may store a kernel the other way round
        path: leaf if leaf.shape == own[path].shape else leaf.T
        for path, leaf in weights.items()
    }
    params = flax.traverse_util.unflatten_dict(weights, sep="/")
    images, targets = drawn_examples(work)
    setting = Setting(work, mesh, chunk, (aligned(images), targets), params, value)
    data, params = setting.put((setting.data, params))
    setting = setting._replace(data=data, params=params)
    if not chunk:
        steps = 1 if work.full_batch else work.steps
        shapes = jax.eval_shape(lambda: jax.tree.map(lambda x: x[: work.batch], data))
        batches = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((steps, *x.shape), x.dtype), shapes
        )
        traffic = engine.measure_traffic(algorithm(setting, "engine"), params, batches)
        chunk = engine.chunk_size(mesh, work.cohort, traffic.working)
    return setting._replace(chunk=chunk)


def player(
    work: Workload, weights: Weights, form: str, *, devices: int = 0, chunk: int = 0
) -> Player:
    """Returns compiled rounds in one of `FORMS`; the options are those of `prepare`."""
    setting = prepare(work, weights, devices=devices, chunk=chunk)
    put, params = setting.put, setting.params
    if form == "plain":
        function, inputs = plain_round(setting), (setting.data,)
        state, params_of = params, lambda state: state
    else:
        own = algorithm(setting, form)

        def fetch(data, client, plan, key):
            del client, key
            if work.full_batch and form == "client_state":  # one batch for each step
                plan = jnp.repeat(plan, work.steps, 0)
            return jax.tree.map(lambda leaf: leaf[plan], data)

        function = engine.make_round(own, fetch, setting.mesh, chunk=setting.chunk)
        key: Any = jax.random.key(0)
        if form in PRIVATE:  # noise needs a key of this kind
            words = jnp.asarray(chacha.words_of(bytes(chacha.KEY_BYTES)))
            key = chacha.roots_with(0, words)
        ids = np.random.default_rng(0).permutation(work.cohort).astype(np.int32)
        cohort = engine.Cohort(ids, jnp.ones(work.cohort), jnp.float32(work.cohort))
        inputs = put(key), put(cohort), setting.data
        # States are kept for the cohort only: for W1's population they would take 6.5
        # GB on every device.
        state = put(engine.initial_state(own, params, work.cohort))
        params_of = lambda state: state.server.params  # noqa: E731
    plan = put(drawn_plan(work, 0))
    lowered = jax.jit(function, donate_argnums=0).lower(state, *inputs, plan)
    program = engine.compile_program(lowered, setting.mesh)

    def play(plan):
        nonlocal state
        state = jax.block_until_ready(program(state, *inputs, plan))[0]

    def copied():
        flat = flax.traverse_util.flatten_dict(params_of(state), sep="/")
        return {path: np.array(leaf) for path, leaf in flat.items()}

    kind = (
        f"{jax.default_backend()} {setting.mesh.size} x {jax.devices()[0].device_kind}"
    )
    return Player(lambda plan: jax.block_until_ready(put(plan)), play, copied, kind)


def algorithm(setting: Setting, form: str) -> Algorithm:
    """Returns the algorithm of a form by the engine.

    A sketch of one twentieth has twenty times the energy of its vector, so with a
    sketch the server's steps are twenty times shorter: values stay finite.
    """
    work, tx = setting.work, optax.sgd(setting.work.rate)
    steps = local.sgd_steps(setting.value, tx)
    if work.full_batch:
        steps = local.full_gradient_steps(setting.value, tx, steps=work.steps)
    if form == "engine":
        return Algorithm(steps, channels.exact(), optax.sgd(1.0))
    d = sum(leaf.size for leaf in jax.tree.leaves(setting.params))
    shorter, cols = 1 / work.compression, max(1, d // work.compression)
    channel = channels.sketched(sketch.count_sketch(cols))
    if form == "heaprix":
        op = sketch.count_sketch(max(1, cols // 5), rows=5)
        channel = channels.heaprix(op, max(1, cols // 10))
    if form == "client_state":
        gain = shorter / (work.rate * work.steps)
        steps = local.tracked_steps(setting.value, rate=work.rate, gain=gain)
    sketched = Algorithm(steps, channel, optax.sgd(shorter))
    if form not in PRIVATE:
        return sketched
    options: dict[str, Any] = {"denominator": work.cohort, "smallest": work.cohort}
    make = mechanism.distributed
    if form == "integers":
        make, options = mechanism.integers, options | {"bits": 16}
    guard = make(clipping.clip(1.0), noise_multiplier=1.0, **options)
    return sketched._replace(mechanism=guard)


def plain_round(setting: Setting) -> Callable:
    """Returns FedAvg by hand, `(params, data, plan) -> (params, ())`, not jitted.

    It has the form of the engine's rounds: devices share the clients, each visits its
    own in a scan, and one `psum` makes the mean. What the engine takes beyond this is
    the price of being general: keys, weights, client states, channels, reports.
    """
    work, chunk, mesh = setting.work, setting.chunk, setting.mesh
    axis, loss = engine.AXIS, fast.form(setting.value)
    extra = -work.cohort % (mesh.size * chunk)  # places that weigh nothing

    def train(params, data, rows):
        """Returns one client's model; rows are (batches, examples of a batch)."""

        def step(model, batch):
            grads = jax.grad(loss)(model, batch)
            return jax.tree.map(lambda x, g: x - work.rate * g, model, grads), None

        batches = jax.tree.map(lambda leaf: leaf[rows], data)
        if not work.full_batch:
            return jax.lax.scan(step, params, batches)[0]
        batch = jax.tree.map(lambda leaf: leaf[0], batches)
        repeat = lambda model, _: step(model, batch)  # noqa: E731
        return jax.lax.scan(repeat, params, length=work.steps)[0]

    def visit(params, data, total, places):
        rows, weights = places
        if chunk == 1:  # vmap makes convolutions slow on CPUs
            model = train(params, data, rows[0])
            add = lambda t, x: t + weights[0] * x  # noqa: E731
        else:
            model = jax.vmap(train, in_axes=(None, None, 0))(params, data, rows)
            add = lambda t, x: t + jnp.tensordot(weights, x, 1)  # noqa: E731
        return jax.tree.map(add, total, model), None

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), P(), P(axis), P(axis)), out_specs=P()
    )
    def mean_of(params, data, plan, weights):
        # Each device differentiates its own copy: otherwise jax sums the gradients.
        copies = jax.tree.map(lambda x: jax.lax.pcast(x, axis, to="varying"), params)
        places = jax.tree.map(
            lambda leaf: leaf.reshape(-1, chunk, *leaf.shape[1:]), (plan, weights)
        )
        zeros = jax.tree.map(jnp.zeros_like, copies)
        total, _ = jax.lax.scan(functools.partial(visit, copies, data), zeros, places)
        return jax.tree.map(lambda t: jax.lax.psum(t, axis) / work.cohort, total)

    def one_round(params, data, plan):
        plan = jnp.pad(plan, ((0, extra), (0, 0), (0, 0)), mode="edge")
        weights = jnp.pad(jnp.ones(work.cohort), (0, extra))
        return mean_of(params, data, plan, weights), ()

    return one_round


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", engine.cores())
    serve(f"jax {jax.__version__}", player)
