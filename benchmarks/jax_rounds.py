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
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import rounds
from fl_sketch import channels, engine, models, sketch
from fl_sketch.core import chacha
from fl_sketch.core.protocols import Algorithm
from fl_sketch.data.examples import aligned, normalise
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.transforms import local

FORMS = (
    "plain", "engine", "count_sketch", "heaprix", "client_state", "private", "integers"
)  # fmt: skip
GUARDS: dict[str, Callable] = {
    "private": mechanism.central,
    "integers": lambda bound, denominator, **noise: mechanism.integers(
        bound, denominator=denominator, smallest=denominator, bits=16, **noise
    ),
}


def loss_of(work: rounds.Workload) -> models.Loss:
    """Returns the loss of a workload's model."""
    return models.classification(models.build(work.model, rounds.CLASSES))


def initial_weights(work: rounds.Workload) -> rounds.Weights:
    """Returns a model's first parameters by their paths."""
    shape = jax.ShapeDtypeStruct((1, *work.image), jnp.float32)
    params = loss_of(work).init(jax.random.key(0), shape)
    return flax.traverse_util.flatten_dict(jax.device_get(params), sep="/")


def player(
    work: rounds.Workload,
    weights: rounds.Weights,
    form: str,
    *,
    devices: int = 0,
    chunk: int = 0,
) -> rounds.Player:
    """Returns compiled rounds of a workload in one of `FORMS`.

    Args:
      devices: the number of devices; 0: all.
      chunk: the clients at a time on a device; 0: by platform.
    """
    mesh, loss = engine.mesh_over(jax.devices()[: devices or None]), loss_of(work)
    put = functools.partial(jax.device_put, device=NamedSharding(mesh, P()))

    def value(params, batch):
        inputs, targets = batch
        return loss.value(params, normalise(inputs), targets)

    own = initial_weights(work)
    weights = {  # another checkout may store a kernel the other way round
        path: leaf if leaf.shape == own[path].shape else leaf.T
        for path, leaf in weights.items()
    }
    params = put(flax.traverse_util.unflatten_dict(weights, sep="/"))
    images, targets = rounds.drawn_examples(work)
    data, plan = put((aligned(images), targets)), put(rounds.drawn_plan(work, 0))
    batches = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[plan[0]], data))
    if not chunk:
        averaging = algorithm(work, value, params, "engine")
        traffic = engine.measure_traffic(averaging, params, batches)
        chunk = engine.chunk_size(mesh, work.cohort, traffic.working)
    if form == "plain":
        function, inputs = plain_round(work, value, mesh, chunk), (data,)
        state, params_of = params, lambda state: state
    else:
        method = algorithm(work, value, params, form)

        def fetch(data, client, plan, key):
            del client, key
            if work.full_batch and form == "client_state":  # one batch for each step
                plan = jnp.repeat(plan, work.steps, 0)
            return jax.tree.map(lambda leaf: leaf[plan], data)

        function = engine.make_round(method, fetch, mesh, chunk=chunk)
        key: Any = jax.random.key(0)
        if form in GUARDS:  # noise needs a key of this kind
            words = jnp.asarray(chacha.words_of(bytes(chacha.KEY_BYTES)))
            key = chacha.roots_with(0, words)
        ids = np.random.default_rng(0).permutation(work.cohort).astype(np.int32)
        cohort = engine.Cohort(ids, jnp.ones(work.cohort), jnp.float32(work.cohort))
        inputs = put(key), put(cohort), data
        # States are kept for the cohort only: for W1's population they would take 6.5
        # GB on every device.
        state = put(engine.initial_state(method, params, work.cohort))
        params_of = lambda state: state.server.params  # noqa: E731
    lowered = jax.jit(function, donate_argnums=0).lower(state, *inputs, plan)
    program = engine.compile_program(lowered, mesh)

    def play(plan):
        nonlocal state
        state = jax.block_until_ready(program(state, *inputs, plan))[0]

    def copied():
        flat = flax.traverse_util.flatten_dict(params_of(state), sep="/")
        return {path: np.array(leaf) for path, leaf in flat.items()}

    device = f"{jax.default_backend()} {mesh.size} x {jax.devices()[0].device_kind}"
    place = lambda plan: jax.block_until_ready(put(plan))  # noqa: E731
    return rounds.Player(place, play, copied, device)


def algorithm(
    work: rounds.Workload, value: Callable, params: Any, form: str
) -> Algorithm:
    """Returns the algorithm of a form by the engine.

    A sketch of one twentieth has twenty times the energy of its vector, so with a
    sketch the server's steps are twenty times shorter: values stay finite.
    """
    tx = optax.sgd(work.rate)
    steps = local.sgd_steps(value, tx)
    if work.full_batch:
        steps = local.full_gradient_steps(value, tx, steps=work.steps)
    if form == "engine":
        return Algorithm(steps, channels.exact(), optax.sgd(1.0))
    d = sum(leaf.size for leaf in jax.tree.leaves(params))
    shorter, cols = 1 / work.compression, max(1, d // work.compression)
    channel = channels.sketched(sketch.count_sketch(cols))
    if form == "heaprix":
        op = sketch.count_sketch(max(1, cols // 5), rows=5)
        channel = channels.heaprix(op, max(1, cols // 10))
    if form == "client_state":
        gain = shorter / (work.rate * work.steps)
        steps = local.tracked_steps(value, rate=work.rate, gain=gain)
    guard, size = None, {"denominator": work.cohort}
    if form in GUARDS:
        guard = GUARDS[form](clipping.clip(1.0), noise_multiplier=1.0, **size)
    return Algorithm(steps, channel, optax.sgd(shorter), mechanism=guard)


def plain_round(
    work: rounds.Workload, value: Callable, mesh: jax.sharding.Mesh, chunk: int
) -> Callable:
    """Returns FedAvg by hand, `(params, data, plan) -> (params, ())`, not jitted.

    It has the form of the engine's rounds: devices share the clients, each visits its
    own in a scan, and one `psum` makes the mean. What the engine takes beyond this is
    the price of being general: keys, weights, client states, channels, reports.
    """
    axis, loss = engine.AXIS, value
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
    rounds.serve(f"jax {jax.__version__}", player)
