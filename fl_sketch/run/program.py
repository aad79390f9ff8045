"""From a config to pure functions, with all of it checked beforehand.

What a sweep's points share is done once: the data are read, and continuous keys stay
arguments. `build.build` fixes them for one run.
"""

import dataclasses
import functools
import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from fl_sketch import engine, models
from fl_sketch.config import choices, cohorts, inputs, methods, protection
from fl_sketch.config.choices import Numbers
from fl_sketch.config.guarantee import Guarantee, guarantee_of, require_sizes
from fl_sketch.config.inputs import Seen
from fl_sketch.data import datasets, draws, partition, streamed
from fl_sketch.data.holding import held_out
from fl_sketch.engine import calls, host_data
from fl_sketch.engine.cohort import Sampler, of_round
from fl_sketch.engine.traffic import measure_traffic
from fl_sketch.keys import Purpose, apart, roots_of
from fl_sketch.models.arrays import Arrays, placed
from fl_sketch.protocols import Algorithm, Key, Roots, Tree
from fl_sketch.report.clients import Clients
from fl_sketch.report.evaluate import make_evaluation
from fl_sketch.run import agreement, host_states
from fl_sketch.workdir import weights
from fl_sketch.workdir.identity import Identity, identity_of, named


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


class Program(NamedTuple):
    """A config as pure functions of its continuous keys and its seed.

    Attributes:
      config: the config, with the number of clients that the data have.
      start: `(numbers, roots) -> State` before the first round.
      rounds: `(numbers, state, roots, data, count) -> (State, Report)`, for up to
        `most` rounds.
      evaluate: `(numbers, params, test) -> {"test_loss": ..., "test_accuracy": ...}`,
        or whatever the config measures.
      splits: the data on the host.
      seen: the way in which the model sees them.
      data: `(seed) -> Resident`, the training data as this seed shares them out; the
        examples are one copy for all seeds.
      test: the data to test on, spread over the devices.
      metrics: names of what is measured on them beside the loss, the first decides.
      algorithm: `(numbers, noisy=True) -> Algorithm`; or without its noise.
      batches: shapes of what a client trains on in a round.
      mesh: the devices.
      most: the largest number of rounds of a call.
      clients: `(numbers, seed) -> Clients`, to be looked at one by one.
      clock: `(roots, number) -> seconds` of a round; None: nobody asked for time.
      ids: `(roots, number) -> ids` of a round's cohort.
      bank: the place of clients' states, one of `choices.BANKS`; on the host, states
        here have a row for each place of a cohort.
      streamed: what to use instead of `data` and `rounds`, which would do as well
        where there is room, if the config's data are streamed; or None.
      guarantee: what may be said of its privacy; None: nothing is private.
      identity: what it is made of beside the config.
    """

    config: ConfigDict
    start: Callable[[Numbers, Key | Roots], engine.State]
    rounds: Callable[..., tuple[engine.State, engine.Report]]
    evaluate: Callable[[Numbers, Tree, Any], dict[str, jax.Array]]
    splits: datasets.Splits
    seen: Seen
    data: Callable[[int], draws.Resident]
    test: Any
    metrics: tuple[str, ...]
    algorithm: Callable[..., Algorithm]
    batches: Any
    mesh: jax.sharding.Mesh
    most: int
    clients: Callable[[Numbers, int], Clients]
    clock: Callable[[Key | Roots, Any], jax.Array] | None
    ids: Callable[[Key | Roots, jax.typing.ArrayLike], jax.Array]
    bank: str
    streamed: Streamed | None = None
    guarantee: Guarantee | None = None
    identity: Identity = Identity()

    @property
    def same(self) -> NamedSharding:
        """How to place what all devices hold alike."""
        return NamedSharding(self.mesh, P())

    @property
    def private(self) -> bool:
        """Whether somebody is protected, so that randomness must be secret."""
        return bool(self.guarantee and self.guarantee.private)

    def last_round(self, config: ConfigDict) -> int:
        """Returns the last round of a run: that of `config`, or of the budget."""
        return self.guarantee.rounds if self.guarantee else config.rounds


class _Problem(NamedTuple):
    """What a config trains, read and checked.

    Attributes:
      config: the config itself.
      splits: the data.
      seen: the way in which the model sees them.
      loss_of: `(numbers) -> Loss`.
      inputs: shape of the first example, as the data set has it.
      params: shapes of the model's parameters.
      initial: arrays that it begins with, by name, in place of random ones.
      batches: shapes of what a client trains on in a round.
    """

    config: ConfigDict
    splits: datasets.Splits
    seen: Seen
    loss_of: Callable[[Numbers], models.Loss]
    inputs: jax.ShapeDtypeStruct
    params: Tree
    initial: Arrays
    batches: Any

    def dealt(self, seed: int) -> tuple[partition.Partition, partition.Partition]:
        """Returns which client trains on which examples, and holds which ones back."""
        targets, owners = self.splits.train.targets, self.splits.owners
        shares = choices.partition_of(self.config, targets, seed, owners)
        return held_out(shares, self.config.data.held_out, seed=seed)

    def clients(self, numbers: Numbers, seed: int) -> Clients:
        """Returns the clients as they are looked at one by one."""
        loss, examples = self.loss_of(numbers), self.splits.train
        own = methods.personal_of(self.config, loss, numbers)
        batch = self.config.client.batch
        return Clients(loss, examples, *self.dealt(seed), own, batch, seed)

    def shares(self, seed: int) -> partition.Partition:
        """Returns which client trains on which examples."""
        return self.dealt(seed)[0]


def check(config: ConfigDict) -> None:
    """Raises in one line for what can be told of `config` before data are read."""
    choices.check_counts(config)
    inputs.check(config)
    methods.check(config)
    if config.data.clients:  # else the data say how many, and it is checked then
        protection.check(config)


def prepare(
    config: ConfigDict, data_dir: str | None = None, *, noise_multiplier: float = 0.0
) -> Program:
    """Returns the program of a config, checked but for its continuous keys.

    Args:
      config: a config as `configs/default.py` has it.
      data_dir: the folder of raw data sets.
      noise_multiplier: z of a run that has begun; 0: as the config asks for it.

    Raises:
      ValueError, TypeError: in one line, for what a config may not say.
      FileNotFoundError: for data that are not there.
    """
    check(config)
    gc.collect()  # what an earlier run of this process left refers to itself
    mesh, problem = choices.mesh_of(config), _problem(config, data_dir)
    config, identity = problem.config, _agreed(problem, mesh)
    algorithm_of, guarantee = _algorithm(problem, noise_multiplier)
    algorithm = algorithm_of(choices.numbers_of(config))  # says what is wrong with it
    sent = _sent(problem, algorithm) if config.cohort.sending else 0.0
    work = _Work(
        problem,
        algorithm_of,
        cohorts.sampler_of(config, sent),
        mesh,
        choices.chunk_of(config),
        _bank(problem, algorithm, mesh),
    )
    on_host, resident = _dealt(problem, guarantee, NamedSharding(mesh, P()))
    form = choices.data_form_of(config, problem.splits.train, mesh)
    evaluate, test = make_evaluation(problem.loss_of, problem.splits.measured, mesh)
    return Program(
        config=config,
        start=work.start,
        rounds=work.rounds,
        evaluate=evaluate,
        splits=problem.splits,
        seen=problem.seen,
        data=resident,
        test=test,
        metrics=tuple(problem.loss_of(choices.numbers_of(config)).measured),
        algorithm=algorithm_of,
        batches=problem.batches,
        mesh=mesh,
        most=most_of(config),
        clients=problem.clients,
        clock=cohorts.clock_of(config, sent),
        ids=work.ids,
        bank=work.bank,
        streamed=work.from_host(on_host) if form == "streamed" else None,
        guarantee=guarantee,
        identity=identity,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Work:
    """What a program is made of, and its functions, none of which is jitted."""

    problem: _Problem
    algorithm_of: Callable[..., Algorithm]
    sampler: Sampler
    mesh: jax.sharding.Mesh
    chunk: int
    bank: str

    def ids(self, key, number):
        return of_round(self.sampler, key, number).ids

    def start(self, numbers, key):
        own = apart(roots_of(key).public, Purpose.INITIAL)
        params = self.problem.loss_of(numbers).init(own, self.problem.inputs)
        params = placed(params, self.problem.initial)
        rows = self.problem.config.data.clients
        if self.bank == "host":
            rows = jax.eval_shape(self.ids, key, 0).size
        return engine.initial_state(self.algorithm_of(numbers), params, rows)

    def round_of(self, numbers):
        config = self.problem.config
        return engine.make_round(
            self.algorithm_of(numbers),
            choices.fetch_of(config),
            self.mesh,
            chunk=self.chunk,
            recompute=config.compute.updates == "recompute",
        )

    def people_of(self, starts):
        config = self.problem.config
        people = cohorts.weighted_sampler_of(config, self.sampler, starts)
        return host_states.at_places(people) if self.bank == "host" else people

    def rounds(self, numbers, state, key, data, count):
        one_round, people = self.round_of(numbers), self.people_of(data.starts)
        most = most_of(self.problem.config)
        return engine.run_rounds(one_round, people, state, key, data, count, most=most)

    def from_host(self, data: Callable[[int], Any]) -> "Streamed":
        config = self.problem.config

        def one_round(numbers, *rest):
            made = host_data.on_batches(self.round_of(numbers), self.people_of)
            return made(*rest)

        places = host_data.drawing(
            self.sampler,
            multiple=self.mesh.size * self.chunk,
            steps=config.client.steps,
            batch=config.client.batch,
        )
        return Streamed(data=data, places=places, round=one_round)


def _agreed(problem: _Problem, mesh: jax.sharding.Mesh) -> Identity:
    """Returns what all processes have read, before anything is placed on devices."""
    own = identity_of(problem.splits, mesh)
    agreement.require_same(lambda: named(problem.config, own))
    return own


def _bank(problem: _Problem, algorithm: Algorithm, mesh: jax.sharding.Mesh) -> str:
    """Returns where clients' states are."""
    size = host_states.row_bytes(algorithm, problem.params)
    return host_states.place_of(problem.config, size, mesh)


def most_of(config: ConfigDict) -> int:
    """Returns the most rounds of one call of `config`, for whose reports is room."""
    return min(config.eval_every, config.rounds, calls.MOST)


def _problem(config: ConfigDict, data_dir: str | None) -> _Problem:
    splits = inputs.splits_of(config, data_dir, methods.targets_of(config))
    protection.check_data(config, splits)
    if not config.data.clients:  # the data say how many, and what follows from it
        config = choices.with_clients(config, splits)
        check(config)
    seen = inputs.seen_of(config, splits)
    loss_of = functools.partial(methods.loss_of, config, seen)
    first = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype),
        splits.train,
    )
    loss = loss_of(choices.numbers_of(config))
    params = methods.require_runs(config, loss, first)
    initial = weights.initial_of(config, params)
    batches = _batches(config, splits.train)
    return _Problem(
        config, splits, seen, loss_of, first.inputs, params, initial, batches
    )


def _algorithm(
    problem: _Problem, noise_multiplier: float
) -> tuple[Callable[..., Algorithm], Guarantee | None]:
    """Returns `Program.algorithm`, its link guarded, and what that promises."""
    config = problem.config
    bare = methods.bare_of(config, problem.seen, problem.params)
    guarantee = guarantee_of(
        config,
        bare,
        choices.numbers_of(config),
        problem.params,
        problem.batches,
        lambda: problem.shares(config.seed).sizes,
        noise_multiplier=noise_multiplier,
    )

    def algorithm_of(numbers, noisy=True):
        z = guarantee.noise_multiplier if guarantee and noisy else 0.0
        return protection.guarded(config, bare, z, numbers, problem.params)

    return algorithm_of, guarantee


def _sent(problem: _Problem, algorithm: Algorithm) -> float:
    """Returns the bytes that a client sends in a round, which must be known."""
    bits = measure_traffic(algorithm, problem.params, problem.batches).bits_up
    if bits is None:
        msg = (
            "config.cohort: Expected messages of one length with sending > 0, got "
            f"those of algorithm={problem.config.algorithm}."
        )
        raise ValueError(msg)
    return bits / 8


def _dealt(
    problem: _Problem, guarantee: Guarantee | None, same: NamedSharding
) -> tuple[Callable[[int], Any], Callable[[int], draws.Resident]]:
    """Returns `(seed) -> ...` for data on the host, and for data on the devices."""
    train = problem.splits.train

    def shares(seed):
        shares = problem.shares(seed)
        require_sizes(guarantee, shares.sizes)
        return shares

    @functools.cache
    def examples():  # on the devices once, whatever the number of seeds
        return jax.device_put(draws.in_rows(train), same)

    def on_host(seed):
        return streamed.on_host(train, shares(seed))

    def resident(seed):
        return draws.resident(examples(), shares(seed), device=same)

    return on_host, resident


def _batches(config: ConfigDict, train: datasets.Examples):
    lead = (config.client.steps, config.client.batch)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((*lead, *leaf.shape[1:]), leaf.dtype), train
    )
