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

import operator
import os
import pathlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import chacha, shown, validate
from fl_sketch.core.keys import require_key, roots_of
from fl_sketch.core.protocols import Algorithm, Key, Roots, Server, Tree
from fl_sketch.data import Clients
from fl_sketch.data.batches import fetching
from fl_sketch.engine import (
    checks,
    ledger,
    own_columns,
    programs,
    progress_bar,
    resumable,
    sealing,
)
from fl_sketch.engine.client_metrics import PerExample
from fl_sketch.engine.clients import Client
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.costs import Traffic
from fl_sketch.engine.loop import Watch
from fl_sketch.engine.mesh import mesh_over
from fl_sketch.engine.prices import Prices
from fl_sketch.engine.python_setup import MakeAlgorithm, PythonSetup
from fl_sketch.engine.recorder import Row
from fl_sketch.engine.resumable import Progress
from fl_sketch.engine.task import Task
from fl_sketch.privacy import accounting
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.workdir.folder import Workdir

GO_ON = "this call; continue without a workdir from state=run.state"


class Standing(NamedTuple):
    """The state from which a simulation continues.

    Attributes:
      clients: the state of each client, along a leading axis of the population.
      ledger: bytes of every client since the first round.
      public: words of the public root.
      terms: the plan and the noise by which its rounds are accounted for; None: it is
        not private.
      lineage: with a secret key, digests of how it began, and of its programs.
    """

    server: Server
    clients: Client
    ledger: ledger.Ledger
    prices: Prices
    public: np.ndarray
    terms: Any = None
    lineage: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Returns how many rounds and clients there were."""
        rounds, population = int(self.server.round), len(self.ledger.up)
        return f"Standing({rounds} rounds, {population} clients)"


class Run(NamedTuple):
    """The result of a simulation.

    Attributes:
      state: the state from which `simulate(state=...)` continues.
      history: a row for every `every` rounds: means of the clients' diagnostics in
        these rounds, the values of `look`, all bytes since the first round, and
        epsilon.
    """

    state: Standing
    history: list[Row]
    traffic: Traffic

    def __repr__(self) -> str:
        """Returns how long the run is, its model, and the columns of its history."""
        rows = len(self.history)
        columns = ", ".join(self.history[-1]) if rows else "none"
        return (
            f"Run({int(self.state.server.round)} rounds, params="
            f"{shown.short(self.params)}, history of {rows} rows: {columns})"
        )

    @property
    def params(self) -> Tree:
        """The model after the last round."""
        return self.state.server.params

    def column(self, name: str) -> list[Any]:
        """Returns a column of the history, as "bytes_up_total".

        Raises:
          ValueError: for a column that there is not, with the names that there are.
        """
        for row in self.history:
            if name not in row:
                msg = f"Expected a column of {', '.join(row)}, got {name!r}."
                raise ValueError(msg + validate.nearest(name, [*row]))
        return [row[name] for row in self.history]

    @property
    def prices(self) -> Prices:
        """The bytes that a client receives."""
        return self.state.prices


def secret_roots(seed: int) -> Roots:
    """Returns roots of a private run, whose secret comes from the operating system.

    Noise, cohorts and batches are derived from the secret. Public hashes and shared
    coins are derived from the seed.
    """
    words = jnp.asarray(chacha.words_of(os.urandom(chacha.KEY_BYTES)))
    return chacha.roots_with(seed, words)


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
    every: int = 10,
    look: Callable[[Tree], Mapping[str, Any]] = lambda params: {},
    per_client: PerExample | None = None,
    held_out: Clients | None = None,
    on_row: Callable[[Row], None] | None = None,
    state: Standing | None = None,
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
) -> Run:
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
      batch: the number of examples in each.
      batches: how batches are drawn, one of `data.batches.KINDS`.
      every: the number of rounds between two rows of the history; the last round has a
        row too. With a `state`, rounds are counted from its first round.
      look: `(params) -> {name: value}` for the rows; not jitted.
      per_client: `(params, example) -> {name: number}`. Rows then have the mean, the
        worst tenth and the median over clients of each client's mean. The worst are the
        largest, but of accuracy the smallest.
      held_out: examples of the same clients on which `per_client` is computed; None:
        their training examples.
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

    Raises:
      TypeError, ValueError: in one line, for arguments that do not fit together.
    """
    validate.at_least_one(rounds=rounds, every=every, checkpoint_every=checkpoint_every)
    checks.require_made_by(Clients, "data.clients", clients=clients)
    _require_one_beginning(state, workdir)
    fetch = fetching(batches, steps=steps, batch=batch)
    validate.one_of(accounting.RELATIONS, relation=relation)
    validate.in_range(0, 1, delta=delta)
    validate.in_range(0, float("inf"), target_epsilon=target_epsilon)
    own = {"workdir": workdir, "partition": partition, "bar": bar}
    checks.require_options(look=look, on_row=on_row, **own)
    for root in roots_of(key):
        require_key(root)
    params, sampler = checks.floats(params), checks.sampler_of(cohort, clients)
    checks.require_measurable(per_client, params, clients, held_out)
    terms = {"relation": relation, "delta": delta, "target_epsilon": target_epsilon}
    last = operator.index(rounds) + (int(state.server.round) if state else 0)
    drawn = sampler, steps, batch, batches, fetch
    where = mesh_over(checks.devices_of(devices)), chunk
    setup = PythonSetup(
        params, clients, key, last, *drawn, terms, data, *where, partition
    )
    chosen = setup.choose(algorithm, download)
    begun = checks.begun(chosen.algorithm, params, clients.population, state)
    measure = own_columns.measuring(look, per_client, held_out or clients)
    task = setup.task(chosen, begun, measure, operator.index(every))
    told = [on_row] if on_row else []
    lineage = list(state.lineage) if state else []
    if chacha.is_secret(key) and not lineage:
        whole = begun, [one.tree for one in chosen.constants], tuple(clients)
        lineage.append(programs.digest_of_arrays(whole))
    if workdir is None:
        book = checks.book_to_go_on(chosen.prices, state, clients.population)
        if state is not None:
            _require_same_run(chosen.guarantee, _public(key), state)
        progress, history = _in_memory(task, book, told, bar, lineage)
    else:
        if lineage and not chosen.guarantee:
            msg = (
                "Expected a mechanism in a run with a secret key and a workdir, which "
                "counts no other noise, got none: use a config, or no workdir."
            )
            raise ValueError(msg)
        task = setup.described(task, chosen, download=download, eval_every=every)
        task = task._replace(save_every=checkpoint_every)
        progress, history = _in_folder(task, workdir, told, bar, lineage)
    server, states = progress.state.server, progress.state.clients
    book, terms = progress.recorder.ledger, _terms(chosen.guarantee)
    facts = chosen.prices, _public(key), terms, tuple(lineage)
    end = Standing(server, states, book, *facts)
    return Run(end, history, chosen.traffic)


def _in_memory(
    task: Task, book: ledger.Ledger, told, bar: bool | None, lineage: list[str]
) -> tuple[Progress, list[Row]]:
    """Plays a run without files; returns its rows as well."""
    begun, history = resumable.begin(task), list[Row]()
    begun.recorder.ledger = book

    def add(row: Row) -> None:
        history.append({k: row[k] for k in row if k != "rounds_per_second"})

    def roots(program: str) -> Roots:
        assert task.secret
        return roots_of(task.roots(task.secret.sealed(program)))

    seal = _sealing(roots, lineage) if lineage else None
    return _played(task, begun, None, [add, *told], bar, seal)[0], history


def _in_folder(
    task: Task, workdir: str | os.PathLike, told, bar: bool | None, lineage
) -> tuple[Progress, list[Row]]:
    """Plays a run in a folder, from where it was stopped; returns all rows as well."""
    fixed_by = lambda before: GO_ON  # noqa: E731
    with resumable.opened(workdir, task, fixed_by=fixed_by, say=_warned) as folder:
        assert folder  # of the only process
        if done := folder.summary():
            task = task._replace(secret=None)  # it is forgotten, and no longer needed
            resumable.complete(folder, task, done["rounds"])
            progress, rows = resumable.ended(folder, task, done["rounds"])
        else:
            task = sealing.with_secret(folder, task)
            progress = resumable.resumed(folder, task)
            roots = sealing.roots_by_program(folder, task)
            seal = _sealing(roots, lineage) if roots else None
            progress, seconds = _played(task, progress, folder, told, bar, seal)
            rows = folder.rows
            summary = resumable.summary_of(
                task, progress, own_columns.values(rows[-1]), compile_seconds=seconds
            )
            resumable.finish(folder, task, summary)
    return progress, [*map(own_columns.values, rows)]


def _warned(line: str) -> None:
    warnings.warn(line, stacklevel=2)


def _sealing(
    roots: Callable[[str], Roots], lineage: list[str]
) -> Callable[[str], Roots]:
    """Returns `(fingerprint) -> roots` of a run that began and went on as `lineage`.

    Other data, parameters or programs before these rounds mean other sums, which must
    not have the same noise. Rounds that go on with the same program have the same
    roots, so that a run in parts is the run.
    """

    def seal(fingerprint: str) -> Roots:
        if lineage[-1] != fingerprint:
            lineage.append(fingerprint)
        return roots(" ".join(lineage))

    return seal


def _played(
    task: Task, progress: Progress, folder: Workdir | None, told, bar: bool | None, seal
) -> tuple[Progress, float]:
    """Plays a run to its end; returns the seconds of compiling as well."""
    with progress_bar.shown(task.last, progress.done, shown=bar) as move:
        compiled = task.compile(task.roots(task.secret), seal)
        resumable.restore(folder, task, progress)
        progress = resumable.play_on(
            task,
            progress,
            compiled,
            folder,
            told=told,
            say=_warned,
            watch=Watch(rounds=move),
        )
    return progress, compiled.seconds


def _public(key: Key | Roots) -> np.ndarray:
    return np.asarray(jax.random.key_data(roots_of(key).public))


def _terms(guarantee: Guarantee | None) -> Any:
    """Returns the plan and the noise, which all rounds of a run share."""
    if guarantee is None:
        return None
    return guarantee.plan._replace(steps=0), guarantee.noise_multiplier


def _require_same_run(
    guarantee: Guarantee | None, public: np.ndarray, state: Standing
) -> None:
    """Raises if a run would continue with other hashes or other noise."""
    if not np.array_equal(public, state.public):
        msg = "Expected key to be that of the earlier rounds of state, got another one."
        raise ValueError(msg)
    terms = _terms(guarantee)
    if terms is not None and terms != state.terms and int(state.server.round):
        msg = (
            "Expected state to be of rounds with the same mechanism, cohorts and "
            "relation, got other ones: one privacy plan counts all rounds."
        )
        raise ValueError(msg)


def _require_one_beginning(state: Any, workdir: Any) -> None:
    """Raises if a run would begin both with a state and in a folder."""
    if state is None:
        return
    checks.require_made_by(Standing, "engine.simulate", state=state)
    if workdir is not None:
        msg = (
            "Expected either workdir or state to resume from, got both: "
            f"workdir={pathlib.Path(workdir)}."
        )
        raise ValueError(msg)
