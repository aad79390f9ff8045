"""An attack on a config: images recovered from what its clients would send.

The model has fresh weights, where gradients tell most. Every image is all the data of
one client, which sends the first message of a round of the config's algorithm, through
its sketch, compressor and mechanism. The attacker knows the round's key, or with
`known_key=False` another one. Without a prior it looks for any images that explain the
message; with one, for the most probable images.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from fl_sketch.algorithms import catalog
from fl_sketch.audit import inversion
from fl_sketch.audit.devices import on_all
from fl_sketch.channels import player
from fl_sketch.config import parse, privacy
from fl_sketch.core import trees, validate
from fl_sketch.core.constants import jitted
from fl_sketch.core.keys import Purpose, apart, round_keys
from fl_sketch.core.protocols import Algorithm, Coded, Key, Keys, Message, Round, Server
from fl_sketch.data.examples import Examples, normalise
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.workdir.tables import half_width

VISIBLE = 20.0  # decibels from which a person sees what an image shows
LABELS = ("given", "tried")
PRIORS = ("none", "gaussian")
LEAST_RATE = 1e-12  # of gd and adam


class Attack(NamedTuple):
    """What the attacker does and knows; each is a flag of `launch.attack`.

    The prior "gaussian" is the size of the noise and the mean and covariance of the
    training images; the mean image is one more start.
    """

    images: Annotated[int, "Number of images to attack."] = 20
    batch: Annotated[int, "Images per client."] = 1
    clients: Annotated[
        int, "Clients of whom the attacker sees only the mean message."
    ] = 1
    optimizer: Annotated[str, "Optimizer of the attacker.", inversion.OPTIMIZERS] = (
        "lbfgs"
    )
    steps: Annotated[int, "Iterations of the attacker."] = 300
    rate: Annotated[float, "Learning rate of gd and adam."] = 0.1
    smoothness: Annotated[float, "Weight of the total variation prior; try 0.001."] = (
        0.0
    )
    prior: Annotated[
        str,
        "With gaussian, the attacker knows the noise level and how images look.",
        PRIORS,
    ] = "none"
    labels: Annotated[
        str, "Whether the attacker knows the labels or tries all of them.", LABELS
    ] = "given"
    known_key: Annotated[
        bool, "Whether the attacker knows the hashes of the sketch."
    ] = True


class Result(NamedTuple):
    """The result of an attack; measures are those of every image."""

    true: np.ndarray  # [images, height, width, channels]
    found: np.ndarray
    mismatch: np.ndarray  # `|m(z) - s|^2 / |s|^2`, of every attack
    psnr: np.ndarray  # in decibels
    ssim: np.ndarray
    mse: np.ndarray
    baseline_psnr: np.ndarray  # that of the mean training image
    epsilon: float | None  # of one round of the config; None without noise


class Problem(NamedTuple):
    """A config and what is attacked of it."""

    setup: Setup
    algorithm: Algorithm
    noiseless: Algorithm  # the attacker does not know the noise
    server: Server  # what clients download: fresh weights
    key: Key  # of the run
    images: np.ndarray  # [attacks, images, height, width, channels]
    targets: np.ndarray  # [attacks, images]
    clients: int  # of an attack, with as many images each

    @property
    def attacker(self) -> Key:
        """The attacker's own key."""
        return apart(self.key, Purpose.ATTACK)

    def keys(self, number: jax.typing.ArrayLike, *, known: bool = True) -> Keys:
        """Returns the keys of attack `number`, or if not `known` the attacker's guess.

        Every attack is in a separate round with its own hashes and noise, so attacks
        are independent.
        """
        return round_keys(self.key if known else self.attacker, number, number)

    def view(self, keys: Keys, labels: jax.Array) -> inversion.View:
        """Returns images -> their message before noise, for the attacker's guesses."""
        return self._sum_of_messages(self.noiseless, keys, labels)

    def seen(self, images: jax.Array, keys: Keys, labels: jax.Array) -> Message:
        """Returns the message that the attacker sees, with all its noise.

        The `images` of all clients in order, `keys` and `labels` are the true ones.
        """
        message = self._sum_of_messages(self.algorithm, keys, labels)(images)
        return inversion.released(self.algorithm, message, keys)

    def deviations(self, keys: Keys) -> jax.Array:
        """Returns the standard deviation of the noise on every entry that is seen.

        It is derived from the config: the noise of the mechanism, or that of every
        local step through the rate, the steps and the sketch of the round's `keys`. The
        effect of one step's noise on later gradients is ignored, so it is exact for one
        step, and to first order in the rate for several.
        """
        config, guarantee = self.setup.config, self.setup.experiment.guarantee
        z = guarantee.noise_multiplier if guarantee else 0.0
        scale, params = z * config.privacy.threshold, self.server.params
        uplink, zeros = self.noiseless.uplink, jax.tree.map(jnp.zeros_like, params)
        arguments = zeros, uplink.init(params), keys, Round(self.server.round)
        sent = player.play(uplink, arguments).sent
        if not (scale and privacy.protection_of(config).local):
            message = jax.eval_shape(lambda: player.message(sent))
            return jnp.full(trees.size(message), scale)
        if isinstance(sent, Coded):
            msg = "Expected a linear channel with this noise, got a compressor."
            raise ValueError(msg)
        batch = self.images.shape[1] // self.clients
        drawn = config.client.steps * self.clients
        value, linear = player.parts(sent)
        scale *= config.client.rate / batch * math.sqrt(drawn)
        return scale * inversion.row_norms(linear, value)

    def _sum_of_messages(self, algorithm: Algorithm, keys: Keys, labels):
        steps = self.setup.config.client.steps

        def message(client):
            number, inputs, labels = client
            own = keys._replace(own=jax.random.fold_in(keys.own, number))

            def batches(inputs):  # the same in every step
                leaves = Examples(inputs, labels)
                return jax.tree.map(
                    lambda leaf: jnp.broadcast_to(leaf, (steps, *leaf.shape)), leaves
                )

            return inversion.client_view(algorithm, self.server, own, batches)(inputs)

        def total(inputs):
            split = (self.clients, -1)
            clients = (
                jnp.arange(self.clients),
                inputs.reshape(*split, *inputs.shape[1:]),
                labels.reshape(split),
            )
            # One by one: batches of kernels make convolutions slow on a CPU.
            messages = jax.lax.map(message, clients)
            return jax.tree.map(lambda leaf: leaf.sum(0), messages)

        return total


def problem_of(
    config: ConfigDict,
    data_dir: str | None,
    *,
    images: int,
    batch: int = 1,
    clients: int = 1,
) -> Problem:
    """Returns a config with the first of its test images split among clients."""
    validate.at_least_one(images=images, batch=batch, clients=clients)
    if config.client.epochs:
        msg = "Expected client.epochs=0 to attack, whose messages are of client.steps, "
        raise ValueError(msg + f"got epochs={config.client.epochs}.")
    if images % (batch * clients):
        msg = f"Expected images to be a multiple of batch={batch} times "
        raise ValueError(msg + f"clients={clients}, got images={images}.")
    setup = prepare(config, data_dir)
    test = setup.splits.test
    if test.inputs.ndim != 4:
        msg = f"Expected images to attack, got data.name={config.data.name}."
        raise ValueError(msg)
    validate.at_most(len(test.inputs), "the test images", images=images)
    attacks = images // (batch * clients)
    true = np.asarray(normalise(jnp.asarray(test.inputs[:images])))
    numbers, key = parse.hyperparameters_of(config), jax.random.key(config.seed)
    return Problem(
        setup,
        setup.experiment.noisy(numbers),
        setup.algorithm(numbers, 0.0),
        jax.jit(lambda: setup.experiment.start(numbers, key).server)(),
        key,
        true.reshape(attacks, -1, *true.shape[1:]),
        np.asarray(test.targets[:images]).reshape(attacks, -1),
        clients,
    )


def run(config: ConfigDict, attack: Attack, data_dir: str | None = None) -> Result:
    """Returns the result of an attack on a config."""
    validate.at_least_one(steps=attack.steps)
    validate.in_range(LEAST_RATE, math.inf, rate=attack.rate)
    validate.in_range(0, math.inf, smoothness=attack.smoothness)
    if attack.smoothness and attack.prior != "none":
        msg = "Expected smoothness=0 or prior=none, got "
        raise ValueError(msg + f"smoothness={attack.smoothness}, prior={attack.prior}.")
    if attack.labels == "tried" and attack.batch * attack.clients > 1:
        msg = "Expected batch=1 and clients=1 for labels='tried', got "
        raise ValueError(msg + f"batch={attack.batch} and clients={attack.clients}.")
    one_key = config.sketch.stored or catalog.method(config.algorithm).one_key
    if not attack.known_key and one_key:
        msg = (
            "Expected hashes that change from round to round for known_key=False, got "
            f"algorithm={config.algorithm} with sketch.stored={config.sketch.stored}."
        )
        raise ValueError(msg)
    split = {"batch": attack.batch, "clients": attack.clients}
    problem = problem_of(config, data_dir, images=attack.images, **split)
    train = np.asarray(normalise(jnp.asarray(problem.setup.splits.train.inputs)))
    best = reconstruct(problem, attack, train)
    found = np.asarray(best.inputs)
    if found.shape[1] > 1:  # the order within a batch is unknown
        pairs = zip(problem.images, found, strict=True)
        found = np.stack([own[inversion.assignment(true, own)] for true, own in pairs])
    true = problem.images.reshape(-1, *problem.images.shape[2:])
    found = found.reshape(true.shape)
    mean, guarantee = train.mean(0), problem.setup.experiment.guarantee
    measures = {"psnr": inversion.psnr, "ssim": inversion.ssim, "mse": inversion.mse}
    return Result(
        true=true,
        found=np.clip(found, 0, 1),
        mismatch=np.asarray(best.mismatch),
        baseline_psnr=np.array([inversion.psnr(image, mean) for image in true]),
        epsilon=guarantee and guarantee.epsilon(1),
        **{n: np.array([*map(of, true, found)]) for n, of in measures.items()},
    )


def reconstruct(problem: Problem, attack: Attack, train: np.ndarray) -> inversion.Found:
    """Returns the best inputs of every attack; `train` are the images of a prior."""
    classes, shape = problem.setup.splits.classes, problem.images.shape[1:]
    how = {"optimizer": attack.optimizer, "steps": attack.steps, "rate": attack.rate}
    prior = inversion.prior_of(train) if attack.prior == "gaussian" else None

    def one(images, targets, number):
        seen = problem.seen(images, problem.keys(number), targets)
        keys = problem.keys(number, known=attack.known_key)
        noise = problem.deviations(keys) if prior else None

        def search(start, labels):
            view, weight = problem.view(keys, labels), attack.smoothness
            if prior is None or noise is None:
                return inversion.invert(view, seen, start, smoothness=weight, **how)
            return inversion.most_probable(view, seen, noise, prior, start, **how)

        own = jax.random.fold_in(problem.attacker, number)
        begin, labels = inversion.starts(own, shape, prior), targets[None]
        if attack.labels == "tried":
            labels = jnp.arange(classes, dtype=targets.dtype)[:, None]
        tries = [jnp.repeat(begin, len(labels), 0), jnp.tile(labels, (len(begin), 1))]
        return inversion.best_of(jax.lax.map(lambda pair: search(*pair), tries))

    numbers = jnp.arange(len(problem.images))
    every = jitted(on_all(one, problem.setup.mesh))
    return every(problem.images, problem.targets, numbers)


def row(result: Result) -> dict[str, Any]:
    """Returns the row of a result: medians, and means with Student's intervals.

    The intervals are over attacks, since the images of a batch are not independent.
    """

    def interval(values):
        return half_width(values.reshape(len(result.mismatch), -1).mean(1).tolist())

    gain = result.psnr - result.baseline_psnr
    return {
        "images": len(result.psnr),
        "psnr_median": float(np.median(result.psnr)),
        "psnr_mean": float(result.psnr.mean()),
        "psnr_half_width": interval(result.psnr),
        "ssim_mean": float(result.ssim.mean()),
        "ssim_half_width": interval(result.ssim),
        "mse_mean": float(result.mse.mean()),
        "mismatch_median": float(np.median(result.mismatch)),
        "guess_psnr": float(np.median(result.baseline_psnr)),
        "guess_mean": float(result.baseline_psnr.mean()),
        "over_guess_mean": float(gain.mean()),
        "over_guess_half_width": interval(gain),
        "recovered": float(np.mean(result.psnr >= VISIBLE)),
        "epsilon": "" if result.epsilon is None else result.epsilon,
    }


def verdict(row: Mapping[str, Any]) -> str:
    """Returns the conclusion from a `row`, in a line."""
    share = f"{100 * row['recovered']:.0f}% of {row['images']} images"
    numbers = (
        f"median PSNR {row['psnr_median']:.1f} dB, SSIM {row['ssim_mean']:.2f}; "
        f"guessing the mean image: {row['guess_psnr']:.1f} dB"
    )
    if row["recovered"] > 0:
        return f"LEAKS: {share} can be seen ({VISIBLE:g} dB or more). {numbers}"
    above = row["psnr_median"] > row["guess_psnr"] + 1
    if above or row["over_guess_mean"] > row["over_guess_half_width"]:
        return f"LEAKS SOMETHING: better than guessing. {numbers}"
    return f"this attack found no more than a guess would. {numbers}"
