"""A run whose clients are elsewhere: its folder is that of `launch.train`.

Rows, checkpoints, the ledger, the odometer and resuming are those of a run in one
program: only what advances the state is another. Clients' states are at the sites.
"""

import functools
import os
import pathlib
import secrets as system
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fl_sketch.core import files
from fl_sketch.core.constants import jitted
from fl_sketch.core.protocols import Key, Roots
from fl_sketch.data.examples import Splits
from fl_sketch.engine import rounds
from fl_sketch.engine.loop import Compiled
from fl_sketch.engine.round import State
from fl_sketch.engine.task import Task
from fl_sketch.network import counted, job
from fl_sketch.network.conversation import Conversation
from fl_sketch.network.coordinator import Coordinator, Rules, Send
from fl_sketch.run import task as tasks
from fl_sketch.run.run import Listeners, in_folder
from fl_sketch.run.setup import Setup
from fl_sketch.workdir import checkpoint, secrets

FOLDER, RUN = "network", "run"  # in the folder of a run: the name of the run
LATER = 2**31  # a round before which sites keep all their states


def run(
    config: ConfigDict,
    splits: Splits,
    workdir: str | os.PathLike,
    send: Send,
    *,
    rules: Rules = Rules(),  # noqa: B008 - immutable
    asks: Sequence[str] = (),
    sites: Sequence[str] = (),
    told: Listeners = Listeners(),  # noqa: B008 - immutable
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Runs a config with sites, from where an earlier run in the folder was stopped.

    Args:
      config: a config as `configs/default.py` has it; a client is a site.
      splits: the test data, and the number of classes.
      workdir: the folder of the run.
      send: `(frame for each client, seconds) -> answers of those that came`.
      rules: when a round goes on without a site.
      asks: what sites are asked to tell, see `site_file.Lent.tells`.
      sites: the names of the sites, in the order of clients.
      told: who is told of rows.
      say: prints a line about a site.

    Returns:
      The contents of summary.json.

    Raises:
      ValueError, TypeError: in one line, for what a config may not say.
      TooFew: if too few sites answer.
    """
    setup = job.of_coordinator(config, splits)
    place = files.writable_folder(workdir)
    playing = _Playing(place, send, rules, (tuple(asks), tuple(sites)), say)
    return in_folder(setup, playing.task(setup), str(workdir), told)


class _Playing:
    """How a setup is played with sites."""

    def __init__(self, place: pathlib.Path, send: Send, rules: Rules, told, say):
        self._place, self._rules = place, rules
        (place / FOLDER).mkdir(exist_ok=True)
        self._send = counted.Counted(send, place / FOLDER / counted.FILE)
        (self._asks, self._sites), self._say = told, say

    def task(self, setup: Setup) -> Task:
        """Returns the run of a setup."""
        secret = setup.secret()

        @functools.cache
        def roots(secret: secrets.Secret | None) -> Roots:
            return secrets.roots(setup.config.seed, secret)

        def start(key: Key | Roots) -> State:
            first = jitted(lambda key: setup.start(setup.numbers, key))(key)
            return State(first.server, ())

        return tasks.described(
            setup,
            start=start,
            compile=lambda key, seal=None: self._compiled(setup, start, key),
            roots=roots,
            known=tasks.known_of(setup)._replace(absences=True),
            secret=secret,
            with_noise=lambda z: self.task(setup.with_noise(z)),
        )

    def _compiled(self, setup: Setup, start: Callable, roots: Any) -> Compiled:
        begin = time.perf_counter()
        shapes = setup.placed(jax.eval_shape(start, roots))
        where = jax.tree.map(lambda leaf: leaf.sharding, shapes.server.params)
        measure = tasks.measuring(setup, shapes)

        def measured(state: State) -> dict[str, float]:
            params = jax.device_put(state.server.params, where)
            return measure(State(state.server._replace(params=params), ()))

        talk = job.conversation_of(setup)
        coordinator = self._coordinator(setup, talk, roots)
        if setup.config.cohort.weighting == "examples":
            sizes = self._sizes(coordinator, setup.config.data.clients)
            starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
            sampler = setup.cohorts.weighted(jax.numpy.asarray(starts))
            coordinator = self._coordinator(setup, talk, roots, sampler)
        advance = rounds.one_by_one(coordinator.one_round)
        return Compiled(advance, measured, time.perf_counter() - begin)

    def _coordinator(
        self, setup: Setup, talk: Conversation, roots: Any, sampler=None
    ) -> Coordinator:
        asks = self._asks
        if setup.config.cohort.weighting == "examples":
            asks = (*asks, "size")
        terms = job.terms_of(setup, _name_of(self._place), asks, self._sites)
        return Coordinator(
            talk,
            sampler or setup.sampler,
            roots,
            self._send,
            terms=lambda client: terms,
            rules=self._rules,
            follows=setup.prices.followed,
            back=lambda: checkpoint.rounds(self._place / "checkpoints"),
            folder=self._place / FOLDER,
            say=self._say,
        )

    def _sizes(self, coordinator: Coordinator, clients: int) -> list[int]:
        """Returns how many examples sites have; raises where one does not tell."""
        said = coordinator.join(range(clients), LATER)
        silent = [one for one in range(clients) if "size" not in said.get(one, {})]
        if silent:
            msg = (
                "config.cohort: Expected sites that tell their size, with "
                f"weighting=examples, got none of site {silent[0]}."
            )
            raise ValueError(msg)
        return [int(said[one]["size"]) for one in range(clients)]


def _name_of(place: pathlib.Path) -> str:
    """Returns the name of the run in a folder, a new one at its beginning."""
    path = place / FOLDER / RUN
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        files.write_text(path, system.token_hex(16))
    return path.read_text()
