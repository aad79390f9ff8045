"""Six workloads, and every form of a round of each.

  plain          FedAvg by hand, see plain_round: the unit
  engine         the same by the engine
  count_sketch   the engine with messages of one row: of d/20 numbers; W5, W6: d/100
  heaprix        five rows, then exact values of heavy coordinates: two exchanges
  client_state   count_sketch with a control variate of every client (FedSKETCHGATE)

No data set is read. Images are bytes drawn from a seed, of the size and number that the
named data sets have. The examples of a client are drawn as a partition would, and
neither times nor memory depend on what the pictures show.
"""

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
from fl_sketch.core import free_memory, trees
from fl_sketch.core.protocols import Algorithm
from fl_sketch.data.examples import aligned, normalise
from fl_sketch.experiments.bench.arithmetic import operations
from fl_sketch.experiments.bench.plain_round import make_plain_round
from fl_sketch.transforms import local

CLASSES = 10
FORMS = ("plain", "engine", "count_sketch", "heaprix", "client_state")
BASE = "engine"  # the form to which a channel adds its cost


class Workload(NamedTuple):
    """A model, its clients and their local work.

    Attributes:
      model: the name of the model.
      image: height, width and channels.
      population: the number of clients.
      cohort: the number of clients of a round.
      owned: the number of examples of each client.
      steps: the number of local steps.
      batch: the number of examples of a step.
      rate: the rate of local steps.
      full_batch: whether all steps are on one batch, the client's whole data.
      compression: d over the numbers of a message, where there is a sketch.
      width: the width of the model; 0: the usual.
    """

    model: str
    image: tuple[int, int, int]
    population: int
    cohort: int
    owned: int
    steps: int
    batch: int
    rate: float
    full_batch: bool = False
    compression: int = 20
    width: int = 0


WORKLOADS = {
    "W1": Workload("cnn", (32, 32, 3), 1000, 50, 50, 5, 10, 0.1),
    "W2": Workload("lenet", (28, 28, 1), 50, 25, 1200, 5, 32, 0.05),
    "W3": Workload("logistic", (28, 28, 1), 3000, 600, 20, 20, 20, 0.01, True),
    "W4": Workload("lenet", (28, 28, 1), 1000, 1000, 60, 5, 32, 0.05),
    "W5": Workload("resnet", (32, 32, 3), 5, 5, 10000, 2, 32, 0.1, compression=100),
}
# The same at five million parameters: slow, and so not timed unless it is named.
WORKLOADS["W6"] = WORKLOADS["W5"]._replace(width=72)
USUAL = ("W1", "W2", "W3", "W4", "W5")


class Form(NamedTuple):
    """A compiled round, and what it starts from.

    Attributes:
      compiled: the program, for what it says of its memory.
      start: `() -> state`, to be donated and carried from call to call.
      call: `(state) -> state`, one round, over when it returns.
      trace_seconds: the time that Python took to make the program.
      compile_seconds: the time that compiling it took.
    """

    compiled: Any
    start: Callable[[], Any]
    call: Callable[[Any], Any]
    trace_seconds: float
    compile_seconds: float


class Setting(NamedTuple):
    """What all forms of one workload share.

    Attributes:
      work: the workload.
      mesh: the devices.
      chunk: the number of clients that a device works on at a time.
      data: images and targets, on every device.
      ids: the cohort, shape=(cohort,), where the engine keeps clients' states.
      plan: rows of the data, shape=(cohort, batches, batch).
      params: the first model.
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
      work: the workload.
      chunk: the clients at a time on a device; 0 leaves their number to the platform.
      devices: the number of devices; 0: all.
    """
    some = jax.devices()[: devices or None]
    mesh = engine.mesh_over(some)
    # A CPU is best without vmap (see models/convolution.py); the other number is the
    # default of experiments there and waits for a GPU to be measured on.
    chunk = chunk or engine.default_chunk(mesh, work.cohort)
    rng = np.random.default_rng(0)
    count = work.population * work.owned
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
    return Setting(work, mesh, chunk, data, ids, plan, params, value)


def _plan(work: Workload, rng: np.random.Generator) -> np.ndarray:
    """Returns rows of examples, (cohort, batches, batch): whole passes, shuffled."""
    count = work.population * work.owned
    owned = rng.permutation(count).reshape(-1, work.owned)[: work.cohort]
    batches = 1 if work.full_batch else work.steps
    passes = -(-batches * work.batch // work.owned)
    rows = [rng.permuted(owned, axis=1) for _ in range(passes)]
    rows = np.concatenate(rows, axis=1)[:, : batches * work.batch]
    return rows.reshape(work.cohort, batches, work.batch).astype(np.int32)


def operations_of(setting: Setting) -> float:
    """Returns the operations of the local work of a round of a `setting`."""
    work = setting.work
    batch = (
        jax.ShapeDtypeStruct((work.batch, *work.image), jnp.uint8),
        jax.ShapeDtypeStruct((work.batch,), jnp.int32),
    )
    one = operations(jax.value_and_grad(setting.value), setting.params, batch)
    return one * work.cohort * work.steps


def plain(setting: Setting) -> Form:
    """Returns the round of `setting` that is written by hand."""
    work = setting.work
    one_round = make_plain_round(
        setting.value,
        setting.mesh,
        rate=work.rate,
        steps=work.steps,
        full_batch=work.full_batch,
        chunk=setting.chunk,
    )
    extra = -work.cohort % (setting.mesh.size * setting.chunk)
    plan = jnp.pad(setting.plan, ((0, extra), (0, 0), (0, 0)), mode="edge")
    weights = jnp.pad(jnp.ones(work.cohort), (0, extra))
    rest = jax.device_put((setting.data, plan, weights), setting.plan.sharding)

    def with_empty_report(params, *rest):
        return one_round(params, *rest), ()

    def start():
        return jax.tree.map(jnp.copy, setting.params)

    return _form(setting.mesh, with_empty_report, start, *rest)


def by_engine(setting: Setting, form: str) -> Form:
    """Returns a round of `setting` by the engine: any `form` except the plain one."""
    work, params = setting.work, setting.params
    algorithm = _algorithm(form, work, setting.value, trees.size(params))

    def fetch(data, client, plan, key):
        del client, key
        batches = jax.tree.map(lambda leaf: leaf[plan], data)
        if work.full_batch and form == "client_state":  # its steps read one batch each
            return jax.tree.map(lambda leaf: jnp.repeat(leaf, work.steps, 0), batches)
        return batches

    one_round = engine.make_round(algorithm, fetch, setting.mesh, chunk=setting.chunk)
    same = NamedSharding(setting.mesh, P())
    ones, size = jnp.ones(work.cohort), jnp.float32(work.cohort)
    cohort = engine.Cohort(setting.ids, *jax.device_put((ones, size), same))
    key = jax.device_put(jax.random.key(0), same)

    def start():
        # States are kept for the cohort only: for W1's population they would take
        # 6.5 GB on every device.
        state = engine.initial_state(algorithm, params, work.cohort)
        return jax.device_put(state, same)

    rest = key, cohort, setting.data, setting.plan
    return _form(setting.mesh, one_round, start, *rest)


def _algorithm(form: str, work: Workload, value: Callable, d: int) -> Algorithm:
    """Returns the algorithm of a form.

    A sketch of one twentieth has twenty times the energy of what it carries, so
    where it is followed steps are twenty times shorter: numbers stay finite.
    """
    tx, shorter = optax.sgd(work.rate), 1 / work.compression
    cols = max(1, d // work.compression)
    steps = (
        local.full_gradient_steps(value, tx, steps=work.steps)
        if work.full_batch
        else local.sgd_steps(value, tx)
    )
    sketched = channels.sketched(sketch.count_sketch(cols))
    if form == "engine":
        return Algorithm(steps, channels.exact(), optax.sgd(1.0))
    if form == "count_sketch":
        return Algorithm(steps, sketched, optax.sgd(shorter))
    if form == "heaprix":
        op = sketch.count_sketch(max(1, cols // 5), rows=5)
        channel = channels.heaprix(op, max(1, cols // 10))
        return Algorithm(steps, channel, optax.sgd(shorter))
    gain = shorter / (work.rate * work.steps)
    steps = local.tracked_steps(value, rate=work.rate, gain=gain)
    return Algorithm(steps, sketched, optax.sgd(shorter))


def _form(mesh, function: Callable, start: Callable, *rest: Any) -> Form:
    """Returns `function(state, *rest) -> (state, report)`, compiled, state donated."""
    state = start()
    begin = time.perf_counter()
    lowered = jax.jit(function, donate_argnums=0).lower(state, *rest)
    traced = time.perf_counter()
    compiled = lowered.compile(engine.compiler_options(mesh))
    done = time.perf_counter()
    free_memory.give_back()

    def call(state):
        return jax.block_until_ready(compiled(state, *rest))[0]

    return Form(compiled, start, call, traced - begin, done - traced)
