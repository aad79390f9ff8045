"""Trains one model on four devices, with and without a 20 times smaller message.

python -m launch.quickstart
python -m launch.quickstart --compression=100 --steps=1000

The data are scikit-learn's 8x8 digits. On one CPU the four devices are forced.
"""

import time
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

from fl_sketch import sketch, transforms

COMPRESSION = flags.DEFINE_integer("compression", 20, "d / b.", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 400, "Training steps.", lower_bound=1)
RATE = flags.DEFINE_float("learning_rate", 3e-3, "Adam's rate.", lower_bound=0)
SEED = flags.DEFINE_integer("seed", 0, "Seed of everything.")

DEVICES, BATCH, TRAIN = 4, 128, 1400
ROW = "{:26} {:>13} {:>17} {:>14} {:>8}"


class Classifier(nn.Module):
    """Digits of 8x8 pixels, in ten classes."""

    @nn.compact
    def __call__(self, images):
        """Returns the logits."""
        return nn.Dense(10)(nn.relu(nn.Dense(256)(images)))


def loss(params, images, labels):
    """Returns the mean cross-entropy of a batch."""
    logits = Classifier().apply(params, images)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean()


def training_step(tx: optax.GradientTransformationExtraArgs) -> Callable:
    """Returns the data-parallel step of `tx`, in which only messages are summed."""

    def on_one_device(params, state, images, labels, key):
        own = jax.lax.pcast(params, "devices", to="varying")
        grads = jax.grad(loss)(own, images, labels)
        updates, state = tx.update(grads, state, params, key=key)
        return optax.apply_updates(params, updates), state

    mesh = jax.make_mesh((DEVICES,), ("devices",), axis_types=(AxisType.Auto,))
    data, same = P("devices"), P()
    return jax.jit(
        jax.shard_map(
            on_one_device,
            mesh=mesh,
            in_specs=(same, same, data, data, same),
            out_specs=(same, same),
        )
    )


def train(op: sketch.Sketch, params, images, labels):
    """Returns the parameters after `--steps` steps of sketched Adam."""
    tx = optax.chain(
        transforms.sketch(op),
        transforms.aggregate("devices"),
        transforms.desketch(op),
        optax.adam(RATE.value),
    )
    step, state = training_step(tx), tx.init(params)
    rng, key = np.random.default_rng(SEED.value), jax.random.key(SEED.value)
    for number in range(STEPS.value):
        batch = rng.integers(0, TRAIN, BATCH)
        fresh = jax.random.fold_in(key, number)
        params, state = step(params, state, images[batch], labels[batch], fresh)
        jax.block_until_ready(params)  # queued collectives can deadlock on few cores
    return params


def main(argv):
    """Trains twice and prints a table."""
    del argv
    logging.set_verbosity(logging.WARNING)  # jax reports every backend it lacks
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    params = Classifier().init(jax.random.key(SEED.value), images[:1])
    d = sum(leaf.size for leaf in jax.tree.leaves(params))
    cols = max(1, d // COMPRESSION.value)
    print(f"{d} parameters, {DEVICES} devices, {STEPS.value} steps of {BATCH} images")
    print(
        ROW.format("message", "numbers", "kB a device-step", "test accuracy", "seconds")
    )
    for name, op in {
        "the gradient itself": sketch.identity(),
        f"count sketch, 1/{COMPRESSION.value}": sketch.count_sketch(cols),
    }.items():
        begin = time.perf_counter()
        trained = train(op, params, images, labels)
        seconds = f"{time.perf_counter() - begin:.1f}"
        guesses = jnp.argmax(Classifier().apply(trained, images[TRAIN:]), axis=1)
        accuracy = f"{np.mean(guesses == labels[TRAIN:]):.3f}"
        numbers = op.size(params)
        print(ROW.format(name, numbers, f"{4e-3 * numbers:.2f}", accuracy, seconds))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", DEVICES)
    app.run(main)
