"""The games and runs that an audit plays, made of a config."""

import math

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from fl_sketch import engine, models
from fl_sketch.audit import canaries, one_run
from fl_sketch.audit.canaries import Neighbours
from fl_sketch.config import arguments, build, parse, privacy
from fl_sketch.config.guarantee import claimed
from fl_sketch.core.mappings import flat
from fl_sketch.core.protocols import Algorithm, Roots
from fl_sketch.privacy.plans import Plan
from fl_sketch.run.setup import Setup
from fl_sketch.workdir import secrets

UPDATE, SKETCHED = 8, 2.0  # numbers of an update that is bounded before its sketch


def among_clients(setup: Setup, plan: Plan, near: Neighbours, *, silent: bool = False):
    """Returns what an attacker sees of a game among clients, and its plan.

    Those who are `silent` send zeros.
    """
    config, exchanges = setup.config, talk(setup).exchanges
    numbers, few = parse.numbers_of(config), _few(config, plan)
    z = claimed(config, setup.guarantee).noise_multiplier
    like, options, read = canaries.NUMBERS, {}, {}
    width, limit = canaries.NUMBERS, numbers["privacy.threshold"]
    if config.privacy.form == "update":
        like = UPDATE
        op = arguments.sketch_of(few, like)
        options["spread"], read["read"] = canaries.before_a_sketch(op, like)
    local = canaries.shouting(
        near,
        exchanges=exchanges,
        limit=0.0 if silent else limit,
        watched=build.WATCHED if config.privacy.watch else (),
        **options,
    )
    bare = Algorithm(local, canaries.exchanges(exchanges), optax.sgd(1.0))
    guarded = privacy.guarded(few, bare, z, numbers, like)
    assert (mechanism := guarded.mechanism) is not None
    if mechanism.integers:
        width, read["read"] = 2 * width, canaries.with_remainders(mechanism, limit)
    observe = canaries.observer(
        guarded.local,
        guarded.uplink,
        mechanism,
        canaries.sampler(plan.sampling, plan.population, plan.sample),
        away=near.away,
        population=plan.population,
        rounds=plan.steps,
        shape=(exchanges, width),
        **read,
    )
    lengths = (canaries.NUMBERS,) * exchanges
    return observe, plan._replace(
        coordinates=(mechanism.drawn or sum(lengths)) + mechanism.extra,
        shares=int(plan.sample) if plan.shares > 1 else 1,
        integers=mechanism.integers and mechanism.integers.of(lengths),
    )


def _few(config: ConfigDict, plan: Plan) -> ConfigDict:
    """Returns the config of a game among clients.

    Noise on counts is as large as in the config. The rate of an adaptive threshold is
    scaled, since the count of a smaller cohort has relatively more noise.
    """
    few = scaled(config, plan.population, plan.sample)
    size = privacy.expected(config)
    few.privacy.quantile_rate *= privacy.expected(few) / size
    few.privacy.quantile_noise = config.privacy.quantile_noise or size / 20
    few.privacy.watch_noise = config.privacy.watch_noise or size / 20
    if config.privacy.form == "update":
        few.sketch.update({"compression": SKETCHED, "numbers": 0, "rows": 1})
        few.client.clip = 0.0
    return few


def among_examples(setup: Setup, plan: Plan, near: Neighbours):
    """Returns what an attacker sees of a game among examples, and its plan.

    A round has one step, so that the attacker sees every noisy sum.
    """
    config = setup.config
    numbers, few = parse.numbers_of(config), scaled(config, 1, 1)
    z = claimed(config, setup.guarantee).noise_multiplier
    few.client.update({"steps": 1, "batch": int(plan.sample)})
    few.sketch.update({"operator": "identity", "compression": 1.0, "numbers": 0})
    few.sketch.update({"rows": 1, "layout": "whole"})
    few.compressor.compression = 1.0
    # Its gradient is the mean of the inputs.
    linear = models.Loss(
        init=lambda key, inputs: jnp.zeros(canaries.NUMBERS),
        value=lambda params, inputs, targets: jnp.mean(inputs @ params),
        metrics=lambda *_: {},
    )
    algorithm = build.algorithm_of(few, linear, canaries.NUMBERS, numbers, z)
    observe = canaries.observer(
        canaries.one_example_each(algorithm.local),
        canaries.exchanges(1),
        None,
        engine.everyone(1),
        away=False,  # without its example, a batch has one of zeros
        population=1,
        rounds=plan.steps,
        data_of=canaries.examples(near, plan.population, numbers["privacy.threshold"]),
        fetch=parse.fetch_of(few.client),
    )
    return observe, plan._replace(coordinates=canaries.NUMBERS)


def remainders(plan: Plan) -> tuple[int, ...]:
    """Returns which numbers of a round are remainders of integers, if any are."""
    if not plan.integers:
        return ()
    each = range(canaries.NUMBERS, 2 * canaries.NUMBERS)
    starts = range(0, 2 * canaries.NUMBERS * plan.releases, 2 * canaries.NUMBERS)
    return tuple(start + number for start in starts for number in each)


def talk(setup: Setup) -> one_run.Talk:
    """Returns what clients and server exchange in a round of the setup."""
    return one_run.listen(algorithm(setup.config, setup), setup.params, setup.batches)


def algorithm(config: ConfigDict, setup: Setup) -> Algorithm:
    """Returns the algorithm of a config, with the noise of the setup.

    The config may have another number of clients.
    """
    z = claimed(config, setup.guarantee).noise_multiplier
    numbers = parse.numbers_of(config)
    loss = setup.loss(numbers)
    return privacy.algorithm_of(config, loss, setup.params, numbers, z)


def scaled(config: ConfigDict, population: int, sample: float) -> ConfigDict:
    """Returns the config for another number of clients."""
    scaled, size = config.copy_and_resolve_references(), privacy.expected(config)
    scaled.data.clients, scaled.cohort.size = population, max(1, round(sample))
    smallest = config.privacy.smallest_cohort * privacy.expected(scaled) / size
    scaled.privacy.smallest_cohort = math.ceil(smallest)
    return scaled


def roots(config: ConfigDict, number: int) -> Roots:
    """Returns the roots of an audit, whose randomness protects no client."""
    both = secrets.roots(config.seed, secrets.simulated(flat(config)))
    return jax.tree.map(lambda key: jax.random.fold_in(key, number), both)
