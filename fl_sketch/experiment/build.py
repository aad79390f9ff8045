"""From a config to everything a run needs, with all of it checked beforehand.

`prepare` does what a sweep's points share: it reads the data, and leaves the
continuous keys as arguments of pure functions. `build` fixes them for one run.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from fl_sketch import engine, models, trees
from fl_sketch.data import clients, datasets, partition, streamed
from fl_sketch.engine import ledger
from fl_sketch.experiment import banked, choices, parts, privately, streaming
from fl_sketch.experiment.choices import Numbers
from fl_sketch.experiment.evaluate import make_evaluation
from fl_sketch.keys import Purpose, for_purpose
from fl_sketch.protocols import Algorithm, Key, Tree

INITIAL = 0x1217  # sets the key of the initial weights apart from those of rounds


class Program(NamedTuple):
    """A config as pure functions of its continuous keys and its seed.

    Attributes:
      start: `(numbers, key) -> State` before the first round.
      rounds: `(numbers, state, key, data, count) -> (State, Report)`, for up to
        `most` rounds.
      evaluate: `(numbers, params, test) -> {"test_loss": ..., "test_accuracy": ...}`.
      splits: the data on the host.
      data: `(seed) -> Resident`, the training data as this seed shares them out; the
        examples are one copy for all seeds.
      test: the test data, spread over the devices.
      algorithm: `(numbers, noisy=True) -> Algorithm`; or without its noise.
      batches: shapes of what a client trains on in a round.
      mesh: the devices.
      most: rounds in a call.
      ids: `(key, number) -> ids` of a round's cohort.
      bank: where clients' states are, one of `banked.PLACES`; on the host, states
        here have a row for each place of a cohort.
      streamed: what to use instead of `data` and `rounds`, which would do as well
        where there is room, if the config's data are streamed; or None.
      promise: what may be said of its privacy; None: nothing is private.
    """

    start: Callable[[Numbers, Key], engine.State]
    rounds: Callable[..., tuple[engine.State, engine.Report]]
    evaluate: Callable[[Numbers, Tree, Any], dict[str, jax.Array]]
    splits: datasets.Splits
    data: Callable[[int], clients.Resident]
    test: Any
    algorithm: Callable[..., Algorithm]
    batches: Any
    mesh: jax.sharding.Mesh
    most: int
    ids: Callable[[Key, jax.typing.ArrayLike], jax.Array]
    bank: str
    streamed: streaming.Streamed | None = None
    promise: privately.Promise | None = None

    @property
    def same(self) -> NamedSharding:
        """How to place what all devices hold alike."""
        return NamedSharding(self.mesh, P())


class _Problem(NamedTuple):
    """What a config trains, read and checked.

    Attributes:
      config: it.
      splits: the data.
      loss_of: `(numbers) -> Loss`.
      inputs: shape of the first example, as the model sees it.
      params: shapes of the model's parameters.
      batches: shapes of what a client trains on in a round.
    """

    config: ConfigDict
    splits: datasets.Splits
    loss_of: Callable[[Numbers], models.Loss]
    inputs: jax.ShapeDtypeStruct
    params: Tree
    batches: Any

    def shares(self, seed: int) -> partition.Partition:
        """Returns which client has which examples."""
        targets, owners = self.splits.train.targets, self.splits.owners
        return choices.partition_of(self.config, targets, seed, owners)


def check(config: ConfigDict) -> None:
    """Raises in one line for what can be told of a config before data are read."""
    choices.check_counts(config)
    privately.check(config)


def prepare(config: ConfigDict, data_dir: str | None = None) -> Program:
    """Returns the program of a config, checked but for its continuous keys.

    Raises:
      ValueError, TypeError: in one line, for what a config may not say.
      FileNotFoundError: for data that are not there.
    """
    check(config)
    sampler = choices.sampler_of(config)
    mesh, chunk = choices.mesh_of(config), choices.chunk_of(config)
    problem = _problem(config, data_dir)
    algorithm_of, promise = _algorithm(problem)
    algorithm = algorithm_of(choices.numbers_of(config))  # says what is wrong with it
    bank = choices.bank_of(config, banked.row_bytes(algorithm, problem.params), mesh)

    def ids(key, number):
        return sampler(for_purpose(key, number, Purpose.COHORT)).ids

    def start(numbers, key):
        inputs = jnp.zeros(problem.inputs.shape, problem.inputs.dtype)
        key = jax.random.fold_in(key, INITIAL)
        params = problem.loss_of(numbers).init(key, inputs)
        rows = config.data.clients
        if bank == "host":
            rows = jax.eval_shape(ids, key, 0).size
        return engine.initial_state(algorithm_of(numbers), params, rows)

    def round_of(numbers):
        return engine.make_round(
            algorithm_of(numbers),
            choices.fetch_of(config),
            mesh,
            chunk=chunk,
            recompute=config.compute.updates == "recompute",
        )

    def people_of(starts):
        people = choices.weighted_sampler_of(config, sampler, starts)
        return banked.at_places(people) if bank == "host" else people

    def rounds(numbers, state, key, data, count):
        one_round, people = round_of(numbers), people_of(data.starts)
        most = config.eval_every
        return engine.run_rounds(one_round, people, state, key, data, count, most=most)

    on_host, resident = _dealt(problem, promise, NamedSharding(mesh, P()))
    from_host = streaming.Streamed(
        data=on_host,
        places=streaming.drawing(
            sampler,
            multiple=mesh.size * chunk,
            steps=config.client.steps,
            batch=config.client.batch,
        ),
        round=streaming.on_batches(round_of, people_of),
    )
    form = streaming.form(choices.data_form_of(config), problem.splits.train, mesh)
    evaluate, test = make_evaluation(problem.loss_of, problem.splits.test, mesh)
    return Program(
        start=start,
        rounds=rounds,
        evaluate=evaluate,
        splits=problem.splits,
        data=resident,
        test=test,
        algorithm=algorithm_of,
        batches=problem.batches,
        mesh=mesh,
        most=config.eval_every,
        ids=ids,
        bank=bank,
        streamed=from_host if form == "streamed" else None,
        promise=promise,
    )


def _problem(config: ConfigDict, data_dir: str | None) -> _Problem:
    splits = choices.splits_of(config, data_dir)
    loss_of = functools.partial(parts.loss_of, config, splits.classes)
    first = jax.ShapeDtypeStruct(
        (1, *splits.train.inputs.shape[1:]), splits.train.inputs.dtype
    )
    inputs = jax.eval_shape(datasets.normalise, first)
    loss = loss_of(choices.numbers_of(config))
    params = jax.eval_shape(loss.init, jax.random.key(0), inputs)
    batches = _batches(config, splits.train)
    return _Problem(config, splits, loss_of, inputs, params, batches)


def _algorithm(
    problem: _Problem,
) -> tuple[Callable[..., Algorithm], privately.Promise | None]:
    """Returns `Program.algorithm`, its link guarded, and what that promises."""
    config, d = problem.config, trees.size(problem.params)

    def bare(numbers, noise_multiplier):
        loss = problem.loss_of(numbers)
        return parts.algorithm_of(config, loss, d, numbers, noise_multiplier)

    promise = privately.promise_of(
        config,
        bare,
        choices.numbers_of(config),
        problem.params,
        problem.batches,
        lambda: problem.shares(config.seed).sizes,
    )

    def algorithm_of(numbers, noisy=True):
        own = promise if noisy else None
        return privately.guarded(config, bare, own, numbers, problem.params)

    return algorithm_of, promise


def _dealt(
    problem: _Problem, promise: privately.Promise | None, same: NamedSharding
) -> tuple[Callable[[int], Any], Callable[[int], clients.Resident]]:
    """Returns `(seed) -> ...` for data on the host, and for data on the devices."""
    train = problem.splits.train

    def shares(seed):
        shares = problem.shares(seed)
        privately.require_sizes(promise, shares.sizes)
        return shares

    @functools.cache
    def examples():  # on the devices once, whatever the number of seeds
        return jax.device_put(train, same)

    def on_host(seed):
        return streamed.on_host(train, shares(seed))

    def resident(seed):
        return clients.resident(examples(), shares(seed), device=same)

    return on_host, resident


class Experiment(NamedTuple):
    """What `train` runs.

    Attributes:
      start: `() -> State` before the first round.
      compile: `() -> Compiled`, the slow part of setting up.
      prices: of fetching the model, for the ledger.
      population: of clients.
      facts: what is known before anything runs, for the summary.
      promise: what may be said of its privacy; None: nothing is private.
    """

    start: Callable[[], engine.State]
    compile: Callable[[], "Compiled"]
    prices: ledger.Prices
    population: int
    facts: dict[str, Any]
    promise: privately.Promise | None = None


class Compiled(NamedTuple):
    """A run's programs.

    Attributes:
      advance: `(state, count) -> (State, Report)`, the reports on the devices or as
        numpy arrays. The state given is used up.
      evaluate: `(state) -> {"test_loss": ..., "test_accuracy": ...}`, floats.
      seconds: that compiling took.
    """

    advance: Callable[[engine.State, int], tuple[engine.State, engine.Report]]
    evaluate: Callable[[engine.State], dict[str, float]]
    seconds: float


def build(config: ConfigDict, data_dir: str | None = None) -> Experiment:
    """Returns the experiment of a config; raises as `prepare` does."""
    numbers = choices.numbers_of(config)
    program = prepare(config, data_dir)
    data = (program.streamed or program).data(config.seed)
    key = jax.jit(jax.random.key, out_shardings=program.same)(config.seed)
    start = jax.jit(
        functools.partial(program.start, numbers), out_shardings=program.same
    )
    state = jax.eval_shape(start, key)
    algorithm, params = program.algorithm(numbers), state.server.params
    talk = ledger.overheard(algorithm, params, program.batches)

    def compile_():
        begin = time.perf_counter()
        placed = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=program.same
            ),
            state,
        )
        rounds = streaming.compile_rounds if program.streamed else _compile_rounds
        advance = rounds(program, numbers, placed, key, data)
        if program.bank == "host":
            draw = jax.jit(functools.partial(program.ids, key)).lower(0).compile()
            put = functools.partial(jax.device_put, device=program.same)
            advance = banked.advancing(advance, lambda t: np.asarray(draw(t)), put)
        evaluate = jax.jit(functools.partial(program.evaluate, numbers))
        evaluate = evaluate.lower(placed.server.params, program.test).compile()

        def measured(state):
            found = jax.device_get(evaluate(state.server.params, program.test))
            return {name: float(value) for name, value in found.items()}

        return Compiled(advance, measured, time.perf_counter() - begin)

    def start_():
        fresh = start(key)
        if program.bank == "host":
            return banked.start(fresh, config.data.clients)
        return fresh

    return Experiment(
        start=start_,
        compile=compile_,
        prices=ledger.prices(algorithm, params, talk, download=config.download),
        population=config.data.clients,
        facts=_facts(config, program, algorithm, params, talk)
        | (program.promise.facts if program.promise else {}),
        promise=program.promise,
    )


def _compile_rounds(program: Program, numbers: Numbers, state, key, data):
    rounds = jax.jit(
        functools.partial(program.rounds, numbers),
        donate_argnums=0,
        out_shardings=program.same,
    )
    rounds = rounds.lower(state, key, data, 0).compile()
    return lambda state, count: rounds(state, key, data, count)


def _facts(
    config: ConfigDict,
    program: Program,
    algorithm: Algorithm,
    params: Tree,
    talk: ledger.Talk,
) -> dict[str, Any]:
    sent, d = sum(talk.sent), trees.size(params)
    kept = banked.row_bytes(algorithm, params) * config.data.clients
    return {
        "algorithm": config.algorithm,
        "dataset": config.data.name,
        "model": config.model.name,
        "d": d,
        "sketch_size": sent,
        "compression": d / sent,
        "clients": config.data.clients,
        "data": "streamed" if program.streamed else "resident",
        "devices": program.mesh.size,
        "exchanges": len(talk.sent),
        "bytes_up_planned": talk.bits_up and -(-talk.bits_up // 8),
        "client_state_bytes": kept,
        "client_state": program.bank if kept else None,
        "kept_updates": _kept(config, talk),
        "seed": config.seed,
    }


def _kept(config: ConfigDict, talk: ledger.Talk) -> str:
    """Says what a round holds of the cohort's updates."""
    passes = len(talk.sent) + talk.stateful
    if passes == 1:
        return "a chunk"
    if config.compute.updates == "recompute":
        return f"a chunk, made {passes} times"
    return "the whole cohort"


def _batches(config: ConfigDict, train: datasets.Examples):
    lead = (config.client.steps, config.client.batch)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((*lead, *leaf.shape[1:]), leaf.dtype), train
    )
