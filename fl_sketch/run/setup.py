"""From a config to its data, its model, and pure functions of its continuous keys.

All points of a sweep that share a program share a `Setup`: the data are read once, and
continuous keys stay arguments. `task.of_setup` fixes them for one run.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from fl_sketch import engine, models
from fl_sketch.config import build, inputs, parse, parts, privacy
from fl_sketch.config.cohorts import Cohorts, cohorts_of
from fl_sketch.config.guarantee import guarantee_of, require_sizes
from fl_sketch.config.initial import initial_of, seen_by_model
from fl_sketch.config.inputs import Seen
from fl_sketch.config.parse import Numbers, section
from fl_sketch.core import free_memory, trees
from fl_sketch.core.constants import Constant, size_of
from fl_sketch.core.keys import Purpose, apart, roots_of
from fl_sketch.core.mappings import flat
from fl_sketch.core.protocols import Algorithm, Key, Roots, Tree
from fl_sketch.data import batches as client_batches
from fl_sketch.data import datasets, examples, partition, residency, streamed
from fl_sketch.data.holdout import held_out
from fl_sketch.engine import costs, loop, multiprocess
from fl_sketch.engine.client_metrics import MeasuredClients
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.evaluate import make_evaluation
from fl_sketch.engine.round import client_bytes
from fl_sketch.engine.rounds import Play
from fl_sketch.models import params_io
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.transforms.parts import Parts
from fl_sketch.workdir import secrets
from fl_sketch.workdir.config_file import everything
from fl_sketch.workdir.identity import Identity, identity_of

DEALING = (  # keys of data by which examples are dealt
    "name", "part", "classes", "clients", "partition", "alpha", "per_client",
    "exponent", "held_out",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """A config, its data, and the parts that depend on both.

    Attributes:
      config: the config, with the number of clients that the data have.
      numbers: its continuous keys.
      splits: the data on the host.
      seen: the data as inputs of the model.
      params: shapes of the trained parameters.
      parts: the trained and the other arrays of the model; None: all of them train.
      initial: initial arrays by name, instead of random ones.
      mesh: the devices, which may be abstract.
      talk: the traffic of a client in a round.
      cohorts: the clients of a round.
      identity: the identity of the run, apart from the config.
      guarantee: the privacy guarantee; None: no message is bounded.
      copies: whether clients have the arrays that do not train, and download none.
    """

    config: ConfigDict
    numbers: Numbers
    splits: datasets.Splits
    seen: Seen
    params: Tree
    parts: Parts | None
    initial: Constant
    mesh: jax.sharding.Mesh
    talk: costs.Traffic
    cohorts: Cohorts
    identity: Identity
    guarantee: Guarantee | None = None
    copies: bool = False

    @property
    def private(self) -> bool:
        """Whether there is noise, so that randomness must be secret."""
        return bool(self.guarantee and self.guarantee.private)

    @property
    def client_names(self) -> tuple[str, ...]:
        """The owners' names, where each is a client; none in a private run."""
        owners, names = self.splits.owners, self.splits.owner_names
        natural = self.config.data.partition == "natural"
        if self.private or not natural or owners is None or not names:
            return ()
        return tuple(names[owner] for owner in np.unique(owners))

    @property
    def last(self) -> int:
        """The last round of a run: that of the config, or of its budget."""
        return self.guarantee.rounds if self.guarantee else self.config.rounds

    @property
    def same(self) -> NamedSharding:
        """The sharding of what all devices hold alike."""
        return NamedSharding(self.mesh, P())

    @property
    def sampler(self) -> Sampler:
        """The sampler of cohorts, all clients counting alike."""
        return self.cohorts.sampler

    @property
    def batches(self) -> Any:
        """Shapes of what a client trains on in a round."""
        return _batches(self.config.client, self.splits.train)

    def loss(self, numbers: Numbers) -> models.Loss:
        """Returns the loss of the model, as a function of what trains."""
        return parts.loss_of(self.config, self.seen, numbers, self.parts)

    @property
    def constants(self) -> tuple[Constant, ...]:
        """What does not train, an argument of every program that reads it."""
        return (self.parts.frozen,) if self.parts else ()

    def algorithm(self, numbers: Numbers, noisy: bool = True) -> Algorithm:
        """Returns the algorithm with its mechanism, or without its noise."""
        z = self.guarantee.noise_multiplier if self.guarantee and noisy else 0.0
        loss = self.loss(numbers)
        return privacy.algorithm_of(self.config, loss, self.params, numbers, z)

    def with_noise(self, noise_multiplier: float = 0.0) -> "Setup":
        """Returns the same with its promise; 0: with the noise of the config.

        Raises:
          ValueError: in one line, for a guarantee that cannot be kept.
        """
        guarantee = guarantee_of(
            self.config,
            self.algorithm(self.numbers, noisy=False),
            self.talk,
            self.sampler,
            trees.size(self.params),
            lambda: self.dealt(self.config.seed)[0],
            dealt=self.dealing(self.config.seed),
            noise_multiplier=noise_multiplier,
        )
        setup = dataclasses.replace(self, guarantee=guarantee)
        setup.algorithm(self.numbers)  # raises unless it can be built with its noise
        return setup

    def changed(self, key: str, value: Any) -> "Setup":
        """Returns the same with another value of a key, on which no field depends."""
        config = self.config.copy_and_resolve_references()
        config.update_from_flattened_dict({key: value})
        return dataclasses.replace(self, config=config)

    def dealt(self, seed: int) -> tuple[partition.Partition, partition.Partition]:
        """Returns which client trains on which examples, and holds which ones back."""
        keys, splits, seed = self.config.data, self.splits, self._partition_seed(seed)
        shares = parse.partition_of(keys, splits.train.targets, seed, splits.owners)
        with section("data"):
            return held_out(shares, keys.held_out, seed=seed)

    def dealing(self, seed: int) -> str:
        """Returns how the examples are dealt, in words that tell nothing of them."""
        keys = {name: self.config.data[name] for name in DEALING}
        drawn = keys["partition"] != "natural" or keys["held_out"]
        seeds = {"seed": self._partition_seed(seed)} if drawn else {}
        return json.dumps(keys | seeds)

    def _partition_seed(self, seed: int) -> int:
        """Returns the seed by which a run deals.

        A private run deals examples by a separate seed. Runs with other seeds then have
        the same clients, and their privacy budgets add up.
        """
        if self.config.data.partition_seed >= 0:
            return self.config.data.partition_seed
        return 0 if self.identity.keyed else seed

    def clients(self, numbers: Numbers, seed: int) -> MeasuredClients:
        """Returns the clients as they are measured one by one."""
        return MeasuredClients(self.loss(numbers), self.splits.train, *self.dealt(seed))

    @functools.cached_property
    def prices(self) -> costs.Prices:
        """What a client sends and fetches, in bytes."""
        config = self.config
        return costs.prices(
            self.algorithm(self.numbers),
            self.params,
            self.talk,
            download=config.download,
            rounds=self.last,
            gap=config.data.clients / privacy.expected(config),
            once=0 if self.copies else size_of(self.constants),
        )

    @functools.cached_property
    def chunk(self) -> int:
        """How many clients of a round a device works on at a time."""
        sizes = self.sampler.places, self.talk.working
        given = self.config.compute.chunk
        return engine.chunk_size(self.mesh, *sizes, given=given)

    @functools.cached_property
    def form(self) -> str:
        """Where the data are, one of `residency.FORMS`."""
        wanted, train = self.config.compute.data, self.splits.train
        with section("compute"):
            return residency.form(wanted, train, self.mesh, self.config.client.batches)

    @functools.cached_property
    def evaluation(self) -> tuple[Callable, Any]:
        """What measures a model, as `make_evaluation` returns it, with its data."""
        return make_evaluation(self.loss, self.splits.measured, self.mesh)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what is measured on them apart from the loss, the first decides."""
        return tuple(self.loss(self.numbers).measured)

    def start(self, numbers: Numbers, key: Key | Roots) -> engine.State:
        """Returns the state before the first round of a run with roots `key`."""
        own = apart(roots_of(key).public, Purpose.INITIAL)
        first = jax.ShapeDtypeStruct(
            (1, *self.splits.train.inputs.shape[1:]), self.splits.train.inputs.dtype
        )
        params = self.loss(numbers).init(own, first)
        params = params_io.insert(params, self.initial.value)
        population = self.config.data.clients
        return engine.initial_state(self.algorithm(numbers), params, population)

    def play(self, numbers: Numbers) -> Play:
        """Returns how rounds are played, for these continuous keys."""
        config = self.config  # a private program may not change with more rounds
        last = loop.MOST if self.private else config.rounds
        one_round = engine.make_round(
            self.algorithm(numbers),
            parse.fetch_of(config.client),
            self.mesh,
            chunk=self.chunk,
        )
        return Play(
            one_round,
            self.sampler,
            self.cohorts.weighted,
            chunk=self.chunk,
            most=min(config.eval_every, loop.MOST, last),
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
        """Returns a secret for a run of `config` or of the setup's own; None: none."""
        if not self.private:
            return None
        if self.config.privacy.randomness != "seed":
            return secrets.fresh()
        return secrets.simulated(flat(config or self.config))

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


def prepare(
    config: ConfigDict, data_dir: str | None = None, *, mesh: Any = None
) -> Setup:
    """Returns the setup of a config, all of it checked and nothing compiled.

    Args:
      config: a config as `configs/default.py` has it.
      data_dir: the folder of raw data sets.
      mesh: devices that need not exist here; None: those that the config names.

    Raises:
      ValueError, TypeError: in one line, for what a config may not say.
      FileNotFoundError: for data that are not there.
    """
    parse.check(config)
    if mesh is None:
        parse.mesh_of(config.compute)  # refused before data are read
    free_memory.let_go()
    # That one client has a NaN must not end a private run, which all would notice.
    finite = not privacy.protection_of(config).private
    return of_splits(config, inputs.splits_of(config, data_dir, finite=finite), mesh)


def of_splits(config: ConfigDict, splits: datasets.Splits, mesh: Any = None) -> Setup:
    """Returns the setup of a config as `prepare` does, with data that were read."""
    numbers = parse.check(config)
    here = mesh or parse.mesh_of(config.compute)
    privacy.check_data(config, splits)
    config = parse.with_clients(config, splits)
    privacy.check(config)
    seen = inputs.seen_of(config.data, splits)
    model = _shapes(config, splits, build.loss_of(config, seen, numbers))
    identity = identity_of(
        examples.digests(splits),
        "" if mesh else engine.name_of(here),
        trained_on=seen_by_model(config),
        keyed=privacy.protection_of(config).private,
    )
    # All processes have read the same, before anything is placed on devices.
    multiprocess.require_same(lambda: everything(config.to_dict(), identity))
    initial = initial_of(config, model)
    split = parts.parts_of(config, model, initial, None if mesh else here)
    loss = parts.loss_of(config, seen, numbers, split)
    params = _shapes(config, splits, loss) if split else model
    if split:
        identity = identity._replace(frozen=params_io.digest(split.frozen.tree))
        initial = {n: initial[n] for n in initial if n in split.chosen.wholly}
    silent = privacy.algorithm_of(config, loss, params, numbers, 0.0)
    batches = _batches(config.client, splits.train)
    talk = costs.measure_traffic(silent, params, batches)
    cohorts = cohorts_of(config, talk)
    size = client_bytes(silent, params) * config.data.clients
    if not mesh and size > (free := free_memory.free(here.local_devices)):
        msg = (
            f"the states of all clients have {size / 1e9:.3g} GB, and a device has "
            f"{free / 1e9:.3g} GB free"
        )
        raise ValueError(msg)
    known = config, numbers, splits, seen, params, split, Constant(initial)
    return Setup(*known, here, talk, cohorts, identity).with_noise()


def _shapes(config: ConfigDict, splits: datasets.Splits, loss: models.Loss) -> Tree:
    """Returns the shapes of the model, if it runs on such data."""
    first = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype),
        splits.train,
    )
    return build.require_runs(config.model.name, loss, first)


def _batches(client: ConfigDict, train: examples.Examples) -> Any:
    lead = (client.steps, client.batch)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((*lead, *leaf.shape[1:]), leaf.dtype), train
    )
