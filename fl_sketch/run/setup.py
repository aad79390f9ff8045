"""From a config to its data, its model, and pure functions of its continuous keys.

All points of a sweep that share a program share a `Setup`: the data are read once, and
continuous keys stay arguments. `task.build` fixes them for one run.
"""

import dataclasses
import functools
import gc
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from fl_sketch import engine, models
from fl_sketch.config import build, cohorts, inputs, networks, parse, privacy
from fl_sketch.config.guarantee import guarantee_of, require_sizes
from fl_sketch.config.initial import initial_of
from fl_sketch.config.inputs import Seen
from fl_sketch.config.parse import Numbers, section
from fl_sketch.core.keys import Purpose, apart, roots_of
from fl_sketch.core.mappings import flat
from fl_sketch.core.protocols import Algorithm, Key, Roots, Tree
from fl_sketch.data import batches as client_batches
from fl_sketch.data import datasets, examples, partition, residency, streamed
from fl_sketch.data.holdout import held_out
from fl_sketch.engine import costs, host_states, loop, multiprocess
from fl_sketch.engine.client_metrics import MeasuredClients
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.evaluate import make_evaluation
from fl_sketch.engine.relays import Relay
from fl_sketch.engine.rounds import Play
from fl_sketch.models import params_io
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.workdir import secrets, weights
from fl_sketch.workdir.identity import Identity, identity_of, named


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """A config, its data, and what follows from both.

    Attributes:
      config: the config, with the number of clients that the data have.
      splits: the data on the host.
      seen: how the model sees them.
      params: shapes of the model's parameters.
      initial: arrays that it begins with, by name, in place of random ones.
      batches: shapes of what a client trains on in a round.
      mesh: the devices, which may be abstract.
      bare: `(numbers, z) -> Algorithm`, without a mechanism.
      talk: the traffic of a client in a round.
      guarantee: what is promised; None: no message is bounded.
      relay: how messages reach all clients without a server; None: there is one.
      bank: the one of `host_states.PLACES` where clients' states are.
      identity: what it is made of apart from the config.
    """

    config: ConfigDict
    splits: datasets.Splits
    seen: Seen
    params: Tree
    initial: params_io.Arrays
    batches: Any
    mesh: jax.sharding.Mesh
    bare: privacy.Bare
    talk: costs.Traffic
    guarantee: Guarantee | None
    relay: Relay | None
    bank: str
    identity: Identity

    @property
    def private(self) -> bool:
        """Whether there is noise, so that randomness must be secret."""
        return bool(self.guarantee and self.guarantee.private)

    @property
    def last(self) -> int:
        """The last round of a run: that of the config, or of its budget."""
        return self.guarantee.rounds if self.guarantee else self.config.rounds

    @property
    def same(self) -> NamedSharding:
        """The sharding of what all devices hold alike."""
        return NamedSharding(self.mesh, P())

    def loss(self, numbers: Numbers) -> models.Loss:
        """Returns the loss of the model."""
        return build.loss_of(self.config, self.seen, numbers)

    def algorithm(self, numbers: Numbers, noisy: bool = True) -> Algorithm:
        """Returns the algorithm with its mechanism, or without its noise."""
        z = self.guarantee.noise_multiplier if self.guarantee and noisy else 0.0
        return privacy.guarded(self.config, self.bare, z, numbers, self.params)

    def dealt(self, seed: int) -> tuple[partition.Partition, partition.Partition]:
        """Returns which client trains on which examples, and holds which ones back."""
        return _dealt(self.config, self.splits, seed)

    def clients(self, numbers: Numbers, seed: int) -> MeasuredClients:
        """Returns the clients as they are measured one by one."""
        loss, batch = self.loss(numbers), self.config.client.batch
        steps = build.personal_of(self.config, loss, numbers)
        train, dealt = self.splits.train, self.dealt(seed)
        return MeasuredClients(loss, train, *dealt, steps, batch, seed)

    @functools.cached_property
    def sampler(self) -> Sampler:
        """The sampler of cohorts, all clients counting alike."""
        with jax.ensure_compile_time_eval():  # it is kept, and may be read in a trace
            return cohorts.sampler_of(self.config, self.sent)

    @functools.cached_property
    def sent(self) -> float:
        """The bytes that a client sends in a round, if their time counts; else 0."""
        if not self.config.cohort.sending:
            return 0.0
        if self.talk.bits_up is None:
            msg = (
                "config.cohort: Expected messages of one length with sending > 0, got "
                f"those of algorithm={self.config.algorithm}."
            )
            raise ValueError(msg)
        return self.talk.bits_up / 8

    @functools.cached_property
    def prices(self) -> costs.Prices:
        """What a client sends and fetches, in bytes."""
        config = self.config
        cohorts.check_weighting(config, self.talk.counts)
        if self.relay:
            networks.require_sums(self.relay, self.talk)
            exchanges = len(self.talk.sent)
            return costs.Prices(0, relay=self.relay, exchanges=exchanges)
        return costs.prices(
            self.algorithm(parse.numbers_of(config)),
            self.params,
            self.talk,
            download=config.download,
            rounds=self.last,
            gap=config.data.clients / privacy.expected(config),
        )

    @functools.cached_property
    def chunk(self) -> int:
        """How many clients of a round a device works on at a time."""
        places = self.sampler.places
        return self.config.compute.chunk or engine.default_chunk(self.mesh, places)

    @functools.cached_property
    def form(self) -> str:
        """Where the data are, one of `residency.FORMS`."""
        wanted, train = self.config.compute.data, self.splits.train
        with section("compute"):
            return residency.form(wanted, train, self.mesh, self.config.client.batches)

    @functools.cached_property
    def _evaluation(self) -> tuple[Callable, Any]:
        return make_evaluation(self.loss, self.splits.measured, self.mesh)

    @property
    def evaluate(self) -> Callable[[Numbers, Tree, Any], dict[str, jax.Array]]:
        """`(numbers, params, test) -> {"test_loss": ..., "test_accuracy": ...}`."""
        return self._evaluation[0]

    @property
    def test(self) -> Any:
        """The data to test on, spread over the devices."""
        return self._evaluation[1]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what is measured on them apart from the loss, the first decides."""
        return tuple(self.loss(parse.numbers_of(self.config)).measured)

    @property
    def noised(self) -> tuple[str, ...]:
        """Names of what is released with the model for people to look at."""
        mechanism = self.algorithm(parse.numbers_of(self.config)).mechanism
        watched = mechanism.watched if mechanism else ()
        return tuple(f"noised_{name}" for name in watched)

    def start(self, numbers: Numbers, key: Key | Roots) -> engine.State:
        """Returns the state before the first round of a run with roots `key`."""
        own = apart(roots_of(key).public, Purpose.INITIAL)
        first = jax.ShapeDtypeStruct(
            (1, *self.splits.train.inputs.shape[1:]), self.splits.train.inputs.dtype
        )
        params = self.loss(numbers).init(own, first)
        params = params_io.placed(params, self.initial)
        rows = self.config.data.clients
        rows = self.sampler.places if self.bank == "host" else rows
        return engine.initial_state(self.algorithm(numbers), params, rows)

    def play(self, numbers: Numbers) -> Play:
        """Returns how rounds are played, for these continuous keys."""
        config = self.config
        one_round = engine.make_round(
            self.algorithm(numbers),
            parse.fetch_of(config),
            self.mesh,
            chunk=self.chunk,
            recompute=config.compute.updates == "recompute",
        )
        return Play(
            one_round,
            self.sampler,
            functools.partial(cohorts.weighted_sampler_of, config, self.sampler),
            chunk=self.chunk,
            most=min(config.eval_every, config.rounds, loop.MOST),
            bank=self.bank,
            steps=config.client.steps,
            batch=config.client.batch,
        )

    @functools.cached_property
    def _examples(self) -> Any:
        """The training data on the devices once, whatever the number of seeds."""
        rows = client_batches.in_rows(self.splits.train)
        return jax.device_put(rows, self.same)

    def shares(self, seed: int) -> partition.Partition:
        """Returns which client trains on which examples."""
        shares = self.dealt(seed)[0]
        require_sizes(self.guarantee, shares.sizes)
        return shares

    def resident(self, seed: int) -> client_batches.Resident:
        """Returns the training data on the devices, as this seed deals them."""
        return client_batches.resident(
            self._examples, self.shares(seed), device=self.same
        )

    def data(self, seed: int) -> client_batches.Resident | streamed.OnHost:
        """Returns the training data as this seed deals them, where they are to be."""
        if self.form == "streamed":
            return streamed.on_host(self.splits.train, self.shares(seed))
        return self.resident(seed)

    def secret(self, config: ConfigDict | None = None) -> secrets.Secret | None:
        """Returns a secret for a run of `config`, by default the setup's own.

        None: it is not private.
        """
        if not self.private:
            return None
        if self.config.privacy.randomness != "seed":
            return secrets.fresh()
        return secrets.simulated(flat(config or self.config))

    @property
    def clock(self) -> Callable[[Key | Roots, Any], jax.Array] | None:
        """`(roots, number) -> seconds` of a round; None: rounds take no time."""
        return cohorts.clock_of(self.config, self.sent)

    def placed(self, state: engine.State) -> engine.State:
        """Returns the shapes of a `state` with the sharding of each of its arrays."""
        where = engine.layout(self.mesh, state.server.params, state)
        return jax.tree.map(
            lambda leaf, own: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=own
            ),
            state,
            where,
        )

    def with_chunk(self, chunk: int) -> "Setup":
        """Returns the same with so many clients on a device at a time."""
        config = self.config.copy_and_resolve_references()
        config.compute.chunk = chunk
        return dataclasses.replace(self, config=config)


def prepare(
    config: ConfigDict,
    data_dir: str | None = None,
    *,
    mesh: Any = None,
    noise_multiplier: float = 0.0,
) -> Setup:
    """Returns the setup of a config, all of it checked and nothing compiled.

    Args:
      config: a config as `configs/default.py` has it.
      data_dir: the folder of raw data sets.
      mesh: devices that need not exist here; None: those that the config names.
      noise_multiplier: z of a run that has begun; 0: as the config asks for it.

    Raises:
      ValueError, TypeError: in one line, for what a config may not say.
      FileNotFoundError: for data that are not there.
    """
    parse.check(config)
    gc.collect()  # what an earlier run of this process left refers to itself
    here = mesh or parse.mesh_of(config)
    # That one client has a NaN must not end a private run, which all would notice.
    finite, targets = not privacy.protects(config), build.targets_of(config)
    splits = inputs.splits_of(config, data_dir, targets, finite=finite)
    privacy.check_data(config, splits)
    config = parse.with_clients(config, splits)
    privacy.check(config)
    relay, seen = networks.relay_of(config), inputs.seen_of(config, splits)
    params = _shapes(config, splits, seen)
    identity = _identity(config, splits, "" if mesh else engine.name_of(here))
    initial = initial_of(config, params, identity.data)
    numbers, batches = parse.numbers_of(config), _batches(config, splits.train)
    bare = build.bare_of(config, seen, params)
    silent = privacy.guarded(config, bare, 0.0, numbers, params)
    talk = costs.measure_traffic(silent, params, batches)
    guarantee = guarantee_of(
        config,
        silent,
        talk,
        params,
        lambda: _dealt(config, splits, config.seed)[0],
        noise_multiplier=noise_multiplier,
    )
    bank = "devices" if mesh else _bank(config, silent, params, here)
    made = config, splits, seen, params, initial, batches, here, bare, talk
    setup = Setup(*made, guarantee, relay, bank, identity)
    setup.algorithm(numbers)  # raises unless it can be built with its noise
    _ = setup.sampler  # made here, and not while a program is traced
    return setup


def _shapes(config: ConfigDict, splits: datasets.Splits, seen: Seen) -> Tree:
    """Returns the shapes of the model, if it runs on such data."""
    first = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype),
        splits.train,
    )
    loss = build.loss_of(config, seen, parse.numbers_of(config))
    return build.require_runs(config, loss, first)


def _identity(config: ConfigDict, splits: datasets.Splits, devices: str) -> Identity:
    """Returns what all processes have read, before anything is placed on devices."""
    start = config.model.init_from
    identity = identity_of(
        examples.digests(splits),
        devices,
        weights=weights.trained_on(start) if start else None,
        keyed=privacy.protects(config),
    )
    keys = flat(config.to_dict())
    multiprocess.require_same(lambda: named(keys, identity))
    return identity


def _dealt(config: ConfigDict, splits: datasets.Splits, seed: int):
    """Returns which client trains on which examples, and holds which ones back.

    A private run deals by a seed of its own: runs with other seeds then have the same
    clients, and what they give away of a client adds up.
    """
    own = config.data.partition_seed
    if own < 0:
        own = 0 if privacy.protects(config) else seed
    targets, owners = splits.train.targets, splits.owners
    shares = parse.partition_of(config, targets, own, owners)
    with section("data"):
        return held_out(shares, config.data.held_out, seed=own)


def _batches(config: ConfigDict, train: examples.Examples) -> Any:
    lead = (config.client.steps, config.client.batch)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((*lead, *leaf.shape[1:]), leaf.dtype), train
    )


def _bank(config: ConfigDict, algorithm: Algorithm, params: Tree, mesh) -> str:
    """Returns where clients' states are kept, one of `host_states.PLACES`."""
    size = host_states.row_bytes(algorithm, params)
    if size and config.cohort.sampling == "replacement":
        msg = (
            "config.cohort: Expected a client at most once in a round, since those of "
            f"{config.algorithm} keep a state, got sampling='replacement'."
        )
        raise ValueError(msg)
    with section("compute"):
        return host_states.place(
            config.compute.clients, size * config.data.clients, mesh
        )
