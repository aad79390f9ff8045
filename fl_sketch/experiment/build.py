"""From a config to everything a run needs, with all of it checked beforehand."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from fl_sketch import engine, models, trees, validate
from fl_sketch.algorithms import catalog
from fl_sketch.data import clients, datasets, partition
from fl_sketch.protocols import Algorithm, Key

EVALUATION_BATCH = 500


class Experiment(NamedTuple):
    """What `train` runs.

    Attributes:
      state: before the first round.
      key: of the whole run.
      data: the training data with their partition, on the devices.
      rounds: `(state, key, data, count) -> (state, reports)`, jitted for a count.
      evaluate: `(params) -> dict` of test_loss and test_accuracy.
      facts: what is known before anything runs, for the summary.
    """

    state: engine.State
    key: Key
    data: clients.Resident
    rounds: Callable
    evaluate: Callable[[Any], dict[str, float]]
    facts: dict[str, Any]


def build(config: ConfigDict, data_dir: str | None = None) -> Experiment:
    """Returns the experiment of a config.

    Raises:
      ValueError, TypeError: in one line, for what a config may not say.
      FileNotFoundError: for data that are not there.
    """
    _check_numbers(config)
    sampler = _sampler(config)
    splits = datasets.load(config.data.name, data_dir)
    shares = _partition(config, splits.train.targets)
    options = config.model.to_dict()
    model = models.build(options.pop("name"), splits.classes)
    loss = models.classification(model, **options)

    inputs = datasets.normalise(jnp.asarray(splits.train.inputs[:1]))
    key = jax.random.key(config.seed)
    params = loss.init(jax.random.fold_in(key, INITIAL), inputs)
    d = trees.size(params)
    algorithm = _algorithm(config, loss, d)
    mesh = _mesh(config.compute.devices)
    one_round = engine.make_round(
        algorithm, _fetch(config), mesh, chunk=config.compute.chunk or _chunk()
    )
    same = NamedSharding(mesh, P())
    state = engine.initial_state(algorithm, params, config.data.clients)
    run = functools.partial(engine.run_rounds, one_round, sampler)
    return Experiment(
        state=jax.device_put(state, same),
        key=jax.device_put(key, same),
        data=clients.resident(splits.train, shares, device=same),
        rounds=jax.jit(run, static_argnames="rounds", donate_argnums=0),
        evaluate=_evaluator(loss, splits.test),
        facts={
            "algorithm": config.algorithm,
            "d": d,
            "clients": config.data.clients,
            "sketch_size": _sent(algorithm, params) // 32,
            "devices": mesh.size,
            "seed": config.seed,
        },
    )


INITIAL = 0x1217  # sets the key of the initial weights apart from those of rounds


def _check_numbers(config: ConfigDict) -> None:
    """Checks what no constructor would, before any data are read."""
    validate.at_least_one(
        rounds=config.rounds,
        eval_every=config.eval_every,
        clients=config.data.clients,
        steps=config.client.steps,
        batch=config.client.batch,
        rows=config.sketch.rows,
    )
    positive = {"client.rate": config.client.rate, "server.rate": config.server.rate}
    for name, value in positive.items():
        if not 0 < value < float("inf"):
            msg = f"Expected {name} > 0 and finite, got {name}={value}."
            raise ValueError(msg)


def _sampler(config: ConfigDict) -> engine.cohort.Sampler:
    population, size = config.data.clients, config.cohort.size
    samplers = {
        "everyone": lambda: engine.everyone(population),
        "fixed": lambda: engine.fixed_size(population, size),
        "poisson": lambda: engine.poisson(population, size),
        "replacement": lambda: engine.with_replacement(population, size),
    }
    validate.one_of(tuple(samplers), sampling=config.cohort.sampling)
    sampler = samplers[config.cohort.sampling]()
    if config.cohort.dropout:
        return engine.with_dropout(sampler, config.cohort.dropout)
    return sampler


def _partition(config: ConfigDict, labels: np.ndarray) -> partition.Partition:
    data, seed = config.data, config.seed
    count = data.clients
    partitions = {
        "iid": lambda: partition.iid(len(labels), count, seed=seed),
        "dirichlet": lambda: partition.dirichlet(labels, count, data.alpha, seed=seed),
        "label_shards": lambda: partition.label_shards(
            labels, count, data.per_client, seed=seed
        ),
        "classes": lambda: partition.classes_per_client(
            labels, count, data.per_client, seed=seed
        ),
        "power_law": lambda: partition.iid(
            len(labels),
            count,
            sizes=partition.power_law_sizes(
                len(labels), count, exponent=data.exponent, seed=seed
            ),
            seed=seed,
        ),
    }
    validate.one_of(tuple(partitions), partition=data.partition)
    return partitions[data.partition]()


def _algorithm(config: ConfigDict, loss: models.Loss, d: int) -> Algorithm:
    server, sketch = config.server, config.sketch

    def value(params, batch):
        return loss.value(params, datasets.normalise(batch.inputs), batch.targets)

    return catalog.build(
        config.algorithm,
        value,
        client_rate=config.client.rate,
        proximal=config.client.proximal,
        server_rate=server.rate,
        server=catalog.build_optimizer(
            server.optimizer, server.rate, b1=server.b1, b2=server.b2, eps=server.eps
        ),
        sketch=catalog.build_sketch(
            sketch.operator,
            d,
            compression=sketch.compression,
            rows=sketch.rows,
            layout=sketch.layout,
        ),
    )


def _fetch(config: ConfigDict) -> engine.round.Fetch:
    steps, batch = config.client.steps, config.client.batch

    def fetch(data, client, plan, key):
        del plan
        return clients.batches(data, key, client, steps=steps, batch=batch)

    return fetch


def _mesh(devices: int) -> jax.sharding.Mesh:
    available = len(jax.devices())
    validate.at_most(available, "the devices of this machine", devices=devices)
    count = devices or available
    return jax.make_mesh(
        (count,),
        (engine.round.AXIS,),
        axis_types=(AxisType.Auto,),
        devices=jax.devices()[:count],
    )


def _chunk() -> int:
    """Returns how many clients to batch: on a CPU, vmap makes convolutions slow."""
    return 1 if jax.default_backend() == "cpu" else 8


def _sent(algorithm: Algorithm, params) -> int:
    """Returns the bits of a client's messages in a round, from shapes alone."""

    def one(update):
        memory = algorithm.uplink.init(params)
        keys = engine.round.round_keys(jax.random.key(0), 0, 0)
        return algorithm.uplink.mean(update, memory, keys, lambda m: m)[0].bits

    bits = []
    jax.eval_shape(lambda update: bits.append(one(update)), params)
    return int(bits[0])


def _evaluator(loss: models.Loss, test: datasets.Examples) -> Callable:
    """Returns the exact test loss and accuracy, in batches of one size."""
    count = len(test.targets)
    padding = -count % EVALUATION_BATCH
    weights = np.pad(np.ones(count, np.float32), (0, padding))
    whole = jax.tree.map(lambda leaf: _padded(leaf, padding), test)
    batches = jax.tree.map(
        lambda leaf: jnp.asarray(leaf.reshape(-1, EVALUATION_BATCH, *leaf.shape[1:])),
        (*whole, weights),
    )

    @jax.jit
    def sums(params, batches):
        def of_batch(batch):
            inputs, targets, weights = batch
            return loss.metrics(params, datasets.normalise(inputs), targets, weights)

        return jax.tree.map(jnp.sum, jax.lax.map(of_batch, batches))

    def evaluate(params) -> dict[str, float]:
        total = jax.device_get(sums(jax.device_put(params, jax.devices()[0]), batches))
        return {
            "test_loss": float(total["loss"] / total["count"]),
            "test_accuracy": float(total["correct"] / total["count"]),
        }

    return evaluate


def _padded(leaf: np.ndarray, extra: int) -> np.ndarray:
    return np.concatenate([leaf, np.repeat(leaf[:1], extra, axis=0)])
