"""Theorem 7.5 on a config: its rate, and the measured rate.

The theorem is about plain gradient descent on `|m(z) - s|^2`. Its constants are
measured around the true images, in a ball where descent starts and stays, and descent
has the step that the theorem admits. If the constants give no bound, or a step too
short for float32, gamma is 0 or tiny.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import channels
from fl_sketch.algorithms import catalog
from fl_sketch.algorithms.fetchsgd import with_its_hashes
from fl_sketch.audit import leakage_theory as theory
from fl_sketch.audit.leakage_theory import Singular
from fl_sketch.config import arguments
from fl_sketch.core import trees
from fl_sketch.experiments.attack_scene import Scene, scene_of

SPREAD = 0.05  # of the start and of the points, around the true pixels
POINTS = 4  # at which constants are taken
ROUNDING = 1e-7  # of |s|^2: below, float32 is off by a hundredth of a step's share
MOST = 2048  # numbers of a message up to which R^T's singular values are found


class Row(NamedTuple):
    """One image's constants and rates.

    Attributes:
      numbers: the length of the message.
      hessian_1, hessian_2: the range of the singular values of the pseudo-Hessian, the
        Jacobian of the unsketched message by the pixels.
      gamma_1, gamma_2: that of R^T; NaN for messages beyond `MOST`.
      sigma_1, sigma_2: that of the Jacobian of the message.
      bend: the Lipschitz constant of that Jacobian.
      printed: gamma by the constants of Theorem 7.8 as printed; NaN where gamma_1 is.
      step: the step that the constants of `leakage_theory.near` admit.
      promised: gamma by these: L falls to (1 - gamma) L or below in every step.
      measured: the smallest fraction of L that a step removed.
      fell: L at the end divided by L at the start.
    """

    image: int
    numbers: int
    hessian_1: float
    hessian_2: float
    gamma_1: float
    gamma_2: float
    sigma_1: float
    sigma_2: float
    bend: float
    printed: float
    step: float
    promised: float
    measured: float
    fell: float


def rows(
    config: ConfigDict,
    data_dir: str | None = None,
    *,
    images: int,
    steps: int = 300,
) -> list[Row]:
    """Returns a row for each of the first test images, after `steps` of descent."""
    scene = scene_of(config, data_dir, images=images)
    programs = _programs(scene, steps)
    return [
        _row(scene, *programs, _of_sketch(config, scene, number), number)
        for number in range(images)
    ]


def _of_sketch(config: ConfigDict, scene: Scene, number: int) -> Singular:
    """Returns gamma_1 and gamma_2, which are 1 without a sketch."""
    method = catalog.method(config.algorithm)
    if "sketch" not in method.takes or config.sketch.operator == "identity":
        return Singular(1.0, 1.0)
    params = scene.server.params
    op = arguments.sketch_of(config, trees.size(params))
    if method.one_key:
        op = with_its_hashes(op)
    if op.size(params) > MOST:
        return Singular(math.nan, math.nan)
    return theory.of_sketch(op, scene.keys(number).shared, params)


def _row(scene: Scene, around, descended, sketch: Singular, number: int) -> Row:
    true = jnp.asarray(scene.images[number])
    noise = jax.random.normal(
        jax.random.fold_in(scene.attacker, number), (POINTS, *true.shape)
    )
    points = jnp.concatenate([true[None], true + SPREAD * noise])
    seen, first, maps, whole = around(number, points)
    message, bend = theory.singular_values(maps), theory.bend(maps, points)
    hessian = theory.singular_values(whole)
    rate = theory.near(message, bend, start=float(jnp.sum((first - seen) ** 2)))
    values = np.asarray(descended(number, seen, points[1], rate.step), np.float64)
    falling = values[1:] > ROUNDING * float(jnp.sum(seen**2))
    taken = 1 - values[1:][falling] / values[:-1][falling]
    return Row(
        number,
        seen.size,
        *hessian,
        *sketch,
        *message,
        bend,
        theory.printed(hessian, sketch).gamma,
        rate.step,
        rate.gamma,
        float(taken.min()) if taken.size else math.nan,
        float(values[-1] / values[0]),
    )


def _programs(scene: Scene, steps: int):
    """Returns the two programs of a row, compiled once for all images."""
    whole = scene.silent._replace(uplink=channels.exact())
    unsketched = scene._replace(silent=whole)

    def view_of(scene: Scene, number):
        view = scene.view(scene.keys(number), jnp.asarray(scene.targets)[number])
        return lambda z: trees.ravel(view(z))

    @jax.jit
    def around(number, points):
        """Returns two points' messages, all Jacobians, and the unsketched ones."""
        view = view_of(scene, number)
        seen, first = jax.lax.map(view, points[:2])
        maps = theory.jacobians(view, points)
        return seen, first, maps, theory.jacobians(view_of(unsketched, number), points)

    @jax.jit
    def descended(number, seen, start, step):
        """Returns L before each step."""
        view = view_of(scene, number)

        def descend(z, _):
            now, slope = jax.value_and_grad(lambda z: jnp.sum((view(z) - seen) ** 2))(z)
            return z - step * slope, now

        return jax.lax.scan(descend, start, length=steps)[1]

    return around, descended


def line(row: Row) -> str:
    """Returns `row` as a sentence."""
    return (
        f"image {row.image}: singular values of the Jacobian {row.sigma_1:.3g} to "
        f"{row.sigma_2:.3g}; a step of {row.step:.3g} lowers L by a share of "
        f"{row.promised:.3g} in theory, at least {row.measured:.3g} measured; with the "
        f"constants of the paper: {row.printed:g}"
    )
