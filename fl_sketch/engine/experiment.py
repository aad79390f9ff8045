"""One description of a run: what clients and the server do, and for how long.

An `Experiment` has values and functions, of which nothing is compiled. What follows
from them without computing anything, as bytes and the privacy guarantee, are its
properties. `engine.run` plays it.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.core import trees
from fl_sketch.core.constants import Constant, noted, size_of
from fl_sketch.core.keys import Purpose, apart
from fl_sketch.core.protocols import Algorithm, Key, Tree
from fl_sketch.data import Clients, residency
from fl_sketch.data.batches import fetching, resident_shapes
from fl_sketch.data.partition import Partition
from fl_sketch.engine import costs
from fl_sketch.engine.clients import Fetch
from fl_sketch.engine.cohort import Sampler, weighted
from fl_sketch.engine.costs import Traffic
from fl_sketch.engine.mesh import chunk_size, layout
from fl_sketch.engine.prices import Prices
from fl_sketch.engine.round import State, client_bytes, initial_state
from fl_sketch.privacy.guarantee import Guarantee

MOST = 4096  # rounds of one call of a program
# Values by name. Arrays are arguments of a program; numbers are compiled into it.
Hyperparameters = Mapping[str, Any]


class LocalWork(NamedTuple):
    """A client's work in a round: batches of examples, and how they are drawn.

    `batches` is one of `data.batches.KINDS`. With `epochs` a client passes that
    many times over its examples instead, in batches of `batch`.
    """

    steps: int = 1
    batch: int = 32
    batches: str = "fresh"
    epochs: int = 0

    @property
    def fetch(self) -> Fetch:
        """What makes a client's batches, as `make_round` takes it."""
        sizes = {"steps": self.steps, "batch": self.batch, "epochs": self.epochs}
        return fetching(self.batches, **sizes)

    def shapes(self, examples: Any) -> Any:
        """Returns the shapes of a client's batches on a device."""
        if self.epochs:
            one = Partition(np.zeros(1, np.int32), np.arange(2))
            known = resident_shapes(examples, one), 0, None, jax.random.key(0)
            return jax.eval_shape(self.fetch, *known)
        lead = self.steps, self.batch
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                (*lead, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype)
            ),
            examples,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """A description of a run.

    Attributes:
      algorithm: `(hyperparameters, noise multiplier) -> Algorithm`.
      init: `(hyperparameters, key) -> params`, the first model.
      cohort: the sampler of cohorts, all clients counting alike.
      rounds: the last round; a privacy budget may end the run before.
      mesh: the devices, which may be abstract.
      hyperparameters: what a sweep changes.
      evaluate: `(hyperparameters, params) -> {column: value}`; not jitted.
      make_guarantee: `(algorithm without noise, traffic) -> Guarantee`, or None if
        nothing is bounded.
      weighting: "equal", or "examples": a client counts as many times as it has those.
      every: rounds between two rows.
      save_every: rounds between two checkpoints.
      download: how clients get the model; see `engine.costs.prices`.
      chunk: how many clients a device works on at a time; 0: automatic.
      data: where the examples are: "resident", "streamed", or "auto".
      elsewhere: whether the clients are: they keep their states, and have what does not
        train without a download.
      advice: what may help if it diverges, which then ends it; empty: it continues.
    """

    algorithm: Callable[[Hyperparameters, float], Algorithm]
    init: Callable[[Hyperparameters, Key], Tree]
    clients: Clients
    cohort: Sampler
    local: LocalWork
    rounds: int
    mesh: jax.sharding.Mesh
    hyperparameters: Hyperparameters = dataclasses.field(default_factory=dict)
    evaluate: Callable[[Hyperparameters, Tree], Mapping[str, Any]] = lambda h, p: {}
    make_guarantee: Callable[[Algorithm, Traffic], Guarantee | None] = lambda a, t: None
    weighting: str = "equal"
    every: int = 10
    save_every: int = 50
    download: str = "cheapest"
    chunk: int = 0
    data: str = "auto"
    elsewhere: bool = False
    advice: str = ""

    @functools.cached_property
    def params(self) -> Tree:
        """Shapes of what trains of the model."""
        key = jax.eval_shape(jax.random.key, 0)
        return jax.eval_shape(lambda key: self.init(self.hyperparameters, key), key)

    @functools.cached_property
    def _traced(self) -> tuple[Traffic, Sequence[Constant]]:
        algorithm = self.algorithm(self.hyperparameters, 0.0)
        batches, params = self.local.shapes(self.clients.examples), self.params
        with noted() as constants:  # of rounds, and not of the first model
            traffic = costs.measure_traffic(algorithm, params, batches)
        if traffic.stateful and self.cohort.repeats:  # one of two would be kept
            msg = "Clients that keep a state need cohorts of different clients, got "
            raise ValueError(msg + "some of with_replacement (sampling=replacement).")
        if traffic.counts and self.cohort.weight is None and not self.cohort.whole:
            msg = "A server that keeps a mean over all clients needs equal weights, or "
            raise ValueError(msg + "weighted(..., average=...), got others.")
        return traffic, constants

    @property
    def traffic(self) -> Traffic:
        """What a client sends and receives in a round."""
        return self._traced[0]

    @property
    def constants(self) -> Sequence[Constant]:
        """What clients read in their work and nothing changes."""
        return self._traced[1]

    @functools.cached_property
    def guarantee(self) -> Guarantee | None:
        """The privacy guarantee; None: nothing is bounded."""
        return self.make_guarantee(
            self.algorithm(self.hyperparameters, 0.0), self.traffic
        )

    @property
    def private(self) -> bool:
        """Whether there is noise, so that randomness must be secret."""
        return bool(self.guarantee and self.guarantee.private)

    @property
    def last(self) -> int:
        """The last round, after which a privacy budget may be spent."""
        return self.guarantee.rounds if self.guarantee else self.rounds

    @functools.cached_property
    def prices(self) -> Prices:
        """What a client receives, in bytes."""
        return costs.prices(
            self.noisy(self.hyperparameters),
            self.params,
            self.traffic,
            download=self.download,
            rounds=self.last,
            gap=self.clients.population / self.cohort.size,
            once=0 if self.elsewhere else size_of(self.constants),
        )

    @property
    def client_state_bytes(self) -> int:
        """The bytes of the states of all clients."""
        noiseless = self.algorithm(self.hyperparameters, 0.0)
        return client_bytes(noiseless, self.params) * self.clients.population

    @functools.cached_property
    def clients_at_once(self) -> int:
        """How many clients of a round a device works on at a time."""
        sizes = self.cohort.places, self.traffic.working
        return chunk_size(self.mesh, *sizes, given=self.chunk)

    @functools.cached_property
    def placement(self) -> str:
        """Where the examples are, one of `residency.PLACEMENTS`."""
        local = self.local
        kind = "epochs'" if local.epochs else local.batches
        return residency.placement(self.data, self.clients.examples, self.mesh, kind)

    @property
    def d(self) -> int:
        """The number of the model's parameters that train."""
        return trees.size(trees.trained(self.params))

    @property
    def most(self) -> int:
        """The most rounds of one call of the program.

        A private program may not change with the number of rounds.
        """
        return min(self.every, MOST, *[] if self.private else [self.rounds])

    def noisy(self, hyperparameters: Hyperparameters) -> Algorithm:
        """Returns the algorithm with the noise of the guarantee."""
        z = self.guarantee.noise_multiplier if self.guarantee else 0.0
        return self.algorithm(hyperparameters, z)

    def sampler(self, starts: jax.Array) -> Sampler:
        """Returns the sampler for clients whose examples begin at `starts`.

        In a sweep over seeds the first of them is not zero.
        """
        if self.weighting == "equal":
            return self.cohort
        total = starts[-1] - starts[0]
        mean = total / self.cohort.population
        sampler = weighted(
            self.cohort,
            lambda ids: (starts[ids + 1] - starts[ids]).astype(jnp.float32),
            average=mean if self.cohort.sampling == "poisson" else None,
        )
        return dataclasses.replace(sampler, weight=total)

    def start(self, hyperparameters: Hyperparameters, key: Key) -> State:
        """Returns the state before the first round of a run with this public root."""
        params = self.init(hyperparameters, apart(key, Purpose.INITIAL))
        algorithm = self.noisy(hyperparameters)
        state = initial_state(algorithm, params, self.clients.population)
        return state._replace(clients=()) if self.elsewhere else state

    def placed(self, state: State) -> State:
        """Returns the shapes of a state, with the sharding of each of its arrays."""
        where = layout(self.mesh, state.server.params, state)
        return jax.tree.map(
            lambda leaf, own: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=own
            ),
            state,
            where,
        )

    @property
    def everywhere(self) -> NamedSharding:
        """The sharding of what all devices hold alike."""
        return NamedSharding(self.mesh, P())
