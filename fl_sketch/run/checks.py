"""Checks of the arguments of `simulate`: whether they fit together, in one line."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine
from fl_sketch.core import files, validate
from fl_sketch.core.protocols import Algorithm, Tree
from fl_sketch.data import Clients
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.loop import plain
from fl_sketch.engine.recorder import ABSENCES
from fl_sketch.workdir.rows import value_of

RESERVED = ("round", "epsilon", "delta", "randomness", "rounds_per_second", *ABSENCES)
RESERVED_STARTS = ("train_", "bytes_", "mechanism_")
LONGEST = 200  # characters of a text that `look` returns


def require_made_by(kind: type, how: str, **named: Any) -> None:
    """Raises a TypeError unless every named argument is of a kind, made by `how`."""
    for name, value in named.items():
        if not isinstance(value, kind):
            got = type(value).__name__
            msg = f"Expected {name} to be made by {how}, got {name} of type {got}."
            raise TypeError(msg)


def floats(params: Any) -> Tree:
    """Returns parameters as finite arrays of jax, all of them float32.

    Messages are priced as such, and optimizers keep their moments so.
    """
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    if not leaves:
        msg = f"Expected params to be a tree of float arrays, got {params!r}."
        raise TypeError(msg)
    for path, leaf in leaves:
        dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        where = jax.tree_util.keystr(path) or "the root"
        if jax.dtypes.canonicalize_dtype(dtype, True) != jnp.float32:
            msg = f"Expected params to be a tree of float32, got {dtype} at {where}."
            if jnp.issubdtype(dtype, jnp.floating):
                msg += " A loss may compute in other floats."
            raise TypeError(msg)
        if not np.size(leaf):
            shape = np.shape(leaf)
            msg = f"Expected params without empty arrays, got shape {shape} at {where}."
            raise ValueError(msg)
        if not np.isfinite(leaf).all():
            msg = f"Expected params of finite numbers, got others at {where}."
            raise ValueError(msg)
    return jax.tree.map(jnp.asarray, params)


def sampler_of(cohort: int | Sampler | None, clients: Clients) -> Sampler:
    """Returns the sampler of cohorts: a given one, of a size, or (None) of everyone."""
    population = clients.population
    if cohort is None:
        return engine.everyone(population)
    if not isinstance(cohort, Sampler):
        validate.at_least_one(cohort=cohort)
        validate.at_most(population, "the clients there are", cohort=cohort)
        return engine.fixed_size(population, cohort)
    if cohort.population != population:
        msg = (
            f"Expected cohort to be a sampler of {population} clients, as there are, "
            f"got one of {cohort.population}."
        )
        raise ValueError(msg)
    return cohort


def require_fitting(algorithm: Algorithm, sampler: Sampler) -> None:
    """Raises for a server that is not of optax, or for the noise of other cohorts."""
    if not hasattr(algorithm.server, "update"):
        msg = (
            "Expected the algorithm's server to be an optax transformation, as "
            f"optax.adam(0.01) is, got {algorithm.server!r}."
        )
        raise TypeError(msg)
    mechanism = algorithm.mechanism
    if mechanism and not 0.999 < mechanism.denominator / sampler.size < 1.001:
        msg = (
            f"Expected the mechanism's denominator to be {sampler.size:g}, the clients "
            f"expected in a round of cohort, got denominator={mechanism.denominator:g}."
        )
        raise ValueError(msg)
    if mechanism and mechanism.smallest > sampler.size:
        msg = (
            f"Expected the mechanism's smallest <= {sampler.size:g}, the clients of a "
            f"round, got smallest={mechanism.smallest}."
        )
        raise ValueError(msg)


def require_batches(kind: str, batch: int, clients: Clients) -> None:
    """Raises where the batches of some client would not be what their kind says.

    A client of a private run whose batches are not gets some of its own examples twice,
    or not at all: an error would say how many it has.
    """
    least, most = int(clients.sizes.min()), int(clients.sizes.max())
    if kind == "whole" and not least == most == batch:
        msg = (
            "Expected clients of `batch` examples each with batches='whole', got "
            f"batch={batch} and clients of {least} to {most}."
        )
        raise ValueError(msg)
    if kind == "subsets":
        validate.at_most(least, "the smallest client, with subsets", batch=batch)


@contextlib.contextmanager
def fitting(what: str) -> Iterator[None]:
    """Raises an error in one line for whatever a user's function raises inside."""
    try:
        yield
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        if first.startswith(("Expected", "A server", "Clients")):
            raise
        msg = f"Expected {what} to fit together, got {type(error).__name__}: {first}"
        if type(error).__name__ == "TraceContextError":  # of flax.nnx
            msg += ". A part of the model, such as Dropout or BatchNorm, changes "
            msg += "within a step: docs/models/nnx.md has a form that does not."
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(msg) from error


def require_columns(columns: Any) -> None:
    """Raises unless `look` returned names and values that a csv file gives back."""
    names = [*columns] if isinstance(columns, Mapping) else columns
    if not isinstance(columns, Mapping) or any(map(_reserved, columns)):
        msg = (
            "Expected look to return a dictionary whose names are words without "
            "commas, and not those of other columns (round, epsilon, train_*, "
            f"bytes_*, mechanism_*), got {names!r}."
        )
        raise ValueError(msg)
    for name, value in columns.items():
        one = plain(value)
        text = isinstance(one, str) and one.isprintable() and len(one) <= LONGEST
        if not isinstance(one, int | float) and not (text and value_of(one) == one):
            msg = (
                "Expected look to return numbers, and texts of one line of at most "
                f"{LONGEST} characters that are no numbers, got {name}={one!r}."
            )
            raise ValueError(" ".join(msg.split()))


def _reserved(name: Any) -> bool:
    if not files.is_column(name) or name in RESERVED:
        return True
    return name.startswith(RESERVED_STARTS)
