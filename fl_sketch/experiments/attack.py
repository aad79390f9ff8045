"""An attack on a config: images recovered from what its clients would send.

The model has fresh weights, where gradients tell most. Every image is all the data of
one client, which sends the first message of a round of the config's algorithm, through
its sketch, compressor and mechanism. The attacker knows the round's key, or with
`known_key=False` another one. Without a prior it looks for any images that explain the
message; with one, for the most probable images.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.algorithms import catalog
from fl_sketch.audit import gradient_inversion as inversion
from fl_sketch.audit import likeness, posterior
from fl_sketch.core import validate
from fl_sketch.data.examples import normalise
from fl_sketch.experiments.attack_scene import Scene, scene_of
from fl_sketch.workdir.tables import half_width

VISIBLE = 20.0  # decibels from which a person sees what an image shows
LABELS = ("given", "tried")
PRIORS = ("none", "gaussian")


class Attack(NamedTuple):
    """What the attacker does and knows.

    Attributes:
      images: the number of images, the first of the test set.
      batch: the number of images of a client.
      clients: the number of clients, of whose messages only the mean is seen.
      optimizer: one of `gradient_inversion.OPTIMIZERS`.
      steps: the number of iterations.
      rate: the rate of gd and adam.
      restarts: the number of random starts, of which the best counts.
      smoothness: the weight of the total variation.
      prior: "none", or "gaussian": the size of the noise and the mean and covariance of
        the training images are known, and the mean image is one more start.
      labels: "given", or "tried": all labels, of which the best counts, for one image.
      known_key: whether the attacker has the round's key.
    """

    images: int = 20
    batch: int = 1
    clients: int = 1
    optimizer: str = "lbfgs"
    steps: int = 300
    rate: float = 0.1
    restarts: int = 1
    smoothness: float = 0.0
    prior: str = "none"
    labels: str = "given"
    known_key: bool = True


class Result(NamedTuple):
    """The result of an attack.

    Attributes:
      true: the images, shape=(images, height, width, channels).
      found: the attacker's images.
      mismatch: `|m(z) - s|^2 / |s|^2`, shape=(attacks,).
      curve: the objective in every iteration, shape=(attacks, steps).
      psnr: the PSNR of every image, in decibels.
      ssim: the SSIM of every image.
      mse: the mean squared error of every image.
      guess: the PSNR of the mean training image, as a guess at every image.
      epsilon: the epsilon of one round of the config; None without noise.
    """

    true: np.ndarray
    found: np.ndarray
    mismatch: np.ndarray
    curve: np.ndarray
    psnr: np.ndarray
    ssim: np.ndarray
    mse: np.ndarray
    guess: np.ndarray
    epsilon: float | None


def run(config: ConfigDict, attack: Attack, data_dir: str | None = None) -> Result:
    """Returns the result of an attack on a config.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line.
    """
    _require(config, attack)
    dealt = {"batch": attack.batch, "clients": attack.clients}
    scene = scene_of(config, data_dir, images=attack.images, **dealt)
    train = np.asarray(normalise(jnp.asarray(scene.setup.splits.train.inputs)))
    found = _attacked(scene, attack, train)
    guesses = np.asarray(found.inputs)
    if guesses.shape[1] > 1:  # the order within a batch is unknown
        pairs = zip(scene.images, guesses, strict=True)
        guesses = np.stack([g[likeness.assignment(t, g)] for t, g in pairs])
    true = scene.images.reshape(-1, *scene.images.shape[2:])
    guesses = guesses.reshape(true.shape)
    mean, guarantee = train.mean(0), scene.setup.guarantee

    def compared(measure):
        return np.array([measure(a, b) for a, b in zip(true, guesses, strict=True)])

    return Result(
        true,
        np.clip(guesses, 0, 1),
        np.asarray(found.mismatch),
        np.asarray(found.curve),
        compared(likeness.psnr),
        compared(likeness.ssim),
        compared(likeness.mse),
        np.array([likeness.psnr(image, mean) for image in true]),
        guarantee and guarantee.epsilon(1),
    )


def _require(config: ConfigDict, attack: Attack) -> None:
    """Raises for an impossible attack, or one that proves nothing about this config."""
    validate.at_least_one(steps=attack.steps, restarts=attack.restarts)
    validate.one_of(LABELS, labels=attack.labels)
    validate.one_of(PRIORS, prior=attack.prior)
    if attack.smoothness and attack.prior != "none":
        msg = "Expected smoothness=0 with a prior that is a distribution, got "
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


def _attacked(scene: Scene, attack: Attack, train: np.ndarray) -> inversion.Found:
    classes, search = scene.setup.splits.classes, _search(scene, attack, train)

    def on_client(images, targets, number):
        keys = scene.keys(number)
        guessed_keys = scene.keys(number, known=attack.known_key)
        seen = scene.seen(images, keys, targets)
        start_key = jax.random.fold_in(scene.attacker, number)
        begin, from_start = search(guessed_keys, seen, start_key)
        labels = targets[None]
        if attack.labels == "tried":
            labels = jnp.arange(classes, dtype=targets.dtype)[:, None]
        tries = [jnp.repeat(begin, len(labels), 0), jnp.tile(labels, (len(begin), 1))]
        return inversion.best_of(jax.lax.map(lambda one: from_start(*one), tries))

    mapped = engine.on_all(on_client, scene.setup.mesh)
    numbers = jnp.arange(len(scene.images))
    return jax.jit(mapped)(scene.images, scene.targets, numbers)


def _search(scene: Scene, attack: Attack, train: np.ndarray):
    """Returns `(keys, seen, key) -> (starts, (start, labels) -> Found)`."""
    shape = scene.images.shape[1:]
    how = {"optimizer": attack.optimizer, "steps": attack.steps, "rate": attack.rate}

    def nearest(keys, seen, key):
        def from_start(start, labels):
            view, weight = scene.view(keys, labels), attack.smoothness
            return inversion.invert(view, seen, start, smoothness=weight, **how)

        return inversion.starts(key, shape, attack.restarts), from_start

    if attack.prior == "none":
        return nearest
    prior = posterior.prior_of(train)

    def most_probable(keys, seen, key):
        deviations = scene.deviations(keys)

        def from_start(start, labels):
            view = scene.view(keys, labels)
            return posterior.most_probable(view, seen, deviations, prior, start, **how)

        return posterior.starts(key, shape, attack.restarts), from_start

    return most_probable


def row(result: Result) -> dict[str, Any]:
    """Returns the numbers of `result`: medians, and means with Student's intervals.

    The intervals are over attacks, since the images of a batch are not independent.
    """

    def half_widths(values):
        return half_width(values.reshape(len(result.mismatch), -1).mean(1).tolist())

    gain = result.psnr - result.guess
    return {
        "images": len(result.psnr),
        "psnr_median": float(np.median(result.psnr)),
        "psnr_mean": float(result.psnr.mean()),
        "psnr_half_width": half_widths(result.psnr),
        "ssim_mean": float(result.ssim.mean()),
        "ssim_half_width": half_widths(result.ssim),
        "mse_mean": float(result.mse.mean()),
        "mismatch_median": float(np.median(result.mismatch)),
        "guess_psnr": float(np.median(result.guess)),
        "guess_mean": float(result.guess.mean()),
        "over_guess_mean": float(gain.mean()),
        "over_guess_half_width": half_widths(gain),
        "recovered": float(np.mean(result.psnr >= VISIBLE)),
        "epsilon": "" if result.epsilon is None else result.epsilon,
    }


def verdict(row: Mapping[str, Any]) -> str:
    """Returns what the numbers of `row` mean, in a line."""
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
