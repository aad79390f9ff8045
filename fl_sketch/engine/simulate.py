"""The door: an algorithm runs on one's own model and data in one call.

>>> from fl_sketch import algorithms, data
>>> x, y = jax.random.normal(jax.random.key(0), (60, 3)), np.arange(60) % 2
>>> loss = lambda w, batch: ((batch[0] @ w - batch[1]) ** 2).mean()
>>> clients = data.clients((x, y), owners=np.arange(60) % 6)
>>> algorithm = algorithms.fedavg(loss, client_rate=0.1)
>>> run = simulate(algorithm, np.zeros(3), clients, key=jax.random.key(1), rounds=8)
>>> run.params.shape, run.history[-1]["round"], run.history[-1]["bytes_up"]
((3,), 8, 576)
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.core import chacha, validate
from fl_sketch.core.keys import require_key, roots_of
from fl_sketch.core.protocols import Algorithm, Key, Roots, Server, Tree
from fl_sketch.data import Clients, residency, streamed
from fl_sketch.data import batches as draws
from fl_sketch.engine import checks, ledger, prefetch
from fl_sketch.engine.chunks import MOST, in_calls
from fl_sketch.engine.clients import Client
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.costs import Prices, Traffic, prices
from fl_sketch.engine.mesh import default_chunk, mesh_over, rows
from fl_sketch.engine.plan import plan_of
from fl_sketch.engine.round import Report, State, make_round
from fl_sketch.engine.rounds import Advance, compile_rounds, run_rounds
from fl_sketch.privacy import accounting
from fl_sketch.workdir.rows import MARK

Row = dict[str, Any]


class Standing(NamedTuple):
    """All that a simulation goes on from.

    Attributes:
      server: all that the server has.
      clients: the part that is kept of each client, along a leading axis of the
        population.
      ledger: bytes of every client since the first round.
      prices: the prices of what its clients were sent.
      public: words of the public root.
      terms: the plan and the noise by which its rounds are accounted for; None: they
        gave away everything.
    """

    server: Server
    clients: Client
    ledger: ledger.Ledger
    prices: Prices
    public: np.ndarray
    terms: Any = None


class Run(NamedTuple):
    """What came of a simulation.

    Attributes:
      state: the state from which `simulate(state=...)` goes on.
      history: a row of every `every` rounds: means of what was reported in them, what
        `look` found, all bytes since the first round, and what was given away.
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
    algorithm: Algorithm,
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
    state: Standing | None = None,
    download: str = "cheapest",
    relation: str = "add_remove",
    delta: float = 1e-5,
    data: str = "auto",
    devices: Sequence[jax.Device] | None = None,
    chunk: int = 0,
    bar: bool | None = None,
) -> Run:
    """Runs an algorithm, and says what it cost.

    Args:
      algorithm: the work of clients and server; with a mechanism the run is private.
      params: the first model, a tree of floats.
      clients: examples and whose they are, made by `data.clients`.
      key: the root of everything random. One that others know protects nobody, and the
        history then calls a private run simulated: see `secret_roots`. Those are for
        one run, going on included: a second with the same has the same noise.
      rounds: the number of rounds to play.
      cohort: the number of clients that take part in a round, all sets alike; or a
        sampler of `engine`; None: everyone.
      steps: the number of batches that a client has in a round.
      batch: the number of examples in each.
      batches: the way they are drawn, one of `data.draws.KINDS`.
      every: the number of rounds between two rows of the history, which are of its
        multiples and of the last round; a row begins where the call does.
      look: `(params) -> {name: value}` for its rows; called as it is, not jitted.
      state: the state of an earlier run of this algorithm, to go on from, with the same
        key; `params` are then read for their shapes only. Bytes and privacy go on as
        well.
      download: the way clients come by the model; see `engine.traffic.prices`. Of a run
        that goes on, those who did not follow begin as newcomers where they now do.
      relation: the kind of neighbours that a mechanism makes alike, one of
        `privacy.accounting.RELATIONS`.
      delta: the delta of the promise.
      data: the place of the examples: "resident" on the devices; "streamed" from the
        host, round by round; "auto": by their size.
      devices: the devices that share the clients of a round; None: all.
      chunk: the number of clients that a device works on at a time; 0: by platform.
      bar: whether to show a bar; None: in terminals and notebooks.

    Returns:
      The model after the last round, the history, and all that it takes to go on.

    Raises:
      TypeError, ValueError: in one line, for what does not fit together.
    """
    validate.at_least_one(rounds=rounds, every=every, steps=steps, batch=batch)
    checks.require_made_by(Algorithm, "fl_sketch.algorithms", algorithm=algorithm)
    checks.require_made_by(Clients, "data.clients", clients=clients)
    if state is not None:
        checks.require_made_by(Standing, "engine.simulate", state=state)
    checks.require_batches(batches, batch, clients)
    for root in roots_of(key):
        require_key(root)
    checks.require_options(look, relation, delta)
    params, sampler = checks.floats(params), checks.sampler_of(cohort, clients)
    checks.require_fitting(algorithm, sampler)
    talk = checks.traffic_of(algorithm, params, clients, steps=steps, batch=batch)
    checks.require_weights(talk, sampler)
    gap = clients.population / sampler.size
    now = checks.begun(algorithm, params, clients.population, state)
    last = int(now.server.round) + rounds
    price = prices(algorithm, params, talk, download=download, rounds=last, gap=gap)
    book = checks.book_to_go_on(price, state, clients.population)
    mesh = mesh_over(checks.devices_of(devices))
    work = _Work(clients, sampler, steps, batch, batches, min(every, rounds))
    now, roots = jax.device_put((now, roots_of(key)), NamedSharding(mesh, P()))
    promise = {"relation": relation, "delta": delta}
    spent, terms = _spent(algorithm, sampler, talk, last, key, **promise)
    public = np.asarray(jax.random.key_data(roots.public))
    if state is not None:
        _require_same_run(terms, public, state)
    chunk = chunk or default_chunk(mesh, sampler.places)
    advance = work.compiled(algorithm, mesh, now, roots, chunk=chunk, data=data)
    history, reached = [], now
    with _bar(rounds, bar) as shown:
        for reached, reports in _played(advance, now, last, every, shown):
            done = int(reached.server.round)
            for number, report in enumerate(reports, done - len(reports)):
                ledger.record(book, price, number, report.simulator_only)
            model = jax.tree.map(jnp.copy, reached.server.params)  # may be kept
            given_away = spent(done)
            row = _row(done, reports, book, private=bool(given_away))
            history.append(_with_found(row | given_away, look(model)))
    state = Standing(reached.server, reached.clients, book, price, public, terms)
    return Run(state, history, talk)


class _Work(NamedTuple):
    """What clients train on, and who of them."""

    clients: Clients
    sampler: Sampler
    steps: int
    batch: int
    batches: str
    every: int

    def compiled(
        self, algorithm, mesh, state: State, roots: Roots, *, chunk: int, data: str
    ) -> Advance:
        """Returns `advance`, for data on the devices or on the host."""
        sizes = {"steps": self.steps, "batch": self.batch}
        fetch = draws.fetching(self.batches, **sizes)
        one_round = make_round(algorithm, fetch, mesh, chunk=chunk)
        given = {"state": state, "key": roots}
        form = residency.form(data, self.clients.examples, mesh, self.batches)
        if form == "streamed":
            return prefetch.compile_rounds(
                prefetch.drawing(self.sampler, multiple=rows(mesh) * chunk, **sizes),
                prefetch.on_batches(one_round, lambda starts: self.sampler),
                mesh,
                data=streamed.on_host(*self.clients),
                **given,
            )

        def rounds(state, key, data, count):
            most = min(self.every, MOST)
            return run_rounds(
                one_round, self.sampler, state, key, data, count, most=most
            )

        resident = draws.resident(*self.clients, device=NamedSharding(mesh, P()))
        return compile_rounds(rounds, mesh, data=resident, **given)


def _spent(
    algorithm: Algorithm,
    sampler: Sampler,
    talk: Traffic,
    rounds: int,
    key: Key | Roots,
    *,
    relation: str,
    delta: float,
) -> tuple[Callable[[int], Row], Any]:
    """Returns what so many rounds gave away, as a part of a row, and on which terms.

    Nothing, and None: everything.
    """
    mechanism = algorithm.mechanism
    if mechanism is None or not mechanism.noise_multiplier:
        return (lambda done: {}), None
    plan = plan_of(mechanism, sampler, talk, rounds=rounds, relation=relation)
    accountant, z = accounting.accountant_for(plan), float(mechanism.noise_multiplier)
    accounting.require(plan, accountant)
    accounting.require_delta(plan, delta)
    one, other = (str(jax.random.key_data(root)) for root in roots_of(key))
    how = "simulated" if one == other else "secret"

    def spent(done):
        played = plan._replace(steps=done)
        epsilon = accounting.spent(played, z, delta=delta, accountant=accountant)
        return {"epsilon": epsilon, "delta": delta, "randomness": how}

    return spent, (plan._replace(steps=0), z)


def _require_same_run(terms: Any, public: np.ndarray, state: Standing) -> None:
    """Raises if a run would go on as what it was not: other hashes, other noise."""
    if not np.array_equal(public, state.public):
        msg = (
            "Expected key to have the public root of the rounds before, by which "
            "their messages were made, got another one."
        )
        raise ValueError(msg)
    if terms is not None and terms != state.terms and int(state.server.round):
        msg = (
            "Expected state of rounds with the same mechanism, cohorts and relation, "
            "since all rounds are counted as these, got rounds with other ones."
        )
        raise ValueError(msg)


def _with_found(row: Row, found: Any) -> Row:
    """Returns a row with what somebody looked at, under names of its own."""
    if not isinstance(found, Mapping) or {*found} & {*row}:
        names = [*found] if isinstance(found, Mapping) else found
        msg = (
            "Expected look to return a dictionary whose names are not among "
            f"{', '.join(row)}, got {names!r}."
        )
        raise ValueError(msg)
    return row | _plain(found)


def _played(
    advance: Advance, state: State, last: int, every: int, shown: Any
) -> Iterator[tuple[State, list[Report]]]:
    """Yields the state and the reports of the rounds up to each row of a history."""
    reports, begun = [], int(state.server.round)
    for call in in_calls(
        lambda state, done, count: advance(state, count),
        state,
        (begun, last),
        every=(every,),
    ):
        count = call.done - call.first
        reports += [
            jax.tree.map(lambda leaf, i=i: leaf[i], call.reports) for i in range(count)
        ]
        shown.update(count)
        if call.done % every == 0 or call.done == last:
            yield call.state, reports
            reports = []


def _row(
    done: int, reports: Sequence[Report], book: ledger.Ledger, *, private: bool
) -> Row:
    """Returns the part of a row that the engine knows."""
    heard = [one.simulator_only for one in reports if one.simulator_only.answered.any()]
    seen = {
        name: np.mean([one.diagnostics[name] for one in heard] or [np.nan])
        for name in reports[0].simulator_only.diagnostics
    }
    seen |= {"bytes_up": book.up.sum(), "bytes_down": book.down.sum()}
    released = {
        name: np.mean([one.released[name] for one in reports])
        for name in reports[0].released
    }
    mark = MARK if private else ""
    row = {"round": done} | {mark + name: value for name, value in seen.items()}
    return _plain(row | released)


def _plain(row: Mapping[str, Any]) -> Row:
    """Returns a row with Python's numbers for arrays of one."""
    return {
        name: value.item() if getattr(value, "shape", None) == () else value
        for name, value in row.items()
    }


def _bar(rounds: int, shown: bool | None) -> Any:
    """Returns a progress bar, which is not shown where nobody looks."""
    with warnings.catch_warnings():  # it would like a notebook to have widgets
        warnings.simplefilter("ignore")
        from tqdm import auto
    if shown is None:
        shown = "ipykernel" in sys.modules or sys.stderr.isatty()
    return auto.tqdm(total=rounds, unit="round", disable=not shown)
