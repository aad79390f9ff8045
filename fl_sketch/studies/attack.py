"""An attack on an own config: images found again from what its clients would send.

The model has fresh weights, where gradients say most. Every image is the whole data of
one client, which sends the first message of a round of the config's algorithm, through
its sketch, compressor and mechanism. The attacker knows the round's key, or with
`known_key=False` another one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import engine, files, validate
from fl_sketch.algorithms import catalog
from fl_sketch.audit import gradient_inversion as inversion
from fl_sketch.audit import likeness
from fl_sketch.config import choices
from fl_sketch.data.examples import Examples, normalise
from fl_sketch.keys import Purpose, apart, round_keys
from fl_sketch.protocols import Algorithm, Key, Keys, Message, Server
from fl_sketch.run.program import Program, prepare
from fl_sketch.sweep.ranking import named
from fl_sketch.sweep.standings import half_width

VISIBLE = 20.0  # decibels from which a person sees what an image shows
LABELS = ("given", "tried")


class Attack(NamedTuple):
    """What the attacker does and knows.

    Attributes:
      images: the number of images attacked, the first of the test set.
      batch: the number of images of a client.
      clients: the number of clients of whose messages only the mean is seen.
      optimizer: one of `gradient_inversion.OPTIMIZERS`.
      steps: the number of iterations.
      rate: the rate of gd and adam.
      restarts: the number of starts, of which the best is taken.
      smoothness: the weight of the total variation.
      labels: "given", or "tried": all of them, and the best taken; for one image.
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
    labels: str = "given"
    known_key: bool = True


class Result(NamedTuple):
    """What came of it.

    Attributes:
      true: the images, shape=(images, height, width, channels).
      found: what the attacker has of them.
      mismatch: `|m(z) - s|^2 / |s|^2` of these, shape=(attacks,).
      curve: what was minimised, in every iteration, shape=(attacks, steps).
      psnr: the PSNR of every image, in decibels.
      ssim: the SSIM of every image.
      mse: the mean squared error of every image.
      guess: the PSNR of the mean training image, as a guess at every image.
    """

    true: np.ndarray
    found: np.ndarray
    mismatch: np.ndarray
    curve: np.ndarray
    psnr: np.ndarray
    ssim: np.ndarray
    mse: np.ndarray
    guess: np.ndarray


class Scene(NamedTuple):
    """A config and what is attacked of it.

    Attributes:
      program: the program of the config.
      algorithm: the algorithm of the config.
      silent: the same without noise, which the attacker does not know.
      server: what clients fetch: fresh weights.
      key: the key of the run.
      images: what is true, shape=(attacks, images, height, width, channels).
      targets: their labels, shape=(attacks, images).
      clients: the number of clients of an attack, whose images are as many.
      steps: the number of a client's steps.
    """

    program: Program
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
    program = prepare(config, data_dir)
    test = program.splits.test
    if test.inputs.ndim != 4:
        msg = f"Expected images to attack, got data.name={config.data.name}."
        raise ValueError(msg)
    attacks = images // (batch * clients)
    validate.at_most(len(test.inputs), "the test images", images=images)
    true = np.asarray(normalise(jnp.asarray(test.inputs[:images])))
    numbers, key = choices.numbers_of(config), jax.random.key(config.seed)
    return Scene(
        program,
        program.algorithm(numbers),
        program.algorithm(numbers, noisy=False),
        jax.jit(lambda: program.start(numbers, key).server)(),
        key,
        true.reshape(attacks, -1, *true.shape[1:]),
        np.asarray(test.targets[:images]).reshape(attacks, -1),
        clients,
        config.client.steps,
    )


def run(config: ConfigDict, attack: Attack, data_dir: str | None = None) -> Result:
    """Returns what an attack on a config finds.

    Args:
      config: the config whose messages are attacked.
      attack: what the attacker does and knows.
      data_dir: the folder of raw data sets.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line.
    """
    validate.at_least_one(steps=attack.steps, restarts=attack.restarts)
    validate.one_of(LABELS, labels=attack.labels)
    together = attack.batch * attack.clients
    if attack.labels == "tried" and together > 1:
        msg = "Expected batch=1 and clients=1 for labels='tried', got "
        raise ValueError(msg + f"batch={attack.batch} and clients={attack.clients}.")
    if not attack.known_key and has_one_key(config):
        msg = (
            "Expected hashes that change from round to round for known_key=False, got "
            f"algorithm={config.algorithm} with sketch.stored={config.sketch.stored}."
        )
        raise ValueError(msg)
    scene = scene_of(
        config,
        data_dir,
        images=attack.images,
        batch=attack.batch,
        clients=attack.clients,
    )
    found = _attacked(scene, attack)
    guessed = np.asarray(found.inputs)
    if together > 1:
        pairs = zip(scene.images, guessed, strict=True)
        guessed = np.stack([g[likeness.assignment(t, g)] for t, g in pairs])
    true = scene.images.reshape(-1, *scene.images.shape[2:])
    guessed = guessed.reshape(true.shape)
    train = scene.program.splits.train.inputs
    mean = np.asarray(normalise(jnp.asarray(train))).mean(0)
    pairs = list(zip(true, guessed, strict=True))
    return Result(
        true,
        np.clip(guessed, 0, 1),
        np.asarray(found.mismatch),
        np.asarray(found.curve),
        np.array([likeness.psnr(a, b) for a, b in pairs]),
        np.array([likeness.ssim(a, b) for a, b in pairs]),
        np.array([likeness.mse(a, b) for a, b in pairs]),
        np.array([likeness.psnr(a, mean) for a in true]),
    )


def has_one_key(config: ConfigDict) -> bool:
    """Returns whether all hashes of `config` come from one key that is in the code."""
    return config.sketch.stored or catalog.method(config.algorithm).one_key


def _attacked(scene: Scene, attack: Attack) -> inversion.Found:
    classes = scene.program.splits.classes

    def one(images, targets, number):
        keys = scene.keys(number)
        guessed_keys = scene.keys(number, known=attack.known_key)
        seen = scene.seen(images, keys, targets)

        def from_start(start, labels):
            return inversion.invert(
                scene.view(guessed_keys, labels),
                seen,
                start,
                optimizer=attack.optimizer,
                steps=attack.steps,
                rate=attack.rate,
                smoothness=attack.smoothness,
            )

        start_key = jax.random.fold_in(scene.attacker, number)
        begin = inversion.starts(start_key, images.shape, attack.restarts)
        labels = targets[None]
        if attack.labels == "tried":
            labels = jnp.arange(classes, dtype=targets.dtype)[:, None]
        tries = [jnp.repeat(begin, len(labels), 0), jnp.tile(labels, (len(begin), 1))]
        return inversion.best_of(jax.lax.map(lambda own: from_start(*own), tries))

    mapped = inversion.mapped(one, scene.program.mesh, engine.AXIS)
    numbers = jnp.arange(len(scene.images))
    return jax.jit(mapped)(scene.images, scene.targets, numbers)


def row(result: Result) -> dict[str, Any]:
    """Returns the numbers of `result`: medians and means with Student's intervals.

    These are over attacks: the images of a batch are found or missed together.
    """

    def half_widths(values):
        return half_width(values.reshape(len(result.mismatch), -1).mean(1).tolist())

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
        "recovered": float(np.mean(result.psnr >= VISIBLE)),
    }


def verdict(found: Mapping[str, Any]) -> str:
    """Returns what the numbers `found`, made by `row`, mean, in a line."""
    share = f"{100 * found['recovered']:.0f}% of {found['images']} images"
    numbers = (
        f"median PSNR {found['psnr_median']:.1f} dB, SSIM {found['ssim_mean']:.2f}; "
        f"guessing the mean image: {found['guess_psnr']:.1f} dB"
    )
    if found["recovered"] > 0:
        return f"LEAKS: {share} can be seen ({VISIBLE:g} dB or more). {numbers}"
    if found["psnr_median"] > found["guess_psnr"] + 1:
        return f"LEAKS SOMETHING: better than guessing. {numbers}"
    return f"this attack found no more than a guess would. {numbers}"


def draw(results: Mapping[str, Result], path, most: int = 8) -> None:
    """Draws images, true ones first, and what was found with every setting.

    Args:
      results: what came of the attacks on each setting, by its name.
      path: the path of the picture.
      most: the number of images to draw, the first ones, if there are so many.
    """
    from matplotlib.figure import Figure  # takes a second to import

    first = next(iter(results.values()))
    columns = min(most, len(first.true))
    rows: Sequence[tuple[str, np.ndarray]] = [("true", first.true)]
    rows = [*rows, *((name, result.found) for name, result in results.items())]
    figure = Figure(
        figsize=(1.1 * columns + 1.5, 1.15 * len(rows)), layout="constrained"
    )
    panels = figure.subplots(len(rows), columns, squeeze=False)
    for line, (name, images) in zip(panels, rows, strict=True):
        for panel, image in zip(line, images, strict=False):
            panel.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=1)
            panel.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    files.write_figure(path, figure)


def draw_curves(rows: Sequence[Mapping[str, Any]], path) -> None:
    """Draws PSNR against every key that takes several numbers, if any does.

    A line for each setting of all other keys; the range is the interval of the mean.
    Each of the `rows` has the keys of a setting, and then its numbers as in `row`.
    Without such a key there is no picture at `path`.
    """
    from matplotlib.figure import Figure  # takes a second to import

    names = list(rows[0])  # the keys of a setting, then its numbers
    keys = names[: names.index("images")]
    swept = [key for key in keys if len({row[key] for row in rows}) > 1]
    drawn = [key for key in swept if isinstance(rows[0][key], int | float)]
    if not drawn:
        return
    figure = Figure(figsize=(5 * len(drawn), 4), layout="constrained")
    panels = figure.subplots(1, len(drawn), squeeze=False)[0]
    for panel, key in zip(panels, drawn, strict=True):
        lines: dict[str, list] = {}
        for row in sorted(rows, key=lambda row: row[key]):
            rest = {other: row[other] for other in swept if other != key}
            lines.setdefault(named(rest), []).append(row)
        for name, own in lines.items():
            means = [row["psnr_mean"] for row in own]
            around = [row["psnr_half_width"] for row in own]
            panel.errorbar([row[key] for row in own], means, around, label=name or None)
        panel.axhline(rows[0]["guess_psnr"], ls="--", color="grey", label="a guess")
        panel.set(xlabel=key, ylabel="PSNR")
        if min(row[key] for row in rows) > 0:
            panel.set_xscale("log")
        panel.legend(fontsize="small")
    files.write_figure(path, figure)
