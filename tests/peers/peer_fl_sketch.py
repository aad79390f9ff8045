"""fl_sketch under the protocol of the peers' timing scripts.

    python tests/peers/peer_fl_sketch.py W2 --serve

The folder of those scripts is given by FL_SKETCH_PEERS: its `common.py` has the
workloads, the plan of examples and the clock. One round is one call of the engine's
jitted round, with the plan's indices in place of drawn batches. Images are bytes on
the devices, as those of a run are, and become the numbers of the others when they are
fetched.
"""

import os
import sys

sys.path.insert(0, os.environ["FL_SKETCH_PEERS"])

import common  # noqa: E402
import jax  # noqa: E402

arguments = common.arguments(
    devices={"type": int, "default": os.cpu_count()},
    chunk={"type": int, "default": 1},
    compression={"type": int, "default": 0},
)
jax.config.update("jax_num_cpu_devices", arguments.devices)

import flax.traverse_util  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from fl_sketch import channels, engine, models, sketch  # noqa: E402
from fl_sketch.core import free_memory  # noqa: E402
from fl_sketch.core.protocols import Algorithm  # noqa: E402
from fl_sketch.data.examples import aligned, normalise  # noqa: E402
from fl_sketch.transforms import local  # noqa: E402

work = common.WORKLOADS[arguments.workload]
MEAN, SCALE = {"cifar10": (0.473, 0.251)}.get(work["data"], (0.0, 1.0))
NAMES = {"cnn": "cnn", "lenet": "lenet", "logreg": "logistic"}


def initial_params(loss, inputs):
    """Returns the peers' initial weights, in the order and names of our model."""
    theirs = list(common.init_params(work["model"]).values())
    ours = loss.init(jax.random.key(0), inputs)
    names = sorted(ours, key=_layer_order)
    weights = iter(theirs)
    params = {}
    for name in names:
        params[name] = {"kernel": next(weights), "bias": next(weights)}
    if work["model"] == "logreg":  # ours is stored by class
        params["dense"]["kernel"] = params["dense"]["kernel"].T
    jax.tree.map(lambda a, b: None if a.shape == b.shape else 1 / 0, ours, params)
    return jax.tree.map(jnp.asarray, params)


def _layer_order(name):
    return (not name.startswith("conv"), name)


def main():
    """Builds the round and hands it to the clock."""
    inputs, targets = common.load(work["data"])
    inputs = np.rint((inputs * SCALE + MEAN) * 255).astype(np.uint8)
    if work["model"] == "logreg":
        inputs = inputs.reshape(-1, 28, 28, 1)
    loss = models.classification(models.build(NAMES[work["model"]], 10))
    tx = optax.sgd(work["lr"])

    def value(params, batch):
        return loss.value(params, *batch)

    full = work["model"] == "logreg"  # full batch: every step sees the same examples
    steps = (
        local.full_gradient_steps(value, tx, steps=work["steps"])
        if full
        else local.sgd_steps(value, tx)
    )

    def fetch(data, client, plan, key):
        del client, key
        images, labels = (leaf[plan[:1] if full else plan] for leaf in data)
        return (normalise(images) - MEAN) / SCALE, labels

    params = initial_params(loss, normalise(inputs[:1]))
    d = sum(leaf.size for leaf in jax.tree.leaves(params))
    channel = channels.exact()
    if arguments.compression:
        channel = channels.sketched(sketch.count_sketch(d // arguments.compression))
    algorithm = Algorithm(steps, channel, optax.sgd(common.SERVER_LR))
    mesh = jax.make_mesh(
        (arguments.devices,), ("clients",), axis_types=(AxisType.Auto,)
    )
    one_round = jax.jit(
        engine.make_round(algorithm, fetch, mesh, chunk=arguments.chunk),
        donate_argnums=0,
    )
    same = NamedSharding(mesh, P())
    data = jax.device_put((aligned(inputs), targets), same)
    del inputs, targets
    run = {"state": engine.initial_state(algorithm, params, work["population"])}
    run["state"] = jax.device_put(run["state"], same)
    ids = jnp.arange(work["cohort"], dtype=jnp.int32)
    cohort = engine.Cohort(ids, jnp.ones(ids.shape), jnp.float32(work["cohort"]))

    def round_fn(number, index):
        del number
        given = jax.random.key(0), cohort, data, jnp.asarray(index)
        if "round" not in run:
            lowered = one_round.lower(run["state"], *given)
            run["round"] = lowered.compile(engine.compiler_options(mesh))
            free_memory.give_back()
        run["state"], report = run["round"](run["state"], *given)
        jax.block_until_ready((run["state"], report))

    def params_fn():
        flat = flax.traverse_util.flatten_dict(run["state"].server.params)
        return [np.asarray(leaf) for leaf in flat.values()]

    common.main(arguments, "fl_sketch", round_fn, params_fn)


if __name__ == "__main__":
    main()
