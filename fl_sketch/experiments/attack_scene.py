"""What is attacked of a config: fresh weights, clients' messages, and their noise."""

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
      server: what clients download: fresh weights.
      key: the key of the run.
      images: the true images, shape=(attacks, images, height, width, channels).
      targets: their labels, shape=(attacks, images).
      clients: the number of clients of an attack, with as many images each.
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
        """Returns the keys of attack `number`, or if not `known` the attacker's guess.

        Every attack is in a separate round with its own hashes and noise, so attacks
        are independent.
        """
        return round_keys(self.key if known else self.attacker, number, number)

    @property
    def attacker(self) -> Key:
        """The attacker's own key."""
        return apart(self.key, Purpose.ATTACK)

    def view(self, keys: Keys, labels: jax.Array) -> inversion.View:
        """Returns images -> their message before noise, for the attacker's guesses."""
        return self._view(self.silent, keys, labels)

    def seen(self, images: jax.Array, keys: Keys, labels: jax.Array) -> Message:
        """Returns the message that the attacker sees, with all its noise.

        The `images` of all clients in order, `keys` and `labels` are the true ones.
        """
        message = self._view(self.algorithm, keys, labels)(images)
        return inversion.released(self.algorithm, message, keys)

    def deviations(self, keys: Keys) -> jax.Array:
        """Returns the standard deviation of the noise on every number that is seen.

        It is derived from the config: the noise of the mechanism, or that of every
        local step through the rate, the steps and the sketch of the round's `keys`. The
        effect of one step's noise on later gradients is ignored, so it is exact for one
        step, and to first order in the rate for several.

        Raises:
          ValueError: for noise that goes through a compressor.
        """
        config, guarantee = self.setup.config, self.setup.guarantee
        z = guarantee.noise_multiplier if guarantee else 0.0
        scale, params = z * config.privacy.threshold, self.server.params
        local = privacy.protection_of(config).local
        if local:
            batch = self.images.shape[1] // self.clients
            scale *= config.client.rate / batch * math.sqrt(self.steps * self.clients)
        uplink, zeros = self.silent.uplink, jax.tree.map(jnp.zeros_like, params)
        arguments = zeros, uplink.init(params), keys, Round(self.server.round)
        sent = player.play(uplink, arguments).sent
        if not (scale and (local or config.privacy.form == "update")):
            message = jax.eval_shape(lambda: player.message(sent))
            return jnp.full(trees.size(message), scale)
        if isinstance(sent, Coded):
            msg = "Expected a linear channel with this noise, got a compressor."
            raise ValueError(msg)
        value, linear = player.parts(sent)
        return scale * posterior.row_norms(linear, value)

    def _view(self, algorithm: Algorithm, keys: Keys, labels) -> inversion.View:
        def message(client):
            number, inputs, labels = client

            def batches(inputs):
                return jax.tree.map(
                    lambda leaf: jnp.broadcast_to(leaf, (self.steps, *leaf.shape)),
                    Examples(inputs, labels),
                )

            of_client = keys._replace(own=jax.random.fold_in(keys.own, number))
            view = inversion.client_view(algorithm, self.server, of_client, batches)
            return view(inputs)

        def total(inputs):
            """Returns the sum of messages, since noise is on sums."""
            shared = (self.clients, -1)
            clients = (
                jnp.arange(self.clients),
                inputs.reshape(*shared, *inputs.shape[1:]),
                labels.reshape(shared),
            )
            # One by one: batches of kernels make convolutions slow on a CPU.
            messages = jax.lax.map(message, clients)
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
      images: the number of images, a multiple of `batch` times `clients`.
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
