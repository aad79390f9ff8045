"""Many canaries in one run: a lower bound on epsilon from a single training run.

Canaries are artificial clients. A coin decides whether each takes part at all, or under
`replace_one` the sign of its update. In its cohorts it sends a very long update in its
own random direction. The attacker adds up the components of the server's estimates
along each direction, and guesses the coins of the canaries with the largest and the
smallest sums. The data, the channel and the server are those of the run.

(epsilon, delta) privacy bounds how many guesses can be right. Without delta every guess
is right with probability at most p = e^epsilon / (1 + e^epsilon), whatever the others
are. Their number is then no more likely to be large than that of coins with this p.
With delta, some outputs reveal more, and these have a budget: on average at most 2 m
delta of the m canaries are revealed, and with i revealed, i wrong guesses become right.

>>> canaries = 100
>>> lower_bound(20, 10, canaries=canaries, delta=1e-5)  # half of them are right
0.0
>>> 1.8 < lower_bound(20, 20, canaries=canaries, delta=1e-5) < 1.9
True

Reference: Steinke, Nasr and Jagielski (2023), Theorem 5.2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fl_sketch import engine
from fl_sketch.channels import player
from fl_sketch.core import trees, validate
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Algorithm, Key, Memory, Round, Tree
from fl_sketch.engine.cohort import Cohort, Sampler

LOUD = 1e6  # every number of a canary's update
WORD = 32  # signs that a random word makes
AT_ONCE = 16  # canaries whose directions are in memory at the same time


class Canaries(NamedTuple):
    """Artificial clients, with numbers from `first` on."""

    first: int  # also the number of true clients
    count: int
    coins: jax.Array  # 1.0 or -1.0
    away: bool  # those with -1.0 do not take part, rather than push down
    key: Key  # of their directions

    def direction(self, number: jax.Array, like: Tree) -> Tree:
        """Returns the signs of canary `number`, a tree with the shapes of `like`.

        They are computed again at every use, since all of them together would need the
        memory of as many models.
        """
        size = trees.size(like)
        key = jax.random.fold_in(self.key, number)
        words = jax.random.bits(key, (-(-size // WORD), 1), jnp.uint32)
        bits = words >> jnp.arange(WORD, dtype=jnp.uint32) & 1
        signs = 1.0 - 2.0 * bits.ravel()[:size].astype(jnp.float32)
        return trees.unraveler(like)(signs)


class Tracked(NamedTuple):
    """The state of a server's optimizer that the attacker tracks."""

    scores: jax.Array  # sums of all estimates along each direction, [canaries]
    inner: Any


def hears_updates(algorithm: Algorithm, params: Tree, batches: Any) -> bool:
    """Returns whether updates and estimates have the shapes of the model."""

    def play(params, batches):
        server, client = engine.initial_server(algorithm, params)
        keys = round_keys(jax.random.key(0), 0, 0)
        work = algorithm.local.run(server, client.local, batches, keys)
        memory = Memory(client.memory, server.memory)
        arguments = (work.update, memory, keys, Round(server.round))
        means = player.messages(algorithm.uplink, arguments)
        turn = player.play(algorithm.uplink, arguments, means)
        return params, work.update, turn.delivery.estimate

    shapes = jax.tree.map(jnp.shape, jax.eval_shape(play, params, batches))
    return shapes[0] == shapes[1] == shapes[2]


def canaries_of(key: Key, *, first: int, count: int, away: bool) -> Canaries:
    """Returns canaries with random coins and directions, from the attacker's key."""
    toss, directions = jax.random.split(key)
    coins = 2.0 * jax.random.bernoulli(toss, shape=(count,)) - 1.0
    return Canaries(first, count, coins, away, directions)


def with_canaries(algorithm: Algorithm, canaries: Canaries) -> Algorithm:
    """Returns the algorithm with canaries among its clients, and an attacker.

    Its batches are pairs of batches and the client's number, as `fetching` makes them,
    and the server's optimizer has the state `Tracked`. The mechanism of `algorithm`
    must count canaries too.
    """
    local, server = algorithm.local, algorithm.server

    def run(server, state, batches, keys):
        batches, client = batches
        work = local.run(server, state, batches, keys)
        number = jnp.maximum(client - canaries.first, 0)
        coin = 1.0 if canaries.away else canaries.coins[number]
        update = jax.tree.map(
            lambda leaf, sign: jnp.where(
                client >= canaries.first, (LOUD * coin * sign).astype(leaf.dtype), leaf
            ),
            work.update,
            canaries.direction(number, work.update),
        )
        return work._replace(update=update)

    if algorithm.downlink:  # the attacker sees the estimate before it is transformed
        server = optax.chain(algorithm.downlink.transform, server)
    inner = optax.with_extra_args_support(server)

    def init(params):
        return Tracked(jnp.zeros(canaries.count), inner.init(params))

    def update(updates, state, params=None, **extra):
        vector = trees.ravel(updates)

        def along(number):
            direction = canaries.direction(number, updates)
            return jnp.vdot(trees.ravel(direction), vector)

        numbers = jnp.arange(canaries.count)
        scores = jax.lax.map(along, numbers, batch_size=AT_ONCE)
        step, own = inner.update(updates, state.inner, params, **extra)
        return step, Tracked(state.scores + scores, own)

    tracked = optax.GradientTransformationExtraArgs(init, update)
    loud = local._replace(run=run)
    return algorithm._replace(local=loud, server=tracked, downlink=None)


def fetching(fetch: Callable, canaries: Canaries) -> Callable:
    """Returns `fetch` that adds the client's number; a canary gets a client's data."""

    def fetched(data, client, plan, key):
        true_client = jnp.minimum(client, canaries.first - 1)
        return fetch(data, true_client, plan, key), client

    return fetched


def sampling(sampler: Sampler, canaries: Canaries) -> Callable[[Key], Cohort]:
    """Returns `sampler`, in whose cohorts canaries that are away have no weight."""
    if not canaries.away:
        return sampler

    def sample(key):
        cohort = sampler(key)
        number = jnp.clip(cohort.ids - canaries.first, 0, canaries.count - 1)
        gone = (cohort.ids >= canaries.first) & (canaries.coins[number] < 0)
        return cohort._replace(weights=jnp.where(gone, 0, cohort.weights))

    return sample


def program(
    algorithm: Algorithm,
    fetch: Callable,
    sampler: Sampler,
    mesh: jax.sharding.Mesh,
    *,
    first: int,
    count: int,
    away: bool,
    rounds: int,
    **options: Any,
) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Returns `(params, roots, data, key) -> (scores, coins)` of a run, to be jitted.

    The denominator of `algorithm`, and the cohorts of `sampler`, count canaries too.
    Other arguments are those of `Canaries` and of `engine.make_round`.
    """

    def run(params, roots, data, key):
        canaries = canaries_of(key, first=first, count=count, away=away)
        attacked = with_canaries(algorithm, canaries)
        one_round = engine.make_round(
            attacked, fetching(fetch, canaries), mesh, **options
        )
        state = engine.initial_state(attacked, params, first + count)
        cohorts = sampling(sampler, canaries)
        state, _ = engine.run_rounds(
            one_round, cohorts, state, roots, data, rounds, most=rounds
        )
        return state.server.opt.scores, canaries.coins

    return run


def right_guesses(scores: np.ndarray, coins: np.ndarray, each: int) -> int:
    """Returns how many guesses are right, if `each` are made at both ends of scores."""
    validate.at_most(len(scores) // 2, "half of the canaries", each=each)
    order = np.argsort(scores, kind="stable")
    up, down = coins[order[-each:]] > 0, coins[order[:each]] < 0
    return int(up.sum() + down.sum())


def p_value(
    guesses: int, right: int, epsilon: float, *, canaries: int, delta: float
) -> float:
    """Returns a bound on the chance of so many right guesses under (epsilon, delta).

    It is `P[B >= v] + 2 m delta max_i P[v - i <= B < v] / i` over i = 1 ... v, for v
    right ones of r guesses about m canaries. B is binomial with r trials of
    probability e^epsilon / (1 + e^epsilon).
    """
    from scipy import stats  # takes half a second to import

    if right == 0:
        return 1.0
    coin = guesses, 1 / (1 + np.exp(-epsilon))
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), *coin))
    given_away = np.max(below / np.arange(1, right + 1))
    tail = stats.binom.sf(right - 1, *coin)
    return float(min(1.0, tail + 2 * canaries * delta * given_away))


def lower_bound(
    guesses: int,
    right: int,
    *,
    canaries: int,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Returns a lower bound on the true epsilon, with this confidence."""

    def refuted(epsilon):
        chance = p_value(guesses, right, epsilon, canaries=canaries, delta=delta)
        return chance <= 1 - confidence

    low, high = 0.0, 40.0
    if not refuted(low):
        return 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
