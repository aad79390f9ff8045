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

from fl_sketch import engine
from fl_sketch.algorithms import catalog
from fl_sketch.audit import gradient_inversion as inversion
from fl_sketch.audit import likeness, posterior
from fl_sketch.core import validate
from fl_sketch.core.constants import jitted
from fl_sketch.data.examples import normalise
from fl_sketch.experiments.attack_scene import Scene, scene_of
from fl_sketch.workdir.tables import half_width

VISIBLE = 20.0  # decibels from which a person sees what an image shows
LABELS = ("given", "tried")
PRIORS = ("none", "gaussian")
SHORTEST = 1e-12  # rate of gd and adam


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
    restarts: Annotated[int, "Random starts per image, of which the best counts."] = 1
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
    """The result of an attack.

    Attributes:
      true: the images, shape=(images, height, width, channels).
      found: the attacker's images.
      mismatch: `|m(z) - s|^2 / |s|^2`, shape=(attacks,).
      psnr: the PSNR of every image, in decibels.
      guess: the PSNR of the mean training image, as a guess at every image.
      epsilon: the epsilon of one round of the config; None without noise.
    """

    true: np.ndarray
    found: np.ndarray
    mismatch: np.ndarray
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
    best = _attacked(scene, attack, train)
    guesses = np.asarray(best.inputs)
    if guesses.shape[1] > 1:  # the order within a batch is unknown
        pairs = zip(scene.images, guesses, strict=True)
        guesses = np.stack([g[likeness.assignment(t, g)] for t, g in pairs])
    true = scene.images.reshape(-1, *scene.images.shape[2:])
    guesses = guesses.reshape(true.shape)
    mean, guarantee = train.mean(0), scene.setup.guarantee
    measures = {"psnr": likeness.psnr, "ssim": likeness.ssim, "mse": likeness.mse}
    return Result(
        true=true,
        found=np.clip(guesses, 0, 1),
        mismatch=np.asarray(best.mismatch),
        guess=np.array([likeness.psnr(image, mean) for image in true]),
        epsilon=guarantee and guarantee.epsilon(1),
        **{n: np.array([*map(of, true, guesses)]) for n, of in measures.items()},
    )


def _require(config: ConfigDict, attack: Attack) -> None:
    """Raises for an impossible attack, or one that proves nothing about this config."""
    validate.at_least_one(steps=attack.steps, restarts=attack.restarts)
    validate.one_of(inversion.OPTIMIZERS, optimizer=attack.optimizer)
    validate.one_of(LABELS, labels=attack.labels)
    validate.one_of(PRIORS, prior=attack.prior)
    validate.in_range(SHORTEST, math.inf, rate=attack.rate)
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


def _attacked(scene: Scene, attack: Attack, train: np.ndarray) -> inversion.Found:
    classes, shape = scene.setup.splits.classes, scene.images.shape[1:]
    how = {"optimizer": attack.optimizer, "steps": attack.steps, "rate": attack.rate}
    prior = posterior.prior_of(train) if attack.prior == "gaussian" else None

    def on_client(images, targets, number):
        seen = scene.seen(images, scene.keys(number), targets)
        keys = scene.keys(number, known=attack.known_key)
        noise = scene.deviations(keys) if prior else None

        def search(start, labels):
            view, weight = scene.view(keys, labels), attack.smoothness
            if prior is None or noise is None:
                return inversion.invert(view, seen, start, smoothness=weight, **how)
            return posterior.most_probable(view, seen, noise, prior, start, **how)

        make = posterior.starts if prior else inversion.starts
        begin = make(jax.random.fold_in(scene.attacker, number), shape, attack.restarts)
        labels = targets[None]
        if attack.labels == "tried":
            labels = jnp.arange(classes, dtype=targets.dtype)[:, None]
        tries = [jnp.repeat(begin, len(labels), 0), jnp.tile(labels, (len(begin), 1))]
        return inversion.best_of(jax.lax.map(lambda pair: search(*pair), tries))

    mapped = engine.on_all(on_client, scene.setup.mesh)
    numbers = jnp.arange(len(scene.images))
    return jitted(mapped)(scene.images, scene.targets, numbers)


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
