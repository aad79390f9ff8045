"""Runs an algorithm on any model and data in one call.

>>> from fl_sketch import algorithms, data
>>> x, y = jax.random.normal(jax.random.key(0), (60, 3)), np.arange(60) % 2
>>> loss = lambda w, batch: ((batch[0] @ w - batch[1]) ** 2).mean()
>>> clients = data.clients((x, y), owners=np.arange(60) % 6)
>>> algorithm = algorithms.fedavg(loss, client_rate=0.1)
>>> run = simulate(algorithm, np.zeros(3), clients, key=jax.random.key(1), rounds=8)
>>> run.params.shape, run.history[-1]["round"], run.history[-1]["bytes_up_total"]
((3,), 8, 576)
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import engine
from fl_sketch.channels import player
from fl_sketch.core import chacha, secret, trees, validate
from fl_sketch.core.keys import require_key, roots_of
from fl_sketch.core.protocols import Algorithm, Key, Roots, Tree
from fl_sketch.data import Clients, examples
from fl_sketch.data.batches import resident_shapes
from fl_sketch.engine import multiprocess, programs
from fl_sketch.engine.cohort import Sampler, of_round
from fl_sketch.engine.experiment import Experiment, LocalWork
from fl_sketch.engine.first_row import FirstRow
from fl_sketch.engine.loop import (
    Callback,
    Progress,
    Result,
    RunState,
    plain,
    result_of,
)
from fl_sketch.engine.recorder import Row
from fl_sketch.engine.round import make_round
from fl_sketch.models import params_io
from fl_sketch.privacy import accounting, noise_size
from fl_sketch.privacy.guarantee import Guarantee, promised
from fl_sketch.run import checks
from fl_sketch.run.bar import Bar
from fl_sketch.run.continued import Continued
from fl_sketch.run.facts import noise_facts
from fl_sketch.run.folder import About, Folder
from fl_sketch.workdir import odometer
from fl_sketch.workdir.identity import Identity

MADE_BY = "simulate"  # in config.json, what made the folder
GO_ON = "this call; continue without a workdir from state=run.state"
MakeAlgorithm = Callable[[float], Algorithm]


def secret_roots(seed: int) -> Roots:
    """Returns roots of a private run, whose secret comes from the operating system.

    Noise, cohorts and batches are derived from the secret. Public hashes and shared
    coins are derived from the seed.
    """
    return secret.roots(seed, secret.fresh())


def simulate(
    algorithm: Algorithm | MakeAlgorithm,
    params: Tree,
    clients: Clients,
    *,
    key: Key | Roots,
    rounds: int,
    cohort: int | Sampler | None = None,
    steps: int = 1,
    batch: int = 32,
    batches: str = "fresh",
    epochs: int = 0,
    every: int = 10,
    look: Callable[[Tree], Mapping[str, Any]] = lambda params: {},
    on_row: Callable[[Row], None] | None = None,
    state: RunState | None = None,
    workdir: str | os.PathLike | None = None,
    checkpoint_every: int = 50,
    partition: str = "",
    download: str = "cheapest",
    relation: str = "add_remove",
    delta: float = 1e-5,
    target_epsilon: float = 0.0,
    data: str = "auto",
    devices: Sequence[jax.Device] | None = None,
    chunk: int = 0,
    bar: bool | None = None,
) -> Result:
    """Runs an algorithm and counts its bytes and its privacy.

    Args:
      algorithm: an algorithm; with a mechanism the run is private. With a
        `target_epsilon` it may be `(noise_multiplier) -> Algorithm`, and the smallest
        noise that keeps the target in all rounds is chosen.
      params: the initial model, a tree of floats.
      clients: examples and their owners, made by `data.clients`.
      key: the root of all randomness. A key that others know gives no privacy, and the
        history then marks a private run as simulated. `secret_roots` makes a secret one
        for one run and its continuations. A second run with it would have the same
        noise.
      rounds: the number of rounds to run.
      cohort: the number of clients in a round, all sets equally likely; or a sampler of
        `engine`; None: everyone.
      steps: the number of batches per client and round.
      batch: the number of examples in each; 0, with epochs: all of a client.
      batches: how batches are drawn, one of `data.batches.KINDS`.
      epochs: how many times a client passes over its examples, in shuffled batches of
        which the last is short; instead of `steps`. The loss takes `weights=None`, the
        weights of a batch's examples, and is their weighted mean.
      every: the number of rounds between two rows of the history; the last round has a
        row too. With a `state`, rounds are counted from its first round.
      look: `(params) -> {name: value}` for the rows, as `engine.per_client` makes it;
        not jitted.
      on_row: a function that is called with every row.
      state: the state of an earlier run of this algorithm and this key, from which to
        continue. Only the shapes of `params` are then read. Bytes and privacy continue
        too.
      workdir: a folder for rows, checkpoints, the model and the privacy budget. The
        same call resumes there, to the last bit, after any interruption.
      checkpoint_every: rounds between checkpoints in it.
      partition: a name for the assignment of examples to clients. Private runs in
        several folders have a total epsilon only if they share this name.
      download: how clients get the model; see `engine.costs.prices`. If clients of a
        continued run now replay the server's steps and did not before, they count as
        new.
      relation: the neighbours of a mechanism's guarantee, of `accounting.RELATIONS`.
      delta: the delta of the guarantee.
      target_epsilon: the run stops before its epsilon exceeds this; 0: no limit.
      data: "resident" stores examples on the devices. "streamed" sends batches from the
        host in each round. "auto" chooses by size.
      devices: the devices that share the clients of a round; None: all.
      chunk: the number of clients that a device works on at a time; 0: automatic.
      bar: whether to show a progress bar; None: in terminals and notebooks.
    """
    validate.at_least_one(rounds=rounds, every=every, checkpoint_every=checkpoint_every)
    checks.require_made_by(Clients, "data.clients", clients=clients)
    validate.one_of(accounting.RELATIONS, relation=relation)
    validate.in_range(0, 1, delta=delta)
    validate.in_range(0, float("inf"), target_epsilon=target_epsilon)
    for root in roots_of(key):
        require_key(root)
    if state is not None:
        checks.require_made_by(RunState, "simulate", state=state)
        if workdir is not None:
            msg = "Expected either workdir or state to resume from, got both: "
            raise ValueError(msg + f"workdir={workdir}.")
    if workdir is not None and multiprocess.several():
        msg = f"Expected one process with workdir, got {jax.process_count()}."
        raise ValueError(msg)
    params, sampler = checks.floats(params), checks.sampler_of(cohort, clients)
    calibrated = bool(
        target_epsilon and callable(algorithm) and not isinstance(algorithm, Algorithm)
    )
    make: Any = algorithm if calibrated else lambda z: algorithm
    chosen = make(0.0)
    how = "fl_sketch.algorithms, or with target_epsilon to be a function of the noise"
    checks.require_made_by(Algorithm, how, algorithm=chosen)
    checks.require_fitting(chosen, sampler)

    def made(hyperparameters, z: float) -> Algorithm:
        del hyperparameters
        found = make(z)
        mechanism = found.mechanism
        if calibrated and mechanism and mechanism.noise_multiplier != z:
            msg = (
                "Expected algorithm to be a function that makes noise of the "
                f"multiplier that it is given, {z:g}, got noise_multiplier="
                f"{mechanism.noise_multiplier:g}."
            )
            raise ValueError(msg)
        return found

    def make_guarantee(noiseless: Algorithm, traffic) -> Guarantee | None:
        z = noiseless.mechanism.noise_multiplier if noiseless.mechanism else 0.0
        if not noiseless.mechanism or not (z or calibrated):
            return None
        last = experiment.rounds
        terms = {"rounds": last, "relation": relation}
        return promised(
            engine.plan_of(noiseless.mechanism, sampler, traffic, **terms),
            rounds=last,
            delta=delta,
            noise_multiplier=float(z),
            target_epsilon=target_epsilon,
            randomness="system" if chacha.is_secret(key) else "simulated",
            partition=f"{MADE_BY}: {partition}" if partition else odometer.UNNAMED,
        )

    def evaluate(hyperparameters, params) -> Row:
        del hyperparameters
        columns = look(jax.tree.map(jnp.copy, params))  # a caller may keep the copy
        checks.require_columns(columns)
        return {**columns}

    if epochs:
        validate.at_most(1, "with epochs, which count instead", steps=steps)
        batch = batch or int(clients.sizes.max())
    experiment = Experiment(
        algorithm=made,
        init=lambda hyperparameters, key: params,
        clients=clients,
        cohort=sampler,
        local=LocalWork(steps, batch, batches, epochs),
        rounds=int(rounds) + (int(state.server.round) if state else 0),
        mesh=engine.mesh_over(list(devices or jax.devices())),
        evaluate=evaluate,
        make_guarantee=make_guarantee,
        every=int(every),
        save_every=int(checkpoint_every),
        download=download,
        chunk=chunk,
        data=data,
    )
    experiment.local.fetch  # noqa: B018 - raises for batches that cannot be
    with checks.fitting("loss, params and clients"):
        traffic = experiment.traffic
    validate.warn_if_long(max(traffic.sent), experiment.d, stacklevel=2)
    guarantee, mechanism = experiment.guarantee, experiment.noisy({}).mechanism
    if target_epsilon and not (mechanism and mechanism.noise_multiplier):
        msg = (
            "Expected an algorithm with noise, or a function of the noise multiplier, "
            f"with target_epsilon={target_epsilon}, got noise_multiplier="
            f"{mechanism and mechanism.noise_multiplier}."
        )
        raise ValueError(msg)
    found, *helps = *noise_size.lines(guarantee, clients=sampler.size), ""
    if any(helps):
        warnings.warn(f"{found}: {helps[0]}", stacklevel=2)
    if not guarantee:
        checks.require_batches(batches, batch, clients)
    callbacks: list[Callback] = [_OnRow(on_row)] if on_row else []
    callbacks.append(FirstRow(experiment, clients.examples))
    with Bar(experiment.last, shown=bar) as moving:
        callbacks.append(moving)
        if workdir is None:
            first = [Continued(experiment, key, state, target_epsilon)] if state else []
            return engine.run(experiment, key=key, callbacks=[*first, *callbacks])
        if chacha.is_secret(key) and not guarantee:
            msg = (
                "Expected a mechanism in a run with a secret key and a workdir, which "
                "counts no other noise, got none: use a config, or no workdir."
            )
            raise ValueError(msg)
        terms = {"relation": relation, "delta": delta, "target_epsilon": target_epsilon}
        about = _about(experiment, params, key, terms)
        fixed = {"fixed_by": lambda before: GO_ON, "say": _warn}
        with Folder(workdir, experiment, about, **fixed) as folder:
            if folder.ended:
                folder.complete()
                end = folder.end(roots_of(key))
                return result_of(experiment, roots_of(key), end)
            callbacks = [folder, *callbacks]
            result = engine.run(experiment, key=key, callbacks=callbacks)
            folder.finish(result)
            return result


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=2)


class _OnRow(Callback):
    """Calls a function with every row."""

    def __init__(self, function: Callable[[Row], None]):
        self._function = function

    def on_row(self, row: Row, progress: Progress) -> None:
        del progress
        self._function(dict(row))


def _about(experiment: Experiment, params: Tree, key: Key | Roots, terms: Row) -> About:
    """Returns the contents of a folder of a run that Python describes."""
    algorithm, clients = experiment.noisy({}), experiment.clients
    sampler, shares = experiment.cohort, clients.partition
    roots, guard, traffic = roots_of(key), algorithm.mechanism, experiment.traffic
    guarantee = experiment.guarantee
    named = {name: np.asarray(leaf) for name, leaf in trees.named_leaves(params)}
    config = {
        "download": experiment.download,
        "eval_every": experiment.every,
        "rounds": experiment.rounds,
        "cohort": {"sampling": sampler.sampling, "size": sampler.size},
        "client": experiment.local._asdict(),
        "privacy": {
            **terms,
            "noise_multiplier": guard and float(guard.noise_multiplier),
        },
        "algorithm": player.name_of(algorithm.uplink),
        "made_by": MADE_BY,
        "model": {"digest": params_io.digest(named)},
        "data": {"name": MADE_BY, "public": False, "clients": clients.population},
        "key": np.asarray(jax.random.key_data(roots.public)).tobytes().hex(),
        "compute": {"chunk": experiment.chunk},
    }
    digests = {
        f"train_{name}": examples.digest(
            np.asarray(leaf).astype(
                jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False
            )
        )
        for name, leaf in trees.named_leaves(clients.examples)
    }
    arrays = {"indices": shares.indices, "starts": shares.starts}
    frozen = {
        name: array
        for one in experiment.constants
        if isinstance(one.tree, Mapping)
        for name, array in one.tree.items()
    }
    identity = Identity(
        digests | {"partition": params_io.digest(arrays)},
        engine.name_of(experiment.mesh),
        program=_program(experiment, algorithm, params, roots),
        frozen=params_io.digest(frozen) if frozen else "",
        trained_on=(MADE_BY,),
        keyed=experiment.private,
    )
    facts = {
        "made_by": MADE_BY,
        "d": experiment.d,
        "sketch_size": sum(traffic.sent),
        "clients": clients.population,
        "exchanges": len(traffic.sent),
        **(guarantee.facts if guarantee else {}),
        **noise_facts(guard),
    }
    model = dict.fromkeys(("model", "algorithm", "dataset"), MADE_BY) | {
        "public": False
    }
    return About(jax.tree.map(plain, config), identity, facts, model, frozen)


def _program(experiment: Experiment, algorithm: Algorithm, params, roots: Roots) -> str:
    """Returns a digest of a round as it is traced, with all rates and bounds."""
    clients, sampler = experiment.clients, experiment.cohort
    mesh = engine.mesh_over(experiment.mesh.devices.flat[:1].tolist())
    play = make_round(algorithm, experiment.local.fetch, mesh)

    def one_round(params, key, data):
        state = engine.initial_state(algorithm, params, clients.population)
        return play(state, key, of_round(sampler, key, 0), data, None)

    return programs.digest(one_round, params, roots, resident_shapes(*clients))
