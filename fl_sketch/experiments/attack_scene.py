"""What is attacked of a config: fresh weights, clients' messages, and their noise.

The model has fresh weights, where gradients say most. Every image is the whole data of
one client, which sends the first message of a round of the config's algorithm, through
its sketch, compressor and mechanism.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from fl_sketch.audit import gradient_inversion as inversion
from fl_sketch.audit import posterior
from fl_sketch.channels import player
from fl_sketch.config import parse, privacy
from fl_sketch.core import trees, validate
from fl_sketch.core.keys import Purpose, apart, round_keys
from fl_sketch.core.protocols import Algorithm, Coded, Key, Keys, Message, Round, Server
from fl_sketch.data.examples import Examples, normalise
from fl_sketch.run.setup import Setup, prepare


class Scene(NamedTuple):
    """A config and what is attacked of it.

    Attributes:
      setup: the program of the config.
      algorithm: the algorithm of the config.
      silent: the same without noise, which the attacker does not know.
      server: what clients fetch: fresh weights.
      key: the key of the run.
      images: what is true, shape=(attacks, images, height, width, channels).
      targets: their labels, shape=(attacks, images).
      clients: the number of clients of an attack, whose images are as many.
      steps: the number of a client's steps.
    """

    setup: Setup
    algorithm: Algorithm
    silent: Algorithm
    server: Server
    key: Key
    images: np.ndarray
    targets: np.ndarray
    clients: int
    steps: int

    def keys(self, number: jax.typing.ArrayLike, *, known: bool = True) -> Keys:
        """Returns the keys of attack `number`; unless `known`, what one takes for them.

        Each has a round of its own, so that hashes and noise are drawn
        anew for every attack, as the intervals over attacks want it.
        """
        return round_keys(self.key if known else self.attacker, number, number)

    @property
    def attacker(self) -> Key:
        """The attacker's own key."""
        return apart(self.key, Purpose.ATTACK)

    def view(self, keys: Keys, labels: jax.Array) -> inversion.View:
        """Returns images -> the message of those who have them, before noise.

        `keys` are those of the round and `labels` those of the images, or what the
        attacker takes for them.
        """
        return self._view(self.silent, keys, labels)

    def seen(self, images: jax.Array, keys: Keys, labels: jax.Array) -> Message:
        """Returns the message as the attacker sees it, with all its noise.

        The `images` of all clients in order, `keys` and `labels` are the true ones.
        """
        message = self._view(self.algorithm, keys, labels)(images)
        return inversion.released(self.algorithm, message, keys)

    def deviations(self, keys: Keys) -> jax.Array:
        """Returns the standard deviation of the noise on every number that is seen.

        It is known from the config: that of the mechanism, or that of every local step
        through the rate, the steps and the sketch of the round's `keys`. What the noise
        of one step does to the gradients of later ones is left out: of one step this
        is exact, and of several it is so to first order in the rate.

        Raises:
          ValueError: for noise that goes through what is not linear.
        """
        config, guarantee = self.setup.config, self.setup.guarantee
        z = guarantee.noise_multiplier if guarantee else 0.0
        scale, params = z * config.privacy.threshold, self.server.params
        local = privacy.local_noise(config)
        if local:
            batch = self.images.shape[1] // self.clients
            scale *= config.client.rate / batch * math.sqrt(self.steps * self.clients)
        uplink, nothing = self.silent.uplink, jax.tree.map(jnp.zeros_like, params)
        arguments = nothing, uplink.init(params), keys, Round(self.server.round)
        said = player.play(uplink, arguments).sent
        if not (scale and (local or config.privacy.form == "update")):
            sent = jax.eval_shape(lambda: player.message(said))
            return jnp.full(trees.size(sent), scale)
        if isinstance(said, Coded):
            msg = "Expected noise that goes through a linear map, got a compressor."
            raise ValueError(msg)
        value, linear = player.parts(said)
        return scale * posterior.row_norms(linear, value)

    def _view(self, algorithm: Algorithm, keys: Keys, labels) -> inversion.View:
        def message(one):
            number, inputs, labels = one

            def batches(inputs):
                batch = Examples(inputs, labels)
                return jax.tree.map(
                    lambda leaf: jnp.broadcast_to(leaf, (self.steps, *leaf.shape)),
                    batch,
                )

            own = keys._replace(own=jax.random.fold_in(keys.own, number))
            return inversion.client_view(algorithm, self.server, own, batches)(inputs)

        def total(inputs):
            """Noise is said of sums, and an attack looks at ratios only."""
            shared = (self.clients, -1)
            everyone = (
                jnp.arange(self.clients),
                inputs.reshape(*shared, *inputs.shape[1:]),
                labels.reshape(shared),
            )
            # One by one: batches of kernels make convolutions slow on a CPU.
            messages = jax.lax.map(message, everyone)
            return jax.tree.map(lambda leaf: leaf.sum(0), messages)

        return total


def scene_of(
    config: ConfigDict,
    data_dir: str | None,
    *,
    images: int,
    batch: int = 1,
    clients: int = 1,
) -> Scene:
    """Returns a config with the first of its test images dealt to clients.

    Args:
      config: the config whose messages are attacked.
      data_dir: the folder of raw data sets.
      images: the number of images, a multiple of `batch` times `clients`.
      batch: the number of images of a client.
      clients: the number of clients of an attack.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line.
    """
    validate.at_least_one(images=images, batch=batch, clients=clients)
    if images % (batch * clients):
        msg = f"Expected images to be a multiple of batch={batch} times "
        raise ValueError(msg + f"clients={clients}, got images={images}.")
    if config.privacy.watch:
        msg = "config.privacy: Expected watch=False to attack messages, got watch=True."
        raise ValueError(msg)
    setup = prepare(config, data_dir)
    test = setup.splits.test
    if test.inputs.ndim != 4:
        msg = f"Expected images to attack, got data.name={config.data.name}."
        raise ValueError(msg)
    attacks = images // (batch * clients)
    validate.at_most(len(test.inputs), "the test images", images=images)
    true = np.asarray(normalise(jnp.asarray(test.inputs[:images])))
    numbers, key = parse.numbers_of(config), jax.random.key(config.seed)
    return Scene(
        setup,
        setup.algorithm(numbers),
        setup.algorithm(numbers, noisy=False),
        jax.jit(lambda: setup.start(numbers, key).server)(),
        key,
        true.reshape(attacks, -1, *true.shape[1:]),
        np.asarray(test.targets[:images]).reshape(attacks, -1),
        clients,
        config.client.steps,
    )
