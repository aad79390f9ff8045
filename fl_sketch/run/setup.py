"""From a config to its data, its model, and the `Experiment` that it describes."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import engine, models
from fl_sketch.config import arguments, build, inputs, parse, privacy
from fl_sketch.config.inputs import Seen
from fl_sketch.config.parse import section
from fl_sketch.core import free_memory, secret, trees, validate
from fl_sketch.core.constants import Constant, as_argument, trees_of
from fl_sketch.core.mappings import flat
from fl_sketch.core.protocols import Algorithm, Key, Roots, Tree
from fl_sketch.data import Clients, datasets
from fl_sketch.data.examples import digests
from fl_sketch.data.holdout import held_out
from fl_sketch.data.partition import Partition
from fl_sketch.engine import multiprocess
from fl_sketch.engine.evaluate import make_evaluation
from fl_sketch.engine.experiment import Experiment, Hyperparameters, LocalWork
from fl_sketch.engine.rounds import arrays_of
from fl_sketch.models import params_io
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.transforms.parts import Parts
from fl_sketch.workdir import secrets
from fl_sketch.workdir.identity import Identity, everything

PARTITION = (  # keys of data by which examples are split among clients
    "name", "part", "classes", "clients", "partition", "alpha", "per_client",
    "exponent", "held_out",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Setup:
    """A config with its data and its model.

    Attributes:
      config: the config, with the number of clients that the data have.
      hyperparameters: its continuous keys.
      splits: the data on the host.
      seen: the data as inputs of the model.
      params: shapes of the trained parameters.
      parts: the trained and the other arrays of the model; None: all of them train.
      initial: initial arrays by name, instead of random ones.
      mesh: the devices, which may be abstract.
      identity: the identity of the run, apart from the config.
      noise_multiplier: z, if somebody else has chosen it.
      elsewhere: whether the clients' examples are, so that only their shapes are known.
    """

    config: ConfigDict
    hyperparameters: Mapping[str, float]
    splits: datasets.Splits
    seen: Seen
    params: Tree
    parts: Parts | None
    initial: Constant
    mesh: jax.sharding.Mesh
    identity: Identity
    noise_multiplier: float = 0.0
    elsewhere: bool = False

    @functools.cached_property
    def experiment(self) -> Experiment:
        """The run of the config."""
        config, client = self.config, self.config.client
        shares = self.partition(config.seed)[0]
        batch = client.batch or int(shares.sizes.max())
        local = LocalWork(client.steps, batch, client.batches, client.epochs)
        cohort, save_every = cohort_of(config), config.checkpoint_every
        if self.elsewhere:  # a site may be away, and no round is asked for twice
            cohort, save_every = dataclasses.replace(cohort, dropout=True), 1
        with section("compute"):
            return Experiment(
                algorithm=self.algorithm,
                init=self.init,
                clients=Clients(self.splits.train, shares),
                cohort=cohort,
                local=local,
                rounds=config.rounds,
                mesh=self.mesh,
                hyperparameters=self.hyperparameters,
                evaluate=self.evaluate,
                make_guarantee=self.make_guarantee,
                weighting=config.cohort.weighting,
                every=config.eval_every,
                save_every=save_every,
                download="model" if self.elsewhere else config.download,
                chunk=config.compute.chunk,
                data=config.compute.data,
                elsewhere=self.elsewhere,
                advice=arguments.advice(config),
            )

    def make_guarantee(self, noiseless: Algorithm, traffic) -> Guarantee | None:
        """Returns the privacy guarantee; None: nothing is bounded."""
        partition = {name: self.config.data[name] for name in PARTITION}
        if partition["partition"] != "natural" or partition["held_out"]:
            partition["seed"] = self._partition_seed(self.config.seed)
        return privacy.guarantee_of(
            self.config,
            noiseless,
            traffic,
            self.experiment.cohort,
            trees.size(self.params),
            self.experiment.clients.sizes,
            partition=json.dumps(partition),
            noise_multiplier=self.noise_multiplier,
        )

    def loss(self, hyperparameters: Hyperparameters) -> models.Loss:
        """Returns the loss of the model, as a function of what trains."""
        return build.loss_of(self.config, self.seen, hyperparameters, self.parts)

    def algorithm(self, hyperparameters: Hyperparameters, z: float) -> Algorithm:
        """Returns the algorithm with its mechanism, and noise of multiplier z."""
        loss = self.loss(hyperparameters)
        return build.algorithm_of(self.config, loss, self.params, hyperparameters, z)

    def init(self, hyperparameters: Hyperparameters, key: Key) -> Tree:
        """Returns the first model."""
        inputs = self.splits.train.inputs
        first = jax.ShapeDtypeStruct((1, *inputs.shape[1:]), inputs.dtype)
        params = self.loss(hyperparameters).init(key, first)
        return params_io.insert(params, self.initial.value)

    @functools.cached_property
    def metrics(self) -> tuple[str, ...]:
        """Names of what is measured on test data apart from the loss."""
        return tuple(self.loss(self.hyperparameters).measured)

    @functools.cached_property
    def _measuring(self) -> Callable[..., Callable]:
        evaluate, data = make_evaluation(self.loss, self.splits.measured, self.mesh)
        constants = (self.parts.frozen,) if self.parts else ()
        programs: dict[Any, Any] = {}

        def measuring(arrays: Mapping[str, jax.Array], params: Tree) -> Any:
            if (*arrays,) not in programs:
                program = jax.jit(
                    as_argument(
                        lambda arrays, params, data: evaluate(
                            {**self.hyperparameters, **arrays}, params, data
                        ),
                        constants,
                    )
                )
                lowered = program.lower(arrays, params, data, trees_of(constants))
                programs[(*arrays,)] = engine.compile_program(lowered, self.mesh)
            return programs[(*arrays,)](arrays, params, data, trees_of(constants))

        return measuring

    def evaluate(
        self, hyperparameters: Hyperparameters, params: Tree
    ) -> dict[str, float]:
        """Returns the metrics of a model on test data, then its loss."""
        params = jax.device_put(params, engine.layout(self.mesh, params, params))
        found = jax.device_get(self._measuring(arrays_of(hyperparameters), params))
        names = [
            f"{part}_{name}"
            for part in self.splits.measured
            for name in (*self.metrics, "loss")
        ]
        return {name: float(found[name]) for name in names}

    def partition(self, seed: int) -> tuple[Partition, Partition]:
        """Returns which examples each client trains on, and which it holds back."""
        keys, splits = self.config.data, self.splits
        if self.elsewhere:
            starts = np.minimum(np.arange(keys.clients + 1), 1)
            both = Partition(np.zeros(1, np.int32), starts)
            return both, both
        own = self._partition_seed(seed)
        shares = parse.partition_of(keys, splits.train.targets, own, splits.owners)
        with section("data"):
            return held_out(shares, keys.held_out, seed=own)

    def _partition_seed(self, seed: int) -> int:
        """Returns the seed by which examples are split among clients.

        Private runs have a seed of their own for it. Runs with other seeds then have
        the same clients, and their privacy budgets add up.
        """
        if self.config.data.partition_seed >= 0:
            return self.config.data.partition_seed
        return 0 if self.identity.keyed else seed

    def roots(self) -> Roots:
        """Returns roots of a run; of a private one with a secret that is new."""
        return roots_of(self.config, self.experiment.private)

    def longer(self, rounds: int) -> "Setup":
        """Returns the setup of another number of rounds."""
        config = self.config.copy_and_resolve_references()
        config.rounds = rounds
        return dataclasses.replace(self, config=config)


def roots_of(config: ConfigDict, private: bool) -> Roots:
    """Returns roots of a config's run; of a private one the secret may be new."""
    own = None
    if private:
        simulated = config.privacy.randomness == "seed"
        own = secrets.simulated(flat(config)) if simulated else secret.fresh()
    return secret.roots(config.seed, own)


def cohort_of(config: ConfigDict) -> engine.Sampler:
    """Returns the sampler of a config, in which all clients have equal weights."""
    cohort, population = config.cohort, config.data.clients
    samplers = {
        "everyone": lambda: engine.everyone(population),
        "fixed": lambda: engine.fixed_size(population, cohort.size),
        "poisson": lambda: engine.poisson(population, cohort.size),
        "replacement": lambda: engine.with_replacement(population, cohort.size),
    }
    with section("cohort"):
        validate.one_of(tuple(samplers), sampling=cohort.sampling)
        sampler = samplers[cohort.sampling]()
        if cohort.dropout:
            sampler = engine.with_dropout(sampler, cohort.dropout)
    return sampler


def prepare(
    config: ConfigDict,
    data_dir: str | None = None,
    *,
    mesh: Any = None,
    splits: datasets.Splits | None = None,
    elsewhere: bool = False,
    noise_multiplier: float = 0.0,
) -> Setup:
    """Returns the setup of a config, all of it checked and nothing compiled.

    Args:
      config: a config as `configs/default.py` has it.
      data_dir: the folder of raw data sets.
      mesh: devices that need not exist here; None: those that the config names.
      splits: the data; None: they are read.
      elsewhere: as `Setup` has it, and the noise multiplier too.
    """
    hyperparameters = parse.check(config)
    private = privacy.protection_of(config).private
    here = mesh or parse.mesh_of(config.compute)  # refused before data are read
    if splits is None:
        free_memory.let_go()
        # That one client has a NaN must not end a private run, which all would notice.
        splits = inputs.splits_of(config, data_dir, finite=not private)
    privacy.check_data(config, splits)
    config = parse.with_clients(config, splits)
    privacy.check(config)
    seen = inputs.seen_of(config.data, splits)
    model = _shapes(config, splits, build.loss_of(config, seen, hyperparameters))
    identity = Identity(
        digests(splits),
        "" if mesh else engine.name_of(here),
        trained_on=build.seen_by_model(config),
        keyed=private,
    )
    # All processes have read the same, before anything is placed on devices.
    multiprocess.require_same(lambda: everything(config.to_dict(), identity))
    initial = build.initial_of(config, model)
    split = build.parts_of(config, model, initial, None if mesh else here)
    loss = build.loss_of(config, seen, hyperparameters, split)
    params = _shapes(config, splits, loss) if split else model
    if split:
        identity = identity._replace(frozen=params_io.digest(split.frozen.tree))
        initial = {n: initial[n] for n in initial if n in split.chosen.wholly}
    setup = Setup(
        config=config,
        hyperparameters=hyperparameters,
        splits=splits,
        seen=seen,
        params=params,
        parts=split,
        initial=Constant(initial),
        mesh=here,
        identity=identity,
        noise_multiplier=noise_multiplier,
        elsewhere=elsewhere,
    )
    experiment = setup.experiment
    with section("compute"):
        experiment.placement  # noqa: B018 - where data are to be
    experiment.prices  # noqa: B018 - by the algorithm with its noise
    size = experiment.client_state_bytes
    if not mesh and size > (free := free_memory.free(here.local_devices)):
        msg = (
            f"the states of all clients have {size / 1e9:.3g} GB, and a device has "
            f"{free / 1e9:.3g} GB free"
        )
        raise ValueError(msg)
    return setup


def from_config(config: ConfigDict, data_dir: str | None = None) -> Experiment:
    """Returns the experiment of a config; arguments are those of `prepare`."""
    return prepare(config, data_dir).experiment


def _shapes(config: ConfigDict, splits: datasets.Splits, loss: models.Loss) -> Tree:
    """Returns the shapes of the model, if it runs on such data."""
    first = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype),
        splits.train,
    )
    return build.require_runs(config.model.name, loss, first)
