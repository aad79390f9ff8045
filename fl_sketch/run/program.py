"""From a config to pure functions, with all of it checked beforehand.

What a sweep's points share is done once: the data are read, and continuous keys stay
arguments. `build.build` fixes them for one run.
"""

import functools
import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.config import build as methods
from fl_sketch.config import cohorts, networks
from fl_sketch.config import parse as choices
from fl_sketch.config import privacy as protection
from fl_sketch.config.guarantee import guarantee_of, require_sizes
from fl_sketch.config.inputs import Seen
from fl_sketch.config.parse import Numbers
from fl_sketch.core.protocols import Algorithm, Key, Roots, Tree
from fl_sketch.data import batches as draws
from fl_sketch.data import datasets, streamed
from fl_sketch.engine import gossip
from fl_sketch.engine.client_metrics import Clients
from fl_sketch.engine.costs import measure_traffic
from fl_sketch.engine.evaluate import make_evaluation
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.run import agreement, host_states
from fl_sketch.run.round_fns import Nodes, Streamed, Work, most_of
from fl_sketch.run.task import Problem, check, read
from fl_sketch.workdir.identity import Identity, identity_of, named


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
      relay: the way of messages over a graph of clients, whose states have all that
        each node has, and the first node's server as theirs; None: there is a server.
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
    relay: gossip.Relay | None = None
    identity: Identity = Identity()

    @property
    def same(self) -> NamedSharding:
        """How to place what all devices hold alike."""
        return NamedSharding(self.mesh, P())

    def placed(self, state: engine.State) -> engine.State:
        """Returns the shapes of a `state` with where each of its arrays is to lie."""
        where = engine.layout(self.mesh, state.server.params, state)
        return jax.tree.map(
            lambda leaf, own: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=own
            ),
            state,
            where,
        )

    @property
    def private(self) -> bool:
        """Whether somebody is protected, so that randomness must be secret."""
        return bool(self.guarantee and self.guarantee.private)

    def last_round(self, config: ConfigDict) -> int:
        """Returns the last round of a run: that of `config`, or of the budget."""
        return self.guarantee.rounds if self.guarantee else config.rounds


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
    mesh, problem = choices.mesh_of(config), read(config, data_dir)
    config, identity = problem.config, _agreed(problem, mesh)
    work, guarantee = work_of(problem, mesh, noise_multiplier=noise_multiplier)
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
        algorithm=work.algorithm_of,
        batches=problem.batches,
        mesh=mesh,
        most=most_of(config),
        clients=problem.clients,
        clock=cohorts.clock_of(config, work.sent),
        ids=work.ids,
        bank=work.bank,
        streamed=work.from_host(on_host) if form == "streamed" else None,
        guarantee=guarantee,
        relay=work.relay if isinstance(work, Nodes) else None,
        identity=identity,
    )


def work_of(
    problem: Problem,
    mesh: jax.sharding.Mesh,
    *,
    bank: str = "",
    noise_multiplier: float = 0.0,
) -> tuple[Work, Guarantee | None]:
    """Returns the functions of a program, and what they promise.

    Args:
      problem: what is trained.
      mesh: the devices, which need not be at hand.
      bank: the place of clients' states, one of `choices.BANKS`; empty: where the
        config says and there is room.
      noise_multiplier: z of a run that has begun; 0: as the config asks for it.

    Raises:
      ValueError, TypeError: as `prepare` does.
    """
    config = problem.config
    algorithm_of, guarantee = _algorithm(problem, noise_multiplier)
    algorithm = algorithm_of(choices.numbers_of(config))  # says what is wrong with it
    sent = _sent(problem, algorithm) if config.cohort.sending else 0.0
    relay, sampler = networks.relay_of(config), cohorts.sampler_of(config, sent)
    bank = bank or _bank(problem, algorithm, mesh, node=relay is not None)
    chunk = choices.chunk_of(config, mesh, sampler.places)
    parts = problem, algorithm_of, sampler, mesh, chunk, bank, sent
    return (Nodes(*parts, relay) if relay else Work(*parts)), guarantee


def _agreed(problem: Problem, mesh: jax.sharding.Mesh) -> Identity:
    """Returns what all processes have read, before anything is placed on devices."""
    own = identity_of(problem.splits, engine.name_of(mesh))
    agreement.require_same(lambda: named(problem.config, own))
    return own


def _bank(
    problem: Problem, algorithm: Algorithm, mesh: jax.sharding.Mesh, *, node: bool
) -> str:
    """Returns where clients' states are, and what a `node` has without a server."""
    size = host_states.row_bytes(algorithm, problem.params, node=node)
    return host_states.place_of(problem.config, size, mesh)


def _algorithm(
    problem: Problem, noise_multiplier: float
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


def _sent(problem: Problem, algorithm: Algorithm) -> float:
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
    problem: Problem, guarantee: Guarantee | None, same: NamedSharding
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
