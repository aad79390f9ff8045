"""Haddadpour et al.'s Theorem 1 and measurements: privacy of a sketch without noise.

The theorem takes the sketched numbers for independent normal draws, which then hide one
of them. Two worlds differ in one number, -C or C, and an attacker who knows the hashes
sees the sketch. The claim is one epsilon for every delta. Where the other numbers are
no draws but known, nothing hides the one.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import sketch
from fl_sketch.audit import game
from fl_sketch.experiments.verify.rows import Row
from fl_sketch.privacy import literature

ROWS, COLS, LENGTH, SIGMA, BOUND, ALPHA = 1, 3, 4096, 1.0, 2.0, 3.0
DELTA, TRIALS = 1e-5, 4_000_000


def count_sketch(trials: int = TRIALS) -> Iterator[Row]:
    """Yields the row under the theorem's assumption, and that of known numbers."""
    sizes = {"rows": ROWS, "cols": COLS, "length": LENGTH, "alpha": ALPHA}
    claim = literature.count_sketch_claim(**sizes, sigma=SIGMA, bound=BOUND)
    op, hashes = sketch.count_sketch(COLS, ROWS), jax.random.key(0)
    table = jax.vmap(functools.partial(op.apply, hashes))(jnp.eye(LENGTH))
    table = np.asarray(table.reshape(LENGTH, -1), np.float64)
    others = np.linalg.cholesky(table[1:].T @ table[1:])
    for problem, sigma in {"normal numbers": SIGMA, "known numbers": 0.0}.items():
        observe = functools.partial(
            _seen,
            jnp.asarray(BOUND * table[0], jnp.float32),
            jnp.asarray(sigma * others.T, jnp.float32),
        )
        found = game.play(
            observe,
            lambda delta: claim,
            delta=DELTA,
            trials=trials,
            key=jax.random.key(1),
        )
        known = sizes | {"sigma": sigma, "C": BOUND, "delta": f"{found.delta:.2g}"}
        yield Row(
            "Haddadpour 1",
            "count_sketch",
            problem,
            " ".join(f"{name}={value}" for name, value in known.items()),
            "epsilon",
            found.trials,
            np.nan,
            found.most_epsilon,
            claim,
            found.found_epsilon,
            claim / found.found_epsilon if found.found_epsilon else np.inf,
        )


def _seen(one: jax.Array, others: jax.Array, key: Any, present: jax.Array) -> jax.Array:
    """Returns the sketch of a number of either sign and of the other numbers.

    A sketch of normal numbers is normal, with the covariance of its columns.
    """
    hidden = jax.random.normal(key, (1, len(others))) @ others
    return hidden + (2 * present - 1) * one
