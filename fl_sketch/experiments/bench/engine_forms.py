"""Six workloads, and every form of a round of each.

  plain          FedAvg by hand, see `plain_round`: the unit
  engine         the same by the engine
  count_sketch   the engine with messages of one row: of d/20 numbers; W5, W6: d/100
  heaprix        five rows, then exact values of heavy coordinates: two exchanges
  client_state   count_sketch with a control variate of every client (FedSKETCHGATE)
  private        count_sketch, clipped, with every client's share of Gaussian noise
  integers       the same on integers of 16 bits, with Skellam noise

No data set is read. Images are bytes drawn from a seed, of the size and number that the
named data sets have. A client's examples are drawn as a partition would, and neither
times nor memory depend on what the images show.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch import channels, engine, models, sketch
from fl_sketch.core import chacha, free_memory, trees
from fl_sketch.core.protocols import Algorithm, Local
from fl_sketch.data.examples import aligned, normalise
from fl_sketch.engine import AXIS
from fl_sketch.experiments.bench.extrapolation import Cost, extrapolated
from fl_sketch.experiments.bench.timing import Timed
from fl_sketch.experiments.bench.workloads import CLASSES, Workload
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.transforms import local

FORMS = (
    "plain", "engine", "count_sketch", "heaprix", "client_state", "private", "integers"
)  # fmt: skip
PRIVATE = ("private", "integers")
BASE = "engine"  # the form to which a channel adds its cost


class Form(NamedTuple):
    """A compiled round.

    Attributes:
      program: the round, for its memory.
      timed: the round with its state, which is donated and carried from call to call.
    """

    program: Any
    timed: Timed
    trace_seconds: float
    compile_seconds: float


class Setting(NamedTuple):
    """What all forms of one workload share.

    Attributes:
      chunk: the number of clients that a device works on at a time.
      data: images and targets, on every device.
      ids: the cohort, shape=(cohort,), where the engine keeps clients' states.
      plan: rows of the data, shape=(cohort, batches, batch).
      value: the loss, `(params, (bytes, targets)) -> scalar`.
    """

    work: Workload
    mesh: jax.sharding.Mesh
    chunk: int
    data: tuple[jax.Array, jax.Array]
    ids: jax.Array
    plan: jax.Array
    params: Any
    value: Callable


def prepare(work: Workload, chunk: int = 0, devices: int = 0) -> Setting:
    """Returns a workload on the devices, with data and initial model drawn.

    Args:
      chunk: the clients at a time on a device; 0: by platform.
      devices: the number of devices; 0: all.
    """
    mesh = engine.mesh_over(jax.devices()[: devices or None])
    rng = np.random.default_rng(0)
    count = work.population * work.examples
    images = rng.integers(0, 256, (count, *work.image), np.uint8)
    targets = rng.integers(0, CLASSES, count, np.int32)
    ids = rng.permutation(work.cohort).astype(np.int32)
    width: dict[str, Any] = {"width": work.width} if work.width else {}
    loss = models.classification(models.build(work.model, CLASSES, **width))
    shape = jax.ShapeDtypeStruct((1, *work.image), jnp.float32)

    def value(params, batch):
        inputs, targets = batch
        return loss.value(params, normalise(inputs), targets)

    put = lambda tree: jax.device_put(tree, NamedSharding(mesh, P()))  # noqa: E731
    data = put((aligned(images), targets))
    ids, plan = put(ids), put(_plan(work, rng))
    params = put(loss.init(jax.random.key(0), shape))
    chunk = chunk or chunk_of(mesh, work, value, params, data)
    return Setting(work, mesh, chunk, data, ids, plan, params, value)


def chunk_of(
    mesh: jax.sharding.Mesh, work: Workload, value: Callable, params: Any, data: Any
) -> int:
    """Returns how many clients of a workload a device works on at a time by default."""
    rows = 1 if work.full_batch else work.steps, work.batch
    batches = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((*rows, *leaf.shape[1:]), leaf.dtype), data
    )
    traffic = engine.measure_traffic(averaging(work, value), params, batches)
    return engine.chunk_size(mesh, work.cohort, traffic.working)


def averaging(work: Workload, value: Callable) -> Algorithm:
    """Returns federated averaging of a workload, uncompressed."""
    return Algorithm(_steps(work, value), channels.exact(), optax.sgd(1.0))


def _steps(work: Workload, value: Callable) -> Local:
    tx = optax.sgd(work.rate)
    if work.full_batch:
        return local.full_gradient_steps(value, tx, steps=work.steps)
    return local.sgd_steps(value, tx)


def _plan(work: Workload, rng: np.random.Generator) -> np.ndarray:
    """Returns rows of examples, (cohort, batches, batch): whole passes, shuffled."""
    rows = rng.permutation(work.population * work.examples)
    rows = rows.reshape(-1, work.examples)[: work.cohort]
    batches = 1 if work.full_batch else work.steps
    passes = -(-batches * work.batch // work.examples)
    rows = np.concatenate([rng.permuted(rows, axis=1) for _ in range(passes)], axis=1)
    rows = rows[:, : batches * work.batch]
    return rows.reshape(work.cohort, batches, work.batch).astype(np.int32)


def operations_of(setting: Setting) -> float:
    """Returns the floating-point operations of the local work of a round.

    They are those of the layers as they are defined, in the form that accelerators get,
    however a CPU computes them.
    """
    work = setting.work
    batch = (
        jax.ShapeDtypeStruct((work.batch, *work.image), jnp.uint8),
        jax.ShapeDtypeStruct((work.batch,), jnp.int32),
    )
    step = jax.jit(jax.value_and_grad(setting.value)).trace(setting.params, batch)
    analysis = step.lower(lowering_platforms=("tpu",)).cost_analysis() or {}
    return analysis.get("flops", 0.0) * work.cohort * work.steps


def form(setting: Setting, name: str) -> Form:
    """Returns a round of a workload in one of `FORMS`, compiled."""
    return _by_hand(setting) if name == "plain" else _by_engine(setting, name)


def forecast(setting: Setting, name: str) -> Cost:
    """Returns what a round in one of `FORMS` should take, by rounds of few clients."""

    def build(clients: int):
        few = setting._replace(
            work=setting.work._replace(cohort=clients),
            ids=setting.ids[:clients],
            plan=setting.plan[:clients],
        )
        program, timed, *_ = form(few, name)
        timed.value = timed.start()

        def play(count: int) -> None:
            for _ in range(count):
                timed.seconds()

        return program, play

    at_once = setting.mesh.size * setting.chunk
    return extrapolated(build, setting.work.cohort, at_once)


def plain_round(
    loss: Callable, mesh: jax.sharding.Mesh, work: Workload, *, chunk: int
) -> Callable:
    """Returns `round(params, data, plan, weights) -> params`, not jitted.

    This FedAvg by hand is the unit in which the engine's rounds are timed. It has their
    form: devices share the clients, each visits its own in a scan, and one `psum` makes
    the mean. What the engine takes beyond this is the price of being general: keys,
    weights, client states, channels, reports.

    The cohort must be a multiple of devices times chunk; padded places get weight zero.
    The server's step has size one: the new model is the mean of the clients'.

    Args:
      loss: `(params, (inputs, targets)) -> scalar`.
      chunk: the number of clients that a device works on at a time, by vmap.
    """

    def train(params, data, rows):
        """Returns one client's model; rows are (batches, examples of a batch)."""

        def step(model, batch):
            grads = jax.grad(loss)(model, batch)
            return jax.tree.map(lambda x, g: x - work.rate * g, model, grads), None

        if work.full_batch:
            batch = jax.tree.map(lambda leaf: leaf[rows[0]], data)
            repeat = lambda model, _: step(model, batch)  # noqa: E731
            return jax.lax.scan(repeat, params, length=work.steps)[0]
        batches = jax.tree.map(lambda leaf: leaf[rows], data)
        return jax.lax.scan(step, params, batches)[0]

    def visit(params, data, total, places):
        rows, weights = places
        if chunk == 1:
            model = train(params, data, rows[0])
            add = lambda t, x: t + weights[0] * x  # noqa: E731
            return jax.tree.map(add, total, model), None
        models = jax.vmap(train, in_axes=(None, None, 0))(params, data, rows)
        add = lambda t, x: t + jnp.tensordot(weights, x, 1)  # noqa: E731
        return jax.tree.map(add, total, models), None

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), P(), P(AXIS), P(AXIS)), out_specs=P()
    )
    def one_round(params, data, plan, weights):
        # Each device differentiates its own copy: otherwise jax sums the gradients.
        copies = jax.tree.map(lambda x: jax.lax.pcast(x, AXIS, to="varying"), params)
        places = jax.tree.map(
            lambda leaf: leaf.reshape(-1, chunk, *leaf.shape[1:]), (plan, weights)
        )
        zeros = jax.tree.map(jnp.zeros_like, copies)
        total, _ = jax.lax.scan(functools.partial(visit, copies, data), zeros, places)
        count = jax.lax.psum(weights.sum(), AXIS)
        return jax.tree.map(lambda t: jax.lax.psum(t, AXIS) / count, total)

    return one_round


def _by_hand(setting: Setting) -> Form:
    work, chunk = setting.work, setting.chunk
    one_round = plain_round(setting.value, setting.mesh, work, chunk=chunk)
    extra = -work.cohort % (setting.mesh.size * chunk)
    plan = jnp.pad(setting.plan, ((0, extra), (0, 0), (0, 0)), mode="edge")
    weights = jnp.pad(jnp.ones(work.cohort), (0, extra))
    inputs = jax.device_put((setting.data, plan, weights), setting.plan.sharding)
    start = functools.partial(jax.tree.map, jnp.copy, setting.params)
    return _compiled(
        setting.mesh, lambda *inputs: (one_round(*inputs), ()), start, *inputs
    )


def _by_engine(setting: Setting, name: str) -> Form:
    work, params = setting.work, setting.params
    algorithm = _algorithm(name, work, setting.value, trees.size(params))

    def fetch(data, client, plan, key):
        del client, key
        batches = jax.tree.map(lambda leaf: leaf[plan], data)
        if work.full_batch and name == "client_state":  # its steps read one batch each
            return jax.tree.map(lambda leaf: jnp.repeat(leaf, work.steps, 0), batches)
        return batches

    one_round = engine.make_round(algorithm, fetch, setting.mesh, chunk=setting.chunk)
    same = NamedSharding(setting.mesh, P())
    ones, size = jnp.ones(work.cohort), jnp.float32(work.cohort)
    cohort = engine.Cohort(setting.ids, *jax.device_put((ones, size), same))
    key: Any = jax.random.key(0)
    if name in PRIVATE:  # noise needs a key of this kind
        words = jnp.asarray(chacha.words_of(bytes(chacha.KEY_BYTES)))
        key = chacha.roots_with(0, words)
    key = jax.device_put(key, same)

    def start():
        # States are kept for the cohort only: for W1's population they would take
        # 6.5 GB on every device.
        state = engine.initial_state(algorithm, params, work.cohort)
        return jax.device_put(state, same)

    inputs = key, cohort, setting.data, setting.plan
    return _compiled(setting.mesh, one_round, start, *inputs)


def _algorithm(name: str, work: Workload, value: Callable, d: int) -> Algorithm:
    """Returns the algorithm of a form by the engine.

    A sketch of one twentieth has twenty times the energy of its vector, so with a
    sketch the server's steps are twenty times shorter: numbers stay finite.
    """
    if name == BASE:
        return averaging(work, value)
    steps, shorter = _steps(work, value), 1 / work.compression
    cols = max(1, d // work.compression)
    channel = channels.sketched(sketch.count_sketch(cols))
    if name == "heaprix":
        op = sketch.count_sketch(max(1, cols // 5), rows=5)
        channel = channels.heaprix(op, max(1, cols // 10))
    if name == "client_state":
        gain = shorter / (work.rate * work.steps)
        steps = local.tracked_steps(value, rate=work.rate, gain=gain)
    algorithm = Algorithm(steps, channel, optax.sgd(shorter))
    if name not in PRIVATE:
        return algorithm
    bits: dict[str, Any] = {"bits": 16} if name == "integers" else {}
    make = mechanism.integers if bits else mechanism.distributed
    size = {"denominator": work.cohort, "smallest": work.cohort}
    guard = make(clipping.clip(1.0), noise_multiplier=1.0, **size, **bits)
    return algorithm._replace(mechanism=guard)


def _compiled(mesh, function: Callable, start: Callable, *inputs: Any) -> Form:
    """Compiles `function(state, *inputs) -> (state, report)` with a donated state."""
    state, begin = start(), time.perf_counter()
    lowered = jax.jit(function, donate_argnums=0).lower(state, *inputs)
    traced = time.perf_counter()
    program = engine.compile_program(lowered, mesh)
    done = time.perf_counter()
    free_memory.give_back()

    def call(state):
        return jax.block_until_ready(program(state, *inputs))[0]

    return Form(program, Timed(start, call), traced - begin, done - traced)
