"""From a config to everything that one run needs."""

import functools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.config import arguments, cohorts, networks
from fl_sketch.config import build as methods
from fl_sketch.config import parse as choices
from fl_sketch.config import privacy as protection
from fl_sketch.config.parse import Numbers
from fl_sketch.core import free_memory, trees
from fl_sketch.core.protocols import Algorithm, Key, Roots, Tree
from fl_sketch.engine import costs as traffic
from fl_sketch.engine import gossip, prefetch
from fl_sketch.engine.client_metrics import Clients
from fl_sketch.engine.evaluate import in_order
from fl_sketch.engine.rounds import compile_rounds
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.run import host_states, nodes
from fl_sketch.run.program import Program, prepare
from fl_sketch.workdir import secrets
from fl_sketch.workdir.identity import Identity

TIMED = 100  # rounds that are timed together


class Experiment(NamedTuple):
    """What `train` runs.

    Attributes:
      config: the config, with the number of clients that the data have.
      start: `() -> State` before the first round.
      compile: `() -> Compiled`, the slow part of setting up.
      secret: the secret from which a private run draws what protects; None: nothing.
      keyed: `(secret) -> Experiment`, the same with another secret.
      prices: what clients are sent, for the ledger.
      population: the number of clients.
      rounds: the round with which a run ends: the config's last, or the budget's.
      facts: what is known before anything runs, for the summary.
      model: what one must know to use its model elsewhere.
      clock: `(done) -> seconds` that so many rounds take; None: nobody asked for time.
      clients: `() -> Clients`, to be looked at one by one.
      advice: what may help if it diverges.
      guarantee: what may be said of its privacy; None: nothing is private.
      relay: the way of messages over a graph; None: there is a server.
      identity: what it is made of beside the config.
    """

    config: ConfigDict
    start: Callable[[], engine.State]
    compile: Callable[[], "Compiled"]
    secret: secrets.Secret | None
    keyed: Callable[[secrets.Secret | None], "Experiment"]
    prices: traffic.Prices
    population: int
    rounds: int
    facts: dict[str, Any]
    model: dict[str, Any]
    clock: Callable[[int], float] | None
    clients: Callable[[], Clients]
    advice: str
    guarantee: Guarantee | None = None
    relay: gossip.Relay | None = None
    identity: Identity = Identity()

    @property
    def private(self) -> bool:
        """Whether somebody is protected."""
        return self.secret is not None

    @property
    def noised(self) -> tuple[str, ...]:
        """Names of what is released beside the model to be looked at."""
        return tuple(self.facts["noised"])


class Compiled(NamedTuple):
    """A run's programs.

    Attributes:
      advance: `(state, count) -> (State, Report)`, the reports on the devices or as
        numpy arrays. The state given is used up.
      evaluate: `(state) -> {"test_loss": ..., "test_accuracy": ...}`, floats.
      seconds: the time that compiling took.
    """

    advance: Callable[[engine.State, int], tuple[engine.State, engine.Report]]
    evaluate: Callable[[engine.State], dict[str, float]]
    seconds: float


def build(
    config: ConfigDict, data_dir: str | None = None, *, noise_multiplier: float = 0.0
) -> Experiment:
    """Returns the experiment of `config`, with a secret of its own.

    `data_dir`, `noise_multiplier` and what is raised are those of `prepare`.
    """
    numbers = choices.numbers_of(config)
    program = prepare(config, data_dir, noise_multiplier=noise_multiplier)
    config = program.config
    data = (program.streamed or program).data(config.seed)
    start = functools.partial(program.start, numbers)
    state = program.placed(jax.eval_shape(start, jax.eval_shape(jax.random.key, 0)))
    start = jax.jit(start, out_shardings=jax.tree.map(lambda x: x.sharding, state))
    algorithm, params = program.algorithm(numbers), state.server.params
    talk, prices = _priced(config, program, algorithm, params)

    def keyed(own: secrets.Secret | None) -> Experiment:
        @functools.cache
        def roots():
            return secrets.roots(config.seed, own, program.same)

        def start_():
            fresh, on_host = start(roots()), program.bank == "host"
            return host_states.start(fresh, config.data.clients) if on_host else fresh

        return Experiment(
            config=config,
            start=start_,
            compile=lambda: _compile(program, numbers, state, data, roots()),
            secret=own,
            keyed=keyed,
            prices=prices,
            population=config.data.clients,
            rounds=program.last_round(config),
            facts=_facts(config, program, algorithm, params, talk, prices),
            model=model_of(config, program),
            clock=clock_of(program, roots),
            clients=lambda: program.clients(numbers, config.seed),
            advice=arguments.advice(config),
            guarantee=program.guarantee,
            relay=program.relay,
            identity=program.identity,
        )

    return keyed(secrets.made_for(config) if program.private else None)


def clock_of(
    program: Program, roots: Callable[[], Key | Roots]
) -> Callable[[int], float] | None:
    """Returns `(done) -> seconds`, simulated, that the first rounds take.

    Args:
      program: the program of the rounds; without times there is no clock.
      roots: what gives the roots of the run.
    """
    if program.clock is None:
        return None
    of_rounds = jax.jit(jax.vmap(program.clock, in_axes=(None, 0)))
    known: list[float] = []

    def clock(done: int) -> float:
        while len(known) < done:
            numbers = len(known) + np.arange(TIMED)
            known.extend(np.asarray(of_rounds(roots(), numbers), np.float64).tolist())
        return math.fsum(known[:done])

    return clock


def _priced(
    config: ConfigDict, program: Program, algorithm: Algorithm, params: Tree
) -> tuple[traffic.Traffic, traffic.Prices]:
    """Returns what is said in a round, and what a client fetches before it."""
    talk = traffic.measure_traffic(algorithm, params, program.batches)
    cohorts.check_weighting(config, talk.counts)
    if program.relay:
        networks.require_sums(program.relay, talk)
        return talk, traffic.Prices(0)  # nobody fetches anything
    prices = traffic.prices(
        algorithm,
        params,
        talk,
        download=config.download,
        rounds=program.last_round(config),
        gap=config.data.clients / protection.expected(config),
    )
    return talk, prices


def _compile(program: Program, numbers: Numbers, state, data, roots: Roots) -> Compiled:
    """Returns the programs of a run with these roots."""
    begin = time.perf_counter()
    given = {"state": state, "key": roots, "data": data}
    if program.streamed:
        places, round_ = program.streamed.places, program.streamed.round
        round_ = functools.partial(round_, numbers)
        advance = prefetch.compile_rounds(places, round_, program.mesh, **given)
    else:
        rounds = functools.partial(program.rounds, numbers)
        advance = compile_rounds(rounds, program.mesh, **given)
    if program.bank == "host":
        draw = jax.jit(program.ids).lower(roots, 0).compile()
        where = jax.tree.map(lambda leaf: leaf.sharding, state.clients)
        put = functools.partial(jax.device_put, device=where)
        advance = host_states.advancing(
            advance, lambda t: np.asarray(draw(roots, t)), put
        )
    evaluate = jax.jit(functools.partial(program.evaluate, numbers))
    evaluate = evaluate.lower(state.server.params, program.test)
    evaluate = evaluate.compile(engine.compiler_options(program.mesh))
    free_memory.give_back()

    def measured(state):
        if program.relay:
            nodes.require_alike(state)
        found = jax.device_get(evaluate(state.server.params, program.test))
        found = in_order(found, program.metrics)
        return {name: float(value) for name, value in found.items()}

    return Compiled(advance, measured, time.perf_counter() - begin)


def _facts(
    config: ConfigDict,
    program: Program,
    algorithm: Algorithm,
    params: Tree,
    talk: traffic.Traffic,
    prices: traffic.Prices,
) -> dict[str, Any]:
    sent, d = sum(talk.sent), trees.size(trees.trained(params))
    kept = host_states.row_bytes(algorithm, params) * config.data.clients
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
        "download": "messages" if prices.followed else "model",
        "bytes_down_of_the_model": prices.model,
        "bytes_down_to_follow": prices.follow.missed + prices.follow.always,
        "bytes_up_planned": talk.bits_up and -(-talk.bits_up // 8),
        "client_state_bytes": kept,
        "client_state": program.bank if kept else None,
        "kept_updates": _kept(config, talk),
        "seed": config.seed,
        "noised": list(_noised(algorithm)),
        "metrics": list(program.metrics),
        **(program.guarantee.facts if program.guarantee else {}),
        **(nodes.facts(program, algorithm, params, talk) if program.relay else {}),
    }


def model_of(config: ConfigDict, program: Program) -> dict[str, Any]:
    """Returns what one must know of the model of a `program` to use it elsewhere.

    Its algorithm and its options are those of `config`.
    """
    own, inputs, seen = config.model, program.splits.train.inputs, program.seen
    scaling = seen.scaling._asdict() if seen.scaling else {}
    texts = {"length": config.data.length, "vocabulary": config.data.vocabulary}
    return {
        "algorithm": config.algorithm,
        "dataset": config.data.name,
        "public": config.data.public,
        "model": own.name,
        "size": own.size,
        "options": methods.options_of(config),
        "loss": own.loss,
        "outputs": seen.classes,
        "inputs": {
            "shape": list(inputs.shape[1:]),
            "dtype": str(inputs.dtype),
            "divided_by": 255 if inputs.dtype == np.uint8 else 1,
            **scaling,
            **(texts if inputs.dtype == np.int32 else {}),
        },
    }


def _noised(algorithm: Algorithm) -> tuple[str, ...]:
    watched = algorithm.mechanism.watched if algorithm.mechanism else ()
    return tuple(f"noised_{name}" for name in watched)


def _kept(config: ConfigDict, talk: traffic.Traffic) -> str:
    """Says what a round holds of the cohort's updates."""
    passes = len(talk.sent) + talk.stateful
    if passes == 1:
        return "a chunk"
    if config.compute.updates == "recompute":
        return f"a chunk, made {passes} times"
    return "the whole cohort"
