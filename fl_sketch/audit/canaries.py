"""Two neighbouring worlds of a few clients, whose every release the attacker sees.

The rounds are the engine's, with its samplers, guard and exchanges, and the mechanism
is the audited one. The messages of clients are artificial: short ones, and ones far
longer than any bound. The means of every exchange of every round are recorded apart, so
that no server's optimizer loses any of them.

The canary pushes along the first axis, up and down in turn over rounds and exchanges.
Noise that two releases share cancels in a combination in which the canary does not.
Other clients push too, which shows a denominator that counts participants. They push
against the canary along its axis if all participants are known, and otherwise along the
second axis, where their number does not hide the canary.
"""

import fractions
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch import engine
from fl_sketch.audit.game import Observe
from fl_sketch.core import trees, validate
from fl_sketch.core.protocols import (
    Algorithm,
    Channel,
    Delivery,
    Key,
    Local,
    Mechanism,
    ServerReply,
    Sketch,
    Work,
)
from fl_sketch.data import batches as draws
from fl_sketch.data.examples import Examples
from fl_sketch.engine.cohort import Cohort, Sampler
from fl_sketch.privacy import integer_sums, tails
from fl_sketch.privacy.plans import Plan

CANARY = 0  # its number among the clients, or among the examples of a client
LOUD, OTHERS = 1e6, 1e3  # the pushes of the canary and the others, over the bound
FEW, MOST = 4, 64  # units of a game: at least, and at most for an exact rate
NUMBERS = 4  # the length of a message; the last axes have only noise
LOW = 16  # what of a sum of integers is looked at apart: its remainder


# `(keys, exchange, message) -> numbers` of a mean message, by whoever has the keys.
Read = Callable[[Any, int, jax.Array], jax.Array]


def _as_it_is(keys, exchange, message):
    del keys, exchange
    return message


class Neighbours(NamedTuple):
    """The difference between the two worlds, and what they share.

    Attributes:
      absent: the canary's push in the world without it, over its push in the other; 0:
        it does not take part.
      axis: the axis along which all others push.
      sign: the sign of the others' push along the canary's axis.
    """

    absent: float
    axis: int
    sign: float

    @property
    def away(self) -> bool:
        """Whether the canary does not take part in one of the worlds."""
        return self.absent == 0

    @property
    def mirrored(self) -> bool:
        """Whether the worlds only differ in the sign of the canary's push."""
        return not self.away and self.axis != 0


def neighbours(sampling: str, relation: str) -> Neighbours:
    """Returns the worst known pair of worlds for a sampling and a relation.

    If a fixed number of units takes part, a unit that pushes like all others hides
    nothing, and nothing hides it when it turns around.
    """
    absent = 0.0 if relation == "add_remove" else -1.0
    by_chance = sampling == "poisson"
    return Neighbours(absent, int(by_chance), 1.0 if by_chance else -1.0)


def few(plan: Plan) -> Plan:
    """Returns the plan among a few units, at the same rate.

    Fixed samples have whole numbers of units. If no `MOST` units allow the same rate,
    the result has the nearest one.
    """
    if plan.sampling == "everyone":
        return plan._replace(population=FEW, sample=FEW)
    if plan.sampling == "poisson":
        sample = FEW * plan.rate
        return plan._replace(
            population=FEW, sample=sample, cut=tails.cut_chance(FEW, sample)
        )
    rate = fractions.Fraction(int(plan.sample), plan.population)
    near = max(rate.limit_denominator(MOST), fractions.Fraction(1, MOST))
    shares = 2 if plan.shares > 1 else 1  # of the noise, one for each of a sample
    times = max(-(-FEW // near.denominator), -(-shares // near.numerator))
    return plan._replace(
        population=times * near.denominator, sample=times * near.numerator
    )


def sampler(sampling: str, population: int, sample: float) -> Sampler:
    """Returns the sampler of a few clients, named as in `plans.SAMPLINGS`."""
    samplers = {
        "everyone": lambda: engine.everyone(population),
        "fixed": lambda: engine.fixed_size(population, int(sample)),
        "poisson": lambda: engine.poisson(population, sample),
    }
    validate.one_of(tuple(samplers), sampling=sampling)
    return samplers[sampling]()


def push(near: Neighbours, unit, present, limit: float | jax.Array) -> jax.Array:
    """Returns the push of a unit in a round of even number, float32 [NUMBERS].

    Args:
      near: the worlds.
      unit: the number of the unit; may be traced.
      present: 1.0 in the world with the canary, else 0.0.
      limit: the bound, which every push exceeds.
    """
    canary = LOUD * jnp.where(present > 0, 1.0, near.absent) * _axis(0)
    others = OTHERS * near.sign * _axis(near.axis)
    return limit * jnp.where(unit == CANARY, canary, others)


def shouting(
    near: Neighbours,
    *,
    exchanges: int,
    limit: float | jax.Array,
    watched: Sequence[str] = (),
    spread: Callable[[Any, jax.Array], jax.Array] = lambda keys, pushed: pushed,
) -> Local:
    """Returns local work whose update is the client's push in every exchange.

    Its batches are pairs of the client's number and whether the canary is present.

    Args:
      near: the worlds.
      exchanges: the number of exchanges of a round; the update is [exchanges, numbers].
      limit: the bound on messages.
      watched: names of the numbers that a mechanism adds to the first message.
      spread: `(keys, pushed) -> update`, if the bound is not on messages.
    """

    def run(server, state, batches, keys):
        client, present = batches
        pushed = push(near, client, present, limit)
        signs = _turn(server.round + jnp.arange(exchanges))
        update = spread(keys, signs[:, None] * pushed)
        # A watched number without influence is not a number.
        along = jnp.where((near.axis == 0) | (client == CANARY), pushed[0], jnp.nan)
        diagnostics = dict.fromkeys(watched, _turn(server.round) * along)
        return Work(update, state, diagnostics)

    return Local(run)


def exchanges(count: int) -> Channel:
    """Returns a channel of `count` exchanges, which sends an update row by row."""

    def talk(update, memory, keys, round):
        del keys, round
        means = []
        for number in range(count):
            means.append((yield update[number]))
        return Delivery(jnp.stack(means), update), memory

    return Channel(talk)


def tapped(
    channel: Channel,
    rounds: int,
    read: Read = _as_it_is,
) -> Channel:
    """Returns the channel with every mean that it receives as its estimate.

    The estimate has a row for each round, all zeros except the present one, so that a
    server that adds up estimates keeps them apart.

    Args:
      channel: any channel.
      rounds: the number of rounds of a run.
      read: how the attacker reads a mean message.
    """

    def talk(update, memory, keys, round):
        means, inner = [], channel.talk(update, memory, keys, round)
        try:
            sent = next(inner)
            while True:
                answer = yield sent
                if not isinstance(sent, ServerReply):
                    means.append(read(keys, len(means), trees.ravel(answer)))
                sent = inner.send(answer)
        except StopIteration as end:
            _, memory = end.value
        rows = jnp.stack(means)
        estimate = jnp.zeros((rounds, *rows.shape)).at[round.number].set(rows)
        return Delivery(estimate, ()), memory

    return channel._replace(talk=talk)


def observer(
    local: Local,
    channel: Channel,
    mechanism: Mechanism | None,
    sampler: Sampler,
    *,
    away: bool,
    population: int,
    rounds: int,
    shape: tuple[int, int] = (1, NUMBERS),
    read: Read = _as_it_is,
    data_of: Callable[[jax.Array], Any] = lambda present: present,
    fetch: Callable = lambda data, client, plan, key: (client, data),
) -> Observe:
    """Returns what an attacker sees of a run of the engine.

    Args:
      local: the pushes of clients.
      channel: the channel by which they are sent.
      mechanism: the audited mechanism; None: the local work protects by itself.
      sampler: the sampler of the cohorts.
      away: whether the canary does not take part in the world without it.
      population: the number of clients.
      rounds: the number of rounds of a run.
      shape: the number of exchanges of a round, and the length of a message.
      read: as in `tapped`.
      data_of: `(present) -> data` of the clients.
      fetch: as for `engine.make_round`.
    """
    tap = tapped(channel, rounds, read)
    algorithm = Algorithm(local, tap, optax.sgd(1.0), mechanism)
    mesh = engine.mesh_over(jax.devices()[:1])
    one_round = engine.make_round(algorithm, fetch, mesh, chunk=population)

    def observe(key, present):
        cohorts = _without_the_canary(sampler, away & (present == 0))
        params = jnp.zeros((rounds, *shape))
        state = engine.initial_state(algorithm, params, population)
        state, reports = engine.run_rounds(
            one_round, cohorts, state, key, data_of(present), rounds, most=rounds
        )
        return _releases(state.server, reports.released, rounds)

    return observe


def before_a_sketch(op: Sketch, like: int) -> tuple[Callable, Callable]:
    """Returns (spread, read) for a bound on updates of length `like`.

    A push is a direction of messages. The update is its image under R^T, which R makes
    as long as possible. Divided by the length of that image, the noise in every number
    of a message has one size.
    """

    def images(keys):
        units = jnp.eye(op.size(like))[:NUMBERS]
        shaped = jax.vmap(trees.unraveler(op.zeros(like)))(units)
        back = jax.vmap(lambda unit: op.transpose(keys.shared, unit, like))(shaped)
        return back, jnp.maximum(jnp.linalg.norm(back, axis=1), 1e-6)

    def spread(keys, pushed):
        back, lengths = images(keys)
        return (pushed[0] / lengths) @ back

    def read(keys, exchange, message):
        del exchange
        return message[:NUMBERS] / images(keys)[1]

    return spread, read


def with_remainders(mechanism: Mechanism, limit: float | jax.Array) -> Read:
    """Returns a reading of messages with the remainders of the integers they are of.

    Noise that hides a message hides its low bits too.

    Args:
      mechanism: one that adds up integers, of messages of `NUMBERS` numbers.
      limit: its bound.
    """

    def read(keys, exchange, message):
        whole = integer_sums.behind(mechanism, limit, message, exchange, keys)
        return jnp.concatenate([message, (whole % LOW).astype(jnp.float32)])

    return read


def one_example_each(local: Local) -> Local:
    """Returns the work of one client in a game among its examples, whose pushes turn.

    The model of `local` has `NUMBERS` numbers, which are zero before every round.
    """

    def run(server, state, batches, keys):
        batches = batches._replace(inputs=batches.inputs * _turn(server.round))
        zeros = trees.varying_like(jnp.zeros(NUMBERS), server.params)
        work = local.run(server._replace(params=zeros), state, batches, keys)
        return work._replace(update=work.update[None])

    return local._replace(run=run)


def examples(
    near: Neighbours, count: int, limit: float | jax.Array
) -> Callable[[jax.Array], draws.Resident]:
    """Returns `(present) -> data` of one client with `count` examples that push.

    The gradient of an example is its input, on which `limit` is the bound. A canary
    that is away pushes nothing.
    """

    def data_of(present):
        ids = jnp.arange(count)
        inputs = jax.vmap(lambda unit: push(near, unit, present, limit))(ids)
        targets = jnp.zeros(count, jnp.int32)
        pushes = Examples(inputs, targets)  # pyright: ignore[reportArgumentType]
        return draws.Resident(pushes, ids, jnp.array([0, count], jnp.int32))

    return data_of


def _releases(server, released: dict[str, jax.Array], rounds: int) -> jax.Array:
    """Returns all that was released, float32 [rounds, numbers].

    An adaptive threshold is recorded as its steps, and messages are divided by it, so
    that both have the same distribution in every round.
    """
    means = -server.params.reshape(rounds, -1)
    others = dict(released)
    threshold = others.pop("threshold", None)
    numbers = [jnp.reshape(value, (rounds, -1)) for value in others.values()]
    if threshold is not None:
        following = jnp.append(threshold[1:], server.guard)
        numbers.append(jnp.log(following / threshold)[:, None])
        means = means / threshold[:, None]
    return jnp.concatenate([means, *numbers], axis=1)


def _without_the_canary(sampler: Sampler, away: jax.Array) -> Callable[[Key], Cohort]:
    """Returns the sampler of the world in which the canary may be away."""

    def sample(key):
        cohort = sampler(key)
        gone = away & (cohort.ids == CANARY)
        return cohort._replace(weights=jnp.where(gone, 0, cohort.weights))

    return sample


def _turn(number) -> jax.Array:
    """Returns 1.0 for an even `number` and -1.0 for an odd one, array or not."""
    return 1.0 - 2.0 * (jnp.asarray(number) % 2)


def _axis(number: int) -> jax.Array:
    return jnp.zeros(NUMBERS).at[number].set(1.0)
