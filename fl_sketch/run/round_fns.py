"""Rounds and their start as pure functions of a config's continuous keys and roots.

With a server, and on a graph of nodes without one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.config import cohorts
from fl_sketch.config import parse as choices
from fl_sketch.config.parse import Numbers
from fl_sketch.core.keys import Purpose, apart, roots_of
from fl_sketch.core.protocols import Algorithm, Key, Roots, Tree
from fl_sketch.data import batches as draws
from fl_sketch.data import streamed
from fl_sketch.engine import chunks as calls
from fl_sketch.engine import gossip, prefetch
from fl_sketch.engine.clients import first
from fl_sketch.engine.cohort import Sampler, of_round
from fl_sketch.models.params_io import placed
from fl_sketch.run import host_states
from fl_sketch.run.task import Problem


class Streamed(NamedTuple):
    """What a program has besides, if its data are streamed.

    Attributes:
      data: `(seed) -> OnHost`, the training data as this seed shares them out.
      places: `(key, starts, number) -> places`, what to gather for a round.
      round: `(numbers, state, key, (batches, starts), count) -> (State, Report)`,
        one round on its batches, for a count of one.
    """

    data: Callable[[int], streamed.OnHost]
    places: Callable[[Key | Roots, jax.Array, jax.typing.ArrayLike], jax.Array]
    round: Callable[..., tuple[engine.State, engine.Report]]


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """What a program is made of, and its functions, none of which is jitted.

    Attributes:
      problem: what is trained.
      algorithm_of: `(numbers) -> Algorithm`.
      sampler: the sampler of the cohorts.
      mesh: the devices.
      chunk: the number of clients that a device works on at a time.
      bank: the place of clients' states, one of `choices.BANKS`.
      sent: the bytes that a client sends in a round; 0: the config does not ask.
    """

    problem: Problem
    algorithm_of: Callable[..., Algorithm]
    sampler: Sampler
    mesh: jax.sharding.Mesh
    chunk: int
    bank: str
    sent: float

    def ids(self, key: Key | Roots, number: jax.typing.ArrayLike) -> jax.Array:
        """Returns the clients of a round, of this `number` in the run of a `key`."""
        return of_round(self.sampler, key, number).ids

    def start(self, numbers: Numbers, key: Key | Roots) -> engine.State:
        """Returns the state before the first round.

        Args:
          numbers: the continuous keys.
          key: the roots of the run.
        """
        own = apart(roots_of(key).public, Purpose.INITIAL)
        params = self.problem.loss_of(numbers).init(own, self.problem.inputs)
        params = placed(params, self.problem.initial)
        return self.begun(self.algorithm_of(numbers), params, key)

    def begun(
        self, algorithm: Algorithm, params: Tree, key: Key | Roots
    ) -> engine.State:
        """Returns the state that begins with these parameters.

        Args:
          algorithm: the algorithm.
          params: the parameters.
          key: the roots of the run, which nobody asks for.
        """
        del key
        rows = self.problem.config.data.clients
        if self.bank == "host":
            rows = self.sampler.places
        return engine.initial_state(algorithm, params, rows)

    def round_of(self, numbers: Numbers) -> Callable:
        """Returns a round for the continuous keys, `numbers`, as `make_round` does."""
        config = self.problem.config
        return engine.make_round(
            self.algorithm_of(numbers),
            choices.fetch_of(config),
            self.mesh,
            chunk=self.chunk,
            recompute=config.compute.updates == "recompute",
        )

    def people_of(self, starts: jax.Array) -> Sampler:
        """Returns the sampler for clients whose examples begin at `starts`."""
        config = self.problem.config
        people = cohorts.weighted_sampler_of(config, self.sampler, starts)
        return host_states.at_places(people) if self.bank == "host" else people

    def rounds(
        self,
        numbers: Numbers,
        state: engine.State,
        key: Key | Roots,
        data: draws.Resident,
        count: jax.typing.ArrayLike,
    ) -> tuple[engine.State, engine.Report]:
        """Returns the state after some rounds, and their reports.

        Args:
          numbers: the continuous keys.
          state: the state before them.
          key: the roots of the run.
          data: the training data on the devices.
          count: the number of rounds.
        """
        one_round, people = self.round_of(numbers), self.people_of(data.starts)
        most = most_of(self.problem.config)
        return engine.run_rounds(one_round, people, state, key, data, count, most=most)

    def from_host(self, data: Callable[[int], Any]) -> Streamed:
        """Returns the same for `data` on the host."""
        config = self.problem.config

        def one_round(numbers, *rest):
            made = prefetch.on_batches(self.round_of(numbers), self.people_of)
            return made(*rest)

        places = prefetch.drawing(
            self.sampler,
            multiple=engine.rows(self.mesh) * self.chunk,
            steps=config.client.steps,
            batch=config.client.batch,
        )
        return Streamed(data=data, places=places, round=one_round)


@dataclasses.dataclass(frozen=True, eq=False)
class Nodes(Work):
    """The same without a server.

    What is kept of each client is all that its node has, a server of its own included.
    The server of a state is that of the first node, to be looked at.

    Attributes:
      relay: the way of messages over the graph.
    """

    relay: gossip.Relay

    def begun(
        self, algorithm: Algorithm, params: Tree, key: Key | Roots
    ) -> engine.State:
        """Returns the state that begins with these parameters on all nodes.

        Args:
          algorithm: the algorithm.
          params: the parameters.
          key: the roots of the run, which nobody asks for.
        """
        del key
        nodes = gossip.initial_nodes(algorithm, params, self.relay.graph.nodes)
        return _seen(nodes)

    def round_of(self, numbers: Numbers) -> Callable:
        """Returns a round of all nodes for the continuous keys, `numbers`.

        It is given a cohort, as others are, and does not look at it.
        """
        one_round = gossip.make_gossip_round(
            self.algorithm_of(numbers),
            choices.fetch_of(self.problem.config),
            self.relay.graph,
            self.mesh,
            relay=self.relay.name,
            chunk=self.chunk,
        )

        def run(state, key, cohort, data):
            del cohort
            nodes, report = one_round(state.clients, key, data)
            return _seen(nodes), report

        return run


def _seen(nodes: engine.State) -> engine.State:
    """Returns the state of a run with these nodes."""
    return engine.State(first(nodes.server), nodes)


def most_of(config: ConfigDict) -> int:
    """Returns the most rounds of one call of `config`, for whose reports is room."""
    return min(config.eval_every, config.rounds, calls.MOST)
