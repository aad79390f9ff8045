"""Theorem 7.5 on an own config: the rate it promises, and the rate that is measured.

The theorem is about plain gradient descent on `|m(z) - s|^2`. Its constants are taken
around the true images, in a ball that descent begins in and stays in, and descent is
run with the step that the theorem admits. Where the constants promise nothing, or a
step too short to be seen in float32, the row says so: gamma is 0 or tiny.
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
      image: its number among the test images.
      numbers: the length of the message.
      hessian_1: the pseudo-Hessian's smallest singular value: of the unsketched
        message's Jacobian by the pixels.
      hessian_2: the largest.
      gamma_1: the smallest singular value of R^T; NaN for messages beyond `MOST`.
      gamma_2: the largest.
      sigma_1: the smallest singular value of the message's Jacobian.
      sigma_2: the largest.
      bend: the Lipschitz constant of that Jacobian.
      printed: gamma by the constants of Theorem 7.8 as they are printed; NaN where
        gamma_1 is.
      step: admitted by those of `leakage_theory.near`.
      promised: gamma by them: L falls to (1 - gamma) L or below in every step.
      measured: the least part of L that a step took away.
      fell: L at the end over L at the start.
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
    """Returns a row for each of the first test images.

    Args:
      config: the config whose messages are attacked.
      data_dir: the folder of raw data sets.
      images: the number of images, the first ones.
      steps: the number of steps of gradient descent.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line.
    """
    scene = scene_of(config, data_dir, images=images)
    programs = _programs(scene, steps)
    return [
        _row(scene, *programs, _of_sketch(config, scene, number), number)
        for number in range(images)
    ]


def _of_sketch(config: ConfigDict, scene: Scene, number: int) -> Singular:
    """Returns gamma_1 and gamma_2; 1 for algorithms that have no sketch."""
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
    """Returns what is computed for every image, one program for all of them."""
    whole = scene.silent._replace(uplink=channels.exact())
    unsketched = scene._replace(silent=whole)

    def view_of(own: Scene, number):
        view = own.view(own.keys(number), jnp.asarray(own.targets)[number])
        return lambda z: trees.ravel(view(z))

    @jax.jit
    def around(number, points):
        """Returns two points' messages, and all Jacobians, also the unsketched."""
        view = view_of(scene, number)
        seen, first = jax.lax.map(view, points[:2])
        maps = theory.jacobians(view, points)
        return seen, first, maps, theory.jacobians(view_of(unsketched, number), points)

    @jax.jit
    def descended(number, seen, start, step):
        """Returns L before each step."""
        view = view_of(scene, number)

        def one(z, _):
            now, slope = jax.value_and_grad(lambda z: jnp.sum((view(z) - seen) ** 2))(z)
            return z - step * slope, now

        return jax.lax.scan(one, start, length=steps)[1]

    return around, descended


def line(row: Row) -> str:
    """Returns `row` as a sentence."""
    return (
        f"image {row.image}: Jacobian from {row.sigma_1:.3g} to {row.sigma_2:.3g}; of "
        f"L a step of {row.step:.3g} takes {row.promised:.3g} by theory, "
        f"{row.measured:.3g} or more as measured; with the printed constants: "
        f"{row.printed:g}"
    )
