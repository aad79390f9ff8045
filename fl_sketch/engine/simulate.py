"""Runs an algorithm on one's own model and data in one call.

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
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.channels import player
from fl_sketch.core import chacha, validate
from fl_sketch.core.keys import require_key, roots_of
from fl_sketch.core.protocols import Algorithm, Key, Roots, Server, Tree
from fl_sketch.data import Clients, residency, streamed
from fl_sketch.data import batches as client_batches
from fl_sketch.engine import checks, ledger, progress_bar, python_run, resumable
from fl_sketch.engine.client_metrics import PerExample, columns_of
from fl_sketch.engine.clients import Client
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.costs import Prices, Traffic, prices
from fl_sketch.engine.loop import MOST, Compiled, Watch
from fl_sketch.engine.mesh import default_chunk, mesh_over
from fl_sketch.engine.plan import plan_of
from fl_sketch.engine.recorder import Known, Row
from fl_sketch.engine.round import State, make_round
from fl_sketch.engine.rounds import Play, compile_rounds
from fl_sketch.engine.task import Task
from fl_sketch.privacy.guarantee import Guarantee, promised

MakeAlgorithm = Callable[[float], Algorithm]


class Standing(NamedTuple):
    """All that a simulation goes on from.

    Attributes:
      clients: what is kept of each client, along a leading axis of the population.
      ledger: bytes of every client since the first round.
      public: words of the public root.
      terms: the plan and the noise by which its rounds are accounted for; None: it is
        not private.
    """

    server: Server
    clients: Client
    ledger: ledger.Ledger
    prices: Prices
    public: np.ndarray
    terms: Any = None


class Run(NamedTuple):
    """The result of a simulation.

    Attributes:
      state: the state from which `simulate(state=...)` goes on.
      history: a row of every `every` rounds: means of the clients' diagnostics in them,
        what `look` returned, all bytes since the first round, and the epsilon.
      traffic: the traffic of one client in a round.
    """

    state: Standing
    history: list[Row]
    traffic: Traffic

    @property
    def params(self) -> Tree:
        """The model after the last round."""
        return self.state.server.params

    @property
    def prices(self) -> Prices:
        """What a client is sent, in bytes."""
        return self.state.prices


def secret_roots(seed: int) -> Roots:
    """Returns roots of a private run: noise, cohorts and batches by the system's bits.

    Args:
      seed: the source of what all may know: hashes, and coins that are shared.
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
      algorithm: the work of clients and server; with a mechanism the run is private.
        With a `target_epsilon` it may be `(noise_multiplier) -> Algorithm`, and the
        least noise is chosen that keeps the target in all rounds.
      params: the first model, a tree of floats.
      clients: examples and their owners, made by `data.clients`.
      key: the root of everything random. One that others know protects nobody, and the
        history then calls a private run simulated: see `secret_roots`. Those are for
        one run, going on included: a second with the same has the same noise.
      rounds: the number of rounds to play.
      cohort: the number of clients in a round, all sets alike; or a sampler of
        `engine`; None: everyone.
      steps: the number of batches that a client has in a round.
      batch: the number of examples in each.
      batches: how they are drawn, one of `data.batches.KINDS`.
      every: the number of rounds between two rows of the history, which are of its
        multiples and of the last round; a row begins where the call does.
      look: `(params) -> {name: value}` for its rows; called as it is, not jitted.
      per_client: `(params, example) -> {name: number}`, for rows with the mean, the
        worst tenth and the median over clients of each client's mean.
      held_out: examples of the same clients to measure `per_client` on; None: those
        that they train on.
      on_row: is called with every row.
      state: the state of an earlier run of this algorithm, to go on from, with the same
        key; `params` are then read for their shapes only. Bytes and privacy go on as
        well.
      workdir: a folder for rows, checkpoints, the model and what privacy was spent. The
        same call goes on there, to the last bit, wherever it was stopped.
      checkpoint_every: rounds between checkpoints in it.
      download: how clients get the model; see `engine.costs.prices`. Of a run that goes
        on, those who did not follow begin as newcomers where they now do.
      relation: what neighbours a mechanism makes alike, of `accounting.RELATIONS`.
      delta: the delta of the promise.
      target_epsilon: the run ends before its epsilon exceeds this; 0: no limit.
      data: where examples are: "resident" on the devices; "streamed" from the host,
        round by round; "auto": by their size.
      devices: the devices that share the clients of a round; None: all.
      chunk: how many clients a device works on at a time; 0: by platform.
      bar: whether to show a bar; None: in terminals and notebooks.

    Raises:
      TypeError, ValueError: in one line, for what does not fit together.
    """
    validate.at_least_one(rounds=rounds, every=every, steps=steps, batch=batch)
    validate.at_least_one(checkpoint_every=checkpoint_every)
    checks.require_made_by(Clients, "data.clients", clients=clients)
    if state is not None:
        checks.require_made_by(Standing, "engine.simulate", state=state)
        _require_no_folder(workdir)
    checks.require_batches(batches, batch, clients)
    checks.require_privacy(relation, delta, target_epsilon)
    checks.require_functions("params", look=look)
    checks.require_functions("a row", on_row=on_row)
    for root in roots_of(key):
        require_key(root)
    params, sampler = checks.floats(params), checks.sampler_of(cohort, clients)
    checks.require_measurable(per_client, params, clients, held_out)
    terms = {"relation": relation, "delta": delta, "target_epsilon": target_epsilon}
    begun = int(state.server.round) if state else 0
    setup = _Setup(
        params, clients, key, begun + rounds, sampler, steps, batch, batches, terms
    )
    chosen, talk, guarantee = setup.algorithm_of(algorithm)
    now = checks.begun(chosen, params, clients.population, state)
    price = setup.prices(chosen, talk, download)
    watched = _looking(look, per_client, held_out or clients)
    places = {"data": data, "devices": devices, "chunk": chunk}
    task = setup.task(
        chosen, guarantee, price, now, watched, min(every, rounds), places
    )
    # A record has room for the rounds of a row, and there are no more than all.
    task = task._replace(every=min(every, task.last), save_every=checkpoint_every)
    told = [on_row] if on_row else []
    if workdir is None:
        recorder = resumable.Recorder.new(task.known, task.every)
        recorder.ledger = checks.book_to_go_on(price, state, clients.population)
        public = _public(key)
        if state is not None:
            _require_same_run(guarantee, public, state)
        progress = resumable.Progress(task.start(key), recorder)
        history: list[Row] = []
        told = [lambda row: history.append(_untimed(row)), *told]
        with progress_bar.shown(task.last, progress.done, shown=bar) as move:
            progress = resumable.play_on(
                task, progress, task.compile(key), told=told, watch=Watch(rounds=move)
            )
    else:
        about = {"download": download, "eval_every": every, **setup.about(chosen, talk)}
        task = python_run.described(task, key, params, clients, talk, about)
        progress, history = python_run.in_folder(task, workdir, told, bar)
    end = Standing(
        progress.state.server,
        progress.state.clients,
        progress.recorder.ledger,
        price,
        _public(key),
        _terms(guarantee),
    )
    return Run(end, history, talk)


class _Setup(NamedTuple):
    """What clients train on, who takes part, and what is promised to them."""

    params: Tree
    clients: Clients
    key: Key | Roots
    last: int
    sampler: Sampler
    steps: int
    batch: int
    batches: str
    terms: dict[str, Any]

    def algorithm_of(
        self, algorithm: Algorithm | MakeAlgorithm
    ) -> tuple[Algorithm, Traffic, Guarantee | None]:
        """Returns the algorithm with its noise, its traffic and its guarantee."""
        make, chosen = None, algorithm
        if not isinstance(algorithm, Algorithm) and self.terms["target_epsilon"]:
            make = algorithm
            chosen = make(0.0) if callable(make) else make
        checks.require_made_by(Algorithm, "fl_sketch.algorithms", algorithm=chosen)
        assert isinstance(chosen, Algorithm)
        checks.require_fitting(chosen, self.sampler)
        talk = checks.traffic_of(
            chosen, self.params, self.clients, steps=self.steps, batch=self.batch
        )
        checks.require_weights(talk, self.sampler)
        guarantee = self.guarantee(chosen, talk, calibrated=make is not None)
        if make is not None and guarantee:
            chosen = make(guarantee.noise_multiplier)
        checks.require_noise(chosen, self.terms["target_epsilon"])
        return chosen, talk, guarantee

    def guarantee(
        self, algorithm: Algorithm, talk: Traffic, *, calibrated: bool
    ) -> Guarantee | None:
        """Returns what the run promises; None: it adds no noise."""
        mechanism = algorithm.mechanism
        if mechanism is None or not (mechanism.noise_multiplier or calibrated):
            return None
        plan = plan_of(
            mechanism,
            self.sampler,
            talk,
            rounds=self.last,
            relation=self.terms["relation"],
        )
        secret = chacha.is_secret(roots_of(self.key).secret)
        return promised(
            plan,
            rounds=self.last,
            delta=self.terms["delta"],
            noise_multiplier=float(mechanism.noise_multiplier),
            target_epsilon=self.terms["target_epsilon"],
            randomness="system" if secret else "simulated",
        )

    def about(self, algorithm: Algorithm, talk: Traffic) -> dict[str, Any]:
        """Returns what config.json is to hold, by which the run is known again."""
        name = player.name_of(algorithm.uplink)
        return {
            "rounds": self.last,
            "cohort": {"sampling": self.sampler.sampling, "size": self.sampler.size},
            "client": {
                "steps": self.steps,
                "batch": self.batch,
                "batches": self.batches,
            },
            "privacy": {**self.terms, "noise_multiplier": _noise_of(algorithm)},
            "algorithm": {
                "channel": name,
                "messages": [*talk.sent],
                "bits_up": talk.bits_up,
                "server": _shapes(algorithm.server, self.params),
            },
        }

    def prices(self, algorithm: Algorithm, talk: Traffic, download: str) -> Prices:
        """Returns the prices of the rounds to come."""
        gap = self.clients.population / self.sampler.size
        params, last = self.params, self.last
        return prices(algorithm, params, talk, download=download, rounds=last, gap=gap)

    def task(
        self, algorithm, guarantee, price, now: State, look, every: int, places
    ) -> Task:
        """Returns the run as the loop has it; `now` is its state before."""
        mesh = mesh_over(checks.devices_of(places["devices"]))
        same = NamedSharding(mesh, P())
        chunk = places["chunk"] or default_chunk(mesh, self.sampler.places)
        fetch = client_batches.fetching(
            self.batches, steps=self.steps, batch=self.batch
        )
        play = Play(
            make_round(algorithm, fetch, mesh, chunk=chunk),
            self.sampler,
            chunk=chunk,
            steps=self.steps,
            batch=self.batch,
            most=min(every, MOST),
        )
        kind = residency.form(places["data"], self.clients.examples, mesh, self.batches)

        def compiled(roots) -> Compiled:
            begin = time.perf_counter()
            if kind == "streamed":
                examples = streamed.on_host(*self.clients)
            else:
                examples = client_batches.resident(*self.clients, device=same)
            roots = jax.device_put(roots_of(roots), same)
            state = jax.device_put(now, same)
            advance = compile_rounds(play, mesh, state=state, key=roots, data=examples)
            seconds = time.perf_counter() - begin
            return Compiled(advance, lambda state: look(state.server.params), seconds)

        return Task(
            start=lambda roots: jax.device_put(now, same),
            compile=compiled,
            roots=lambda secret: self.key,
            known=Known(price, self.clients.population, guarantee),
            last=guarantee.rounds if guarantee else self.last,
            every=every,
        )


def _looking(look, per_client: PerExample | None, clients: Clients):
    """Returns `(params) -> columns`, checked, of what is measured for a row."""
    views = columns_of(per_client, clients) if per_client else None

    def measured(params):
        copy = jax.tree.map(jnp.copy, params)  # a caller may keep it
        found = look(copy)
        if not isinstance(found, Mapping) or any(map(_reserved, found)):
            names = [*found] if isinstance(found, Mapping) else found
            msg = (
                "Expected look to return a dictionary whose names are not those of "
                f"other columns (round, epsilon, train_*, bytes_*), got {names!r}."
            )
            raise ValueError(msg)
        return {**found, **(views(params) if views else {})}

    return measured


def _reserved(name: str) -> bool:
    taken = ("round", "epsilon", "delta", "randomness", "rounds_per_second")
    return name in taken or str(name).startswith(("train_", "bytes_", "clients_"))


def _shapes(server: Any, params: Tree) -> str:
    """Returns a server's optimizer in words: the names of what it keeps."""
    return str(jax.tree.structure(jax.eval_shape(server.init, params)))


def _noise_of(algorithm: Algorithm) -> float | None:
    mechanism = algorithm.mechanism
    return mechanism and float(mechanism.noise_multiplier)


def _untimed(row: Row) -> Row:
    return {name: row[name] for name in row if name != "rounds_per_second"}


def _public(key: Key | Roots) -> np.ndarray:
    return np.asarray(jax.random.key_data(roots_of(key).public))


def _terms(guarantee: Guarantee | None) -> Any:
    """Returns what must not change while rounds are counted as one run."""
    if guarantee is None:
        return None
    return guarantee.plan._replace(steps=0), guarantee.noise_multiplier


def _require_same_run(
    guarantee: Guarantee | None, public: np.ndarray, state: Standing
) -> None:
    """Raises if a run would go on with other hashes or other noise."""
    if not np.array_equal(public, state.public):
        msg = (
            "Expected key to have the public root of the rounds before, by which "
            "their messages were made, got another one."
        )
        raise ValueError(msg)
    terms = _terms(guarantee)
    if terms is not None and terms != state.terms and int(state.server.round):
        msg = (
            "Expected state of rounds with the same mechanism, cohorts and relation, "
            "since all rounds are counted as these, got rounds with other ones."
        )
        raise ValueError(msg)


def _require_no_folder(workdir: Any) -> None:
    if workdir is not None:
        msg = (
            "Expected workdir or state, as a run goes on from either, got both: "
            f"workdir={pathlib.Path(workdir)}."
        )
        raise ValueError(msg)
