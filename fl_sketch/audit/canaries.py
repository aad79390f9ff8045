"""Two neighbouring worlds of a few clients, whose every release the attacker sees.

The rounds are the engine's, and the mechanism is the audited one. The messages of
clients are artificial, and far longer than any bound.

The canary pushes along the first axis, up and down in turn over rounds and exchanges.
Noise that two releases share cancels in a combination in which the canary does not.
Other clients push too, which shows a denominator that counts participants. They push
against the canary along its axis if all participants are known, and otherwise along the
second axis, where their number does not hide the canary.
"""

import fractions
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fl_sketch import engine
from fl_sketch.audit.game import Observe
from fl_sketch.core.protocols import (
    Algorithm,
    Channel,
    Delivery,
    Local,
    Work,
)
from fl_sketch.engine.cohort import Sampler
from fl_sketch.privacy import accounting
from fl_sketch.privacy.accounting import Plan

CANARY = 0  # its number among the clients
LOUD, OTHERS = 1e6, 1e3  # the pushes of the canary and the others, over the bound
FEW, MOST = 4, 64  # units of a game: at least, and at most for an exact rate
NUMBERS = 4  # the length of a message; the last axes have only noise


class Neighbours(NamedTuple):
    """The difference between the two worlds, and what they share."""

    absent: float  # the canary's push without it over that with it; 0: it is away
    axis: int  # along which all others push
    sign: float  # of the others' push along the canary's axis

    @property
    def away(self) -> bool:
        """Whether the canary does not take part in one of the worlds."""
        return self.absent == 0


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

    Fixed samples have whole numbers of units, two at least to share noise. If no `MOST`
    units allow the same rate, the result has the nearest one.
    """
    if plan.sampling == "everyone":
        return plan._replace(population=FEW, sample=FEW)
    if plan.sampling == "poisson":
        sample = FEW * plan.rate
        cut = accounting.cut_chance(FEW, sample)
        return plan._replace(population=FEW, sample=sample, cut=cut)
    rate = fractions.Fraction(int(plan.sample), plan.population)
    near = max(rate.limit_denominator(MOST), fractions.Fraction(1, MOST))
    least = 2 if plan.integers and plan.integers.smallest else 1
    times = max(-(-FEW // near.denominator), -(-least // near.numerator))
    return plan._replace(
        population=times * near.denominator, sample=times * near.numerator
    )


def pushing(
    near: Neighbours,
    *,
    rounds: int,
    exchanges: int = 1,
    limit: float | jax.Array,
) -> Algorithm:
    """Returns an algorithm whose clients push in every exchange of a round.

    Its batches are pairs of the client's number and whether the canary is present. An
    update is [exchanges, numbers], and is sent row by row. The estimate has a row for
    each round, all zeros except the present one, so that a server that adds up
    estimates keeps them apart.
    """
    axes = jnp.eye(NUMBERS)

    def run(server, state, batches, keys):
        del keys
        client, present = batches
        canary = LOUD * jnp.where(present > 0, 1.0, near.absent) * axes[0]
        others = OTHERS * near.sign * axes[near.axis]
        push = limit * jnp.where(client == CANARY, canary, others)
        turns = 1.0 - 2.0 * ((server.round + jnp.arange(exchanges)) % 2)
        return Work(turns[:, None] * push, state, {})

    def protocol(update, memory, keys, round):
        del keys
        means = []
        for number in range(exchanges):
            means.append((yield update[number]))
        rows = jnp.stack(means)
        estimate = jnp.zeros((rounds, *rows.shape)).at[round.number].set(rows)
        return Delivery(estimate, ()), memory

    return Algorithm(Local(run), Channel(protocol), optax.sgd(1.0))


def observer(
    algorithm: Algorithm,
    sampler: Sampler,
    *,
    away: bool,
    population: int,
    rounds: int,
    exchanges: int = 1,
) -> Observe:
    """Returns an attacker's view of a run of the engine, of `pushing` clients.

    A run's releases are float32 [rounds, numbers]. An adaptive threshold is recorded as
    its steps, and messages are divided by it, so that both have the same distribution
    in every round.
    """
    mesh = engine.mesh_over(jax.devices()[:1])
    one_round = engine.make_round(
        algorithm,
        lambda data, client, plan, key: (client, data),
        mesh,
        chunk=population,
    )

    def observe(key, present):
        def cohorts(key):
            cohort = sampler(key)
            gone = (away & (present == 0)) & (cohort.ids == CANARY)
            return cohort._replace(weights=jnp.where(gone, 0, cohort.weights))

        params = jnp.zeros((rounds, exchanges, NUMBERS))
        state = engine.initial_state(algorithm, params, population)
        state, reports = engine.run_rounds(
            one_round, cohorts, state, key, present, rounds, most=rounds
        )
        means = -state.server.params.reshape(rounds, -1)
        others = dict(reports.released)
        threshold = others.pop("threshold", None)
        numbers = [jnp.reshape(value, (rounds, -1)) for value in others.values()]
        if threshold is not None:
            following = jnp.append(threshold[1:], state.server.guard)
            numbers.append(jnp.log(following / threshold)[:, None])
            means = means / threshold[:, None]
        return jnp.concatenate([means, *numbers], axis=1)

    return observe
