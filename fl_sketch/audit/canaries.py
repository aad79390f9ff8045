"""Two neighbouring worlds of a few clients, of which the attacker sees every release.

The rounds are the engine's, with its samplers, guard and exchanges, and the mechanism
is the one that is audited. What clients send is made up. Messages are short, and far
longer than any bound; what comes of them is kept apart for every exchange of every
round, so that nothing is lost on the way through a server's optimizer.

The canary pushes along the first axis, in turn up and down over rounds and exchanges:
noise that two releases share cancels in a combination in which the canary does not.
What the others push shows a denominator that counts who came. They push along the
canary's axis, against it, where it is known who comes. Else they push along the second
axis, where their number does not hide the canary.
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
from fl_sketch.engine import cohort
from fl_sketch.engine.cohort import Sampler
from fl_sketch.privacy.accounting import Plan

CANARY = 0  # its number among the clients, or among a client's examples
LOUD, OTHERS = 1e6, 1e3  # what they push, over the bound
FEW, MOST = 4, 64  # units of a game: at least, and at most to have a rate exactly
NUMBERS = 3  # of a message; on the last axis there is only noise


class Neighbours(NamedTuple):
    """What the two worlds differ in, and what they have in common.

    Attributes:
      absent: what the canary pushes in the world without it, over what it pushes in
        the other; 0: it is away.
      axis: along which all others push.
      sign: the axis's sign, where it is the canary's.
    """

    absent: float
    axis: int
    sign: float

    @property
    def away(self) -> bool:
        """Whether the canary is away in one of the worlds."""
        return self.absent == 0

    @property
    def mirrored(self) -> bool:
        """Whether in the other world there is the canary's mirror image alone."""
        return not self.away and self.axis != 0


def neighbours(sampling: str, relation: str) -> Neighbours:
    """Returns the worst pair of worlds that is known for a sampling and a relation.

    Where a fixed number of units is replaced by another, or all come, a unit that
    pushes like all others hides nothing, and nothing hides it when it turns around.

    Args:
      sampling: one of `accounting.SAMPLINGS`.
      relation: one of `accounting.RELATIONS`.
    """
    absent = 0.0 if relation == "add_remove" else -1.0
    by_chance = sampling == "poisson"
    return Neighbours(absent, int(by_chance), 1.0 if by_chance else -1.0)


def few(plan: Plan) -> Plan:
    """Returns the plan among a few units, at the same rate.

    Samples that are no Poisson samples are of whole numbers of units. Then the rate is
    the nearest that `MOST` units have, where they have none that is the same.

    Args:
      plan: the plan of a run.
    """
    if plan.sampling == "everyone":
        return plan._replace(population=FEW, sample=FEW)
    if plan.sampling == "poisson":
        sample = FEW * plan.rate
        cut = cohort.cut_chance(FEW, sample)
        return plan._replace(population=FEW, sample=sample, cut=cut)
    rate = fractions.Fraction(int(plan.sample), plan.population)
    near = max(rate.limit_denominator(MOST), fractions.Fraction(1, MOST))
    shares = 2 if plan.shares > 1 else 1  # of the noise, one for each of a sample
    times = max(-(-FEW // near.denominator), -(-shares // near.numerator))
    return plan._replace(
        population=times * near.denominator, sample=times * near.numerator
    )


def sampler(sampling: str, population: int, sample: float) -> Sampler:
    """Returns the sampler of a few clients, by its name.

    Args:
      sampling: one of `accounting.SAMPLINGS`.
      population: the number of clients.
      sample: the number of clients of a round; for poisson on average, and of any size.

    Raises:
      ValueError: for a sampling of another name.
    """
    samplers = {
        "everyone": lambda: engine.everyone(population),
        "fixed": lambda: engine.fixed_size(population, int(sample)),
        "poisson": lambda: engine.poisson(population, sample),
    }
    validate.one_of(tuple(samplers), sampling=sampling)
    return samplers[sampling]()


def push(near: Neighbours, unit, present, limit: float | jax.Array) -> jax.Array:
    """Returns what a unit pushes in a round of even number, float32 [NUMBERS].

    Args:
      near: the worlds.
      unit: the unit's number; may be traced.
      present: the number 1.0 in the world with the canary, else 0.0.
      limit: the bound, which all exceed.
    """
    canary = LOUD * jnp.where(present > 0, 1.0, near.absent) * _axis(0)
    others = OTHERS * near.sign * _axis(near.axis)
    return limit * jnp.where(unit == CANARY, canary, others)


def turn(number) -> jax.Array:
    """Returns 1.0 for an even `number` and -1.0 for an odd one, array or not."""
    return 1.0 - 2.0 * (jnp.asarray(number) % 2)


def shouting(
    near: Neighbours,
    *,
    exchanges: int,
    limit: float | jax.Array,
    watched: Sequence[str] = (),
    spread: Callable[[Any, jax.Array], jax.Array] = lambda keys, pushed: pushed,
) -> Local:
    """Returns local work that makes what a client pushes in every exchange of a round.

    Its batches are pairs of the client's number and whether the canary is there.

    Args:
      near: the worlds.
      exchanges: the number of exchanges of a round; the update is [exchanges, numbers].
      limit: the bound on messages.
      watched: names of the numbers that a mechanism adds to the first message.
      spread: `(keys, pushed) -> update`, where it is not a message that is bounded.
    """

    def run(server, state, batches, keys):
        client, present = batches
        pushed = push(near, client, present, limit)
        signs = turn(server.round + jnp.arange(exchanges))
        update = spread(keys, signs[:, None] * pushed)
        # Not a number is what a watched number without influence is.
        along = jnp.where((near.axis == 0) | (client == CANARY), pushed[0], jnp.nan)
        said = turn(server.round) * along
        return Work(update, state, dict.fromkeys(watched, said))

    return Local(run)


def exchanges(count: int) -> Channel:
    """Returns a channel of `count` exchanges, which sends row by row of an update."""

    def talk(update, memory, keys, round):
        del keys, round
        heard = []
        for number in range(count):
            heard.append((yield update[number]))
        return Delivery(jnp.stack(heard), update), memory

    return Channel(talk)


def tapped(
    channel: Channel,
    rounds: int,
    read: Callable[[Any, jax.Array], jax.Array] = lambda keys, message: message,
) -> Channel:
    """Returns the channel with all that it hears as its estimate.

    The estimate has a row for every round, zeros but for the present one, so that a
    server that adds estimates up keeps them apart.

    Args:
      channel: any channel.
      rounds: the number of rounds of a run.
      read: `(keys, message) -> numbers`, what the attacker makes of a mean message.
    """

    def talk(update, memory, keys, round):
        heard, inner = [], channel.talk(update, memory, keys, round)
        try:
            said = next(inner)
            while True:
                answer = yield said
                if not isinstance(said, ServerReply):
                    heard.append(read(keys, trees.ravel(answer)))
                said = inner.send(answer)
        except StopIteration as end:
            _, memory = end.value
        rows = jnp.stack(heard)
        every = jnp.zeros((rounds, *rows.shape)).at[round.number].set(rows)
        return Delivery(every, ()), memory

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
    read: Callable[[Any, jax.Array], jax.Array] = lambda keys, message: message,
    data_of: Callable[[jax.Array], Any] = lambda present: present,
    fetch: Callable = lambda data, client, plan, key: (client, data),
) -> Observe:
    """Returns what an attacker sees of a run of the engine.

    Args:
      local: what clients push.
      channel: the channel by which they send it.
      mechanism: what is audited; None: the local work protects by itself.
      sampler: the sampler of the cohorts.
      away: whether the canary does not take part in the world without it.
      population: the number of clients.
      rounds: the number of rounds of a run.
      shape: the shape of what a round releases: exchanges, and numbers of a message.
      read: `(keys, message) -> numbers`, as in `tapped`.
      data_of: `(present) -> data`, what clients have.
      fetch: a function as for `engine.make_round`.
    """
    tap = tapped(channel, rounds, read)
    algorithm = Algorithm(local, tap, optax.sgd(1.0), mechanism)
    mesh = engine.mesh_over(jax.devices()[:1])
    one_round = engine.make_round(algorithm, fetch, mesh, chunk=population)

    def observe(key, present):
        people = _without_the_canary(sampler, away & (present == 0))
        params = jnp.zeros((rounds, *shape))
        state = engine.initial_state(algorithm, params, population)
        state, reports = engine.run_rounds(
            one_round, people, state, key, data_of(present), rounds, most=rounds
        )
        return _seen(state.server, reports.released, rounds)

    return observe


def before_a_sketch(op: Sketch, like: int) -> tuple[Callable, Callable]:
    """Returns (spread, read), where what is bounded is an update and not a message.

    What is pushed is a direction of messages. The update is its image under R^T, which
    R makes as long as it can be made; over the length of that image, the noise in every
    number of a message is of one size.

    Args:
      op: the operator.
      like: the length of an update.
    """

    def images(keys):
        units = jnp.eye(op.size(like))[:NUMBERS]
        shaped = jax.vmap(trees.unraveler(op.zeros(like)))(units)
        back = jax.vmap(lambda unit: op.transpose(keys.shared, unit, like))(shaped)
        return back, jnp.maximum(jnp.linalg.norm(back, axis=1), 1e-6)

    def spread(keys, pushed):
        back, lengths = images(keys)
        return (pushed[0] / lengths) @ back

    def read(keys, message):
        return message[:NUMBERS] / images(keys)[1]

    return spread, read


def one_example_each(local: Local) -> Local:
    """Returns one client's work in a game among its examples, whose batches turn.

    Args:
      local: work on a model of `NUMBERS` numbers, which starts from zeros every round.
    """

    def run(server, state, batches, keys):
        batches = batches._replace(inputs=batches.inputs * turn(server.round))
        zeros = trees.varying_like(jnp.zeros(NUMBERS), server.params)
        work = local.run(server._replace(params=zeros), state, batches, keys)
        return work._replace(update=work.update[None])

    return local._replace(run=run)


def examples(
    near: Neighbours, count: int, limit: float | jax.Array
) -> Callable[[jax.Array], draws.Resident]:
    """Returns `(present) -> data` of one client, whose examples push.

    Args:
      near: the worlds; where the canary is away, it pushes nothing.
      count: the number of examples.
      limit: the bound on an example's gradient, its input.
    """

    def data_of(present):
        ids = jnp.arange(count)
        inputs = jax.vmap(lambda unit: push(near, unit, present, limit))(ids)
        targets = jnp.zeros(count, jnp.int32)
        own = Examples(inputs, targets)  # pyright: ignore[reportArgumentType]
        return draws.Resident(own, ids, jnp.array([0, count], jnp.int32))

    return data_of


def _seen(server, released: dict[str, jax.Array], rounds: int) -> jax.Array:
    """Returns all that was released, float32 [rounds, numbers].

    A threshold that adapts is seen as its steps, and messages are divided by it: then
    both are as likely in every round, whatever it came to.
    """
    means = -server.params.reshape(rounds, -1)
    beside = dict(released)
    threshold = beside.pop("threshold", None)
    numbers = [jnp.reshape(one, (rounds, -1)) for one in beside.values()]
    if threshold is not None:
        following = jnp.append(threshold[1:], server.guard)
        numbers.append(jnp.log(following / threshold)[:, None])
        means = means / threshold[:, None]
    return jnp.concatenate([means, *numbers], axis=1)


def _without_the_canary(
    sampler: Sampler, away: jax.Array
) -> Callable[[Key], cohort.Cohort]:
    """Returns the sampler of the world in which it is not there, if it is away."""

    def sample(key):
        drawn = sampler(key)
        gone = away & (drawn.ids == CANARY)
        return drawn._replace(weights=jnp.where(gone, 0, drawn.weights))

    return sample


def _axis(number: int) -> jax.Array:
    return jnp.zeros(NUMBERS).at[number].set(1.0)
