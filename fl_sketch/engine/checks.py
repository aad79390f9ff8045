"""Checks of the arguments of `simulate`: whether they fit together, in one line."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import validate
from fl_sketch.core.protocols import Algorithm, Tree
from fl_sketch.data import Clients
from fl_sketch.engine import cohort as cohorts
from fl_sketch.engine import ledger, multiprocess
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.costs import Traffic, measure_traffic
from fl_sketch.engine.prices import Prices
from fl_sketch.engine.round import State, initial_state
from fl_sketch.workdir.rows import is_column

BLOCK = 4096  # rows of examples that are looked at together


def require_made_by(kind: type, how: str, **named: Any) -> None:
    """Raises a TypeError unless every named argument is of a kind, made by `how`."""
    for name, value in named.items():
        if not isinstance(value, kind):
            got = type(value).__name__
            msg = f"Expected {name} to be made by {how}, got {name} of type {got}."
            raise TypeError(msg)


def require_functions(of: str, **named: Any) -> None:
    """Raises a TypeError unless every named argument is None or a function of `of`."""
    for name, value in named.items():
        if value is not None and not callable(value):
            msg = f"Expected {name} to be a function of {of}, got {name}={value!r}."
            raise TypeError(msg)


def require_options(
    *, look: Any, on_row: Any, workdir: Any, partition: Any, bar: Any
) -> None:
    """Raises for options of `simulate` that are of another kind."""
    if look is None:
        msg = "Expected look to be a function of params, got look=None."
        raise TypeError(msg)
    require_functions("params", look=look)
    require_functions("a row", on_row=on_row)
    kinds = (
        ("workdir", workdir, str | os.PathLike | None, "the path of a folder"),
        ("partition", partition, str, "a name"),
        ("bar", bar, bool | None, "True, False or None"),
    )
    for name, value, kind, expected in kinds:
        if not isinstance(value, kind):
            msg = f"Expected {name} to be {expected}, got {name}={value!r}."
            raise TypeError(msg)
    if workdir is not None and multiprocess.several():
        msg = f"Expected one process with workdir, got {jax.process_count()}."
        raise ValueError(msg)


def floats(params: Any) -> Tree:
    """Returns parameters as arrays of jax.

    Raises:
      TypeError: for a leaf that is not an array of float32: messages are priced as
        such, and optimizers keep their moments so.
      ValueError: for an array without a number.
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
    return jax.tree.map(jnp.asarray, params)


def sampler_of(cohort: int | Sampler | None, clients: Clients) -> Sampler:
    """Returns the sampler of cohorts: a given one, of a size, or (None) of everyone."""
    population = clients.population
    if cohort is None:
        return cohorts.everyone(population)
    if not isinstance(cohort, Sampler):
        validate.at_least_one(cohort=cohort)
        validate.at_most(population, "the clients there are", cohort=cohort)
        return cohorts.fixed_size(population, cohort)
    if cohort.population != population:
        msg = (
            f"Expected cohort to be a sampler of {population} clients, as there are, "
            f"got one of {cohort.population}."
        )
        raise ValueError(msg)
    return cohort


def devices_of(devices: Sequence[jax.Device] | None) -> list[jax.Device]:
    """Returns the devices that the caller named, or all."""
    if devices is None:
        return jax.devices()
    named = devices if isinstance(devices, Iterable) else ()
    if not named or not all(isinstance(device, jax.Device) for device in named):
        msg = f"Expected devices to be some of jax.devices(), got {devices!r}."
        raise TypeError(msg)
    return list(named)


def require_noise_of(algorithm: Algorithm, noise_multiplier: float) -> None:
    """Raises unless a function of the noise multiplier made this noise of it."""
    mechanism = algorithm.mechanism
    if mechanism and mechanism.noise_multiplier != noise_multiplier:
        msg = (
            "Expected algorithm to be a function that makes noise of the multiplier "
            f"that it is given, {noise_multiplier:g}, got noise_multiplier="
            f"{mechanism.noise_multiplier:g}."
        )
        raise ValueError(msg)


def require_noise(algorithm: Algorithm, target_epsilon: float) -> None:
    """Raises for a target that no noise of the algorithm would keep."""
    mechanism = algorithm.mechanism
    if target_epsilon and not (mechanism and mechanism.noise_multiplier):
        msg = (
            "Expected an algorithm with noise, or a function of the noise multiplier, "
            f"with target_epsilon={target_epsilon}, got noise_multiplier="
            f"{mechanism and mechanism.noise_multiplier}."
        )
        raise ValueError(msg)


def require_measurable(
    per_client: Callable[[Tree, Any], Mapping[str, Any]] | None,
    params: Tree,
    clients: Clients,
    held_out: Clients | None,
) -> None:
    """Raises for a `per_client` that cannot be measured on `held_out`, or `clients`."""
    if held_out is not None:
        require_made_by(Clients, "data.clients", held_out=held_out)
        if held_out.population != clients.population:
            msg = (
                f"Expected held_out of {clients.population} clients, as there are, got "
                f"{held_out.population}."
            )
            raise ValueError(msg)
        ours, theirs = (_shapes((), one.examples) for one in (clients, held_out))
        if ours != theirs:
            msg = f"Expected held_out of examples like {ours}, got {theirs}."
            raise ValueError(" ".join(msg.split()))
    if per_client is None:
        if held_out is not None:
            msg = "Expected per_client, to measure on held_out, got none."
            raise ValueError(msg)
        return
    require_functions("params and an example", per_client=per_client)
    example = _shapes((), (held_out or clients).examples)
    with _fitting("per_client, params and clients"):
        result: Any = jax.eval_shape(per_client, params, example)
    numbers = isinstance(result, Mapping) and all(
        is_column(name) and getattr(value, "shape", None) == ()
        for name, value in result.items()
    )
    if not numbers:
        msg = (
            "Expected per_client to return a dictionary of numbers of one example, got "
            f"{result!r}."
        )
        raise ValueError(" ".join(msg.split()))


def _shapes(lead: tuple[int, ...], examples: Any) -> Any:
    """Returns the shapes of examples on a device, with leading axes."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            (*lead, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype)
        ),
        examples,
    )


def require_fitting(algorithm: Algorithm, sampler: Sampler) -> None:
    """Raises for an algorithm that does not fit its cohorts.

    Raises:
      TypeError: for a server that is no optax transformation.
      ValueError: for a mechanism made for cohorts of another size.
    """
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


def require_cohorts(traffic: Traffic, sampler: Sampler) -> None:
    """Raises for cohorts of which states of clients or of the server are not true.

    Of a client that is drawn twice only one state would be kept, and a server that
    remembers all clients must know the weight of all.
    """
    if traffic.stateful and sampler.repeats:
        msg = (
            "Expected cohorts of different clients with an algorithm whose clients "
            "have state, got cohort=with_replacement(...)."
        )
        raise ValueError(msg)
    if traffic.counts and sampler.weight is None and not sampler.whole:
        msg = (
            "Expected cohort to be weighted(..., average=...) with an algorithm whose "
            "server remembers all clients, got weights without their average."
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


def require_finite(clients: Clients) -> None:
    """Raises for an example of a client that is not finite as a float of 32 bits.

    A private run is not checked: such a client has no influence in its rounds, and an
    error would reveal something about it.
    """
    for path, leaf in jax.tree.leaves_with_path(clients.examples):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        for rows in np.array_split(clients.partition.indices, 1 + len(leaf) // BLOCK):
            values = np.asarray(leaf)[rows]
            with np.errstate(over="ignore"):
                held = values.astype(jax.dtypes.canonicalize_dtype(leaf.dtype))
            wrong = np.argwhere(~np.isfinite(held))
            if wrong.size:
                place = tuple(wrong[0])
                msg = (
                    f"Expected finite numbers of 32 bits in examples"
                    f"{jax.tree_util.keystr(path)}, got {values[place]} in row "
                    f"{rows[place[0]]}."
                )
                raise ValueError(msg)


def traffic_of(
    algorithm: Algorithm, params: Tree, clients: Clients, *, steps: int, batch: int
) -> Traffic:
    """Returns the traffic of clients with such examples.

    Raises:
      TypeError, ValueError: if the loss and its arguments do not fit together, caused
        by the error that says where.
    """
    with _fitting("loss, params and clients"):
        batches = _shapes((steps, batch), clients.examples)
        return measure_traffic(algorithm, params, batches)


@contextlib.contextmanager
def _fitting(what: str) -> Iterator[None]:
    """Raises an error in one line for whatever a user's function raises inside."""
    try:
        yield
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        if first.startswith("Expected"):
            raise
        msg = f"Expected {what} to fit together, got {type(error).__name__}: {first}"
        if type(error).__name__ == "TraceContextError":  # of flax.nnx
            msg += ". A part of the model, such as Dropout or BatchNorm, changes "
            msg += "within a step: docs/models/nnx.md has a form that does not."
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(msg) from error


def book_to_go_on(price: Prices, standing: Any, population: int) -> ledger.Ledger:
    """Returns the ledger with which a run continues, or an empty one.

    A client that replays the server's steps downloads what it missed, including
    messages of rounds before this call. A client that did not replay them lacks the
    server's moments. It counts as new if it now does.

    Raises:
      ValueError: if clients would fetch what was not sent.
    """
    if standing is None:
        return ledger.empty(population)
    before, book = standing.prices, jax.tree.map(np.copy, standing.ledger)
    if price.followed and not before.followed:
        book.last[:], book.heard[:] = -1, 0
    if price.followed and price.follow != before.follow:
        msg = (
            "Expected messages of as many bytes as in the rounds before, since who "
            f"follows fetches what it missed, got {price.follow.missed} instead of "
            f"{before.follow.missed} a round: download='model' needs none of them."
        )
        raise ValueError(msg)
    return book


def begun(algorithm: Algorithm, params: Tree, population: int, standing: Any) -> State:
    """Returns the first state, or a copy of that of an earlier run.

    Args:
      params: the first model; of an earlier run only the shapes are read.

    Raises:
      ValueError: for the state of another algorithm, model or population, or a first
        model with a NaN.
    """
    if standing is None:
        for path, leaf in jax.tree.leaves_with_path(params):
            if not np.isfinite(leaf).all():
                where = jax.tree_util.keystr(path) or "the root"
                msg = f"Expected params of finite numbers, got others at {where}."
                raise ValueError(msg)
        return initial_state(algorithm, params, population)
    fresh = jax.eval_shape(lambda p: initial_state(algorithm, p, population), params)
    state = State(standing.server, standing.clients)
    expected, got = (
        [
            (jax.tree_util.keystr(path), leaf.shape, leaf.dtype)
            for path, leaf in jax.tree.leaves_with_path(tree)
        ]
        for tree in (fresh, state)
    )
    if expected != got or len(standing.ledger.up) != population:
        msg = (
            "Expected state to be that of a run of this algorithm with parameters of "
            f"these shapes and {population} clients, got another."
        )
        raise ValueError(msg)
    return jax.tree.map(jnp.copy, state)
