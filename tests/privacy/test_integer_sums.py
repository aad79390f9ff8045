"""Messages as integers: their sums are exact, bounded, mixed, and read back."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.core import chacha, modular
from fl_sketch.core.keys import Purpose, round_keys
from fl_sketch.core.protocols import Roots
from fl_sketch.engine import costs
from fl_sketch.engine.plan import plan_of
from fl_sketch.privacy import accounting, clipping, integer_sums, lattice, mechanism
from fl_sketch.sketch import hadamard
from tests.privacy.noise import CLIENTS, C, Z
from tests.quadratics import ALGORITHMS, PARAMS, STEPS, D, flat, optima
from tests.refusals import refused
from tests.simulation import KEY, cohort_of, compiled, with_cohort

ROOTS = Roots(KEY, chacha.key_of(bytes(32)))
MIXING = integer_sums._key(round_keys(ROOTS, 0, 0).shared, Purpose.MIXING, 0)
CLIP = clipping.clip(C)
DATA = np.asarray(optima(CLIENTS))


def integers(bits=16, **options):
    options = {"noise_multiplier": Z, "denominator": CLIENTS} | options
    return mechanism.integers(options.pop("bound", CLIP), bits=bits, **options)


GUARDS = {
    "skellam, of clients": integers(smallest=5),
    "discrete_gaussian, of clients": integers(
        noise="discrete_gaussian", smallest=CLIENTS
    ),
    "skellam, of the server": integers(),
    "discrete_gaussian, of the server": integers(noise="discrete_gaussian"),
}


@functools.lru_cache
def encoding(guard, exchange):
    @compiled
    @functools.partial(jax.vmap, in_axes=(0, 0, None))
    def of(client, message, number):
        keys = round_keys(ROOTS, number, client)
        return guard.encode((), exchange, message, keys).summand

    return of


def summands(guard, messages, exchange=0, number=0):
    """Returns what clients encode, each with keys of its own."""
    count = len(jax.tree.leaves(messages)[0])
    made = encoding(guard, exchange)(np.arange(count), messages, number)
    return jax.device_get(made)


@functools.lru_cache
def releasing(guard, exchange):
    def of(total, number):
        return guard.release((), exchange, total, round_keys(ROOTS, number, 0))

    return compiled(of)


def released(guard, total, exchange=0, number=0):
    return jax.device_get(releasing(guard, exchange)(total, number))


def added(summand):
    return jax.tree.map(lambda leaf: leaf.sum(0, dtype=leaf.dtype), summand)


def words_of(summand):
    """Returns the words of clients, [clients, numbers]."""
    leaves = [leaf for leaf in jax.tree.leaves(summand) if leaf.dtype == np.uint32]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def steps_of(guard, release, exchange=0, number=0):
    """Returns the integers of which a mean was made."""
    keys = round_keys(ROOTS, number, 0)
    return np.asarray(integer_sums.behind(guard, C, release.mean, exchange, keys))


@pytest.mark.parametrize("bits", [8, 13, 32])
def test_words_modulo_mean_signed_numbers(bits):
    numbers = np.array([0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))], np.int64)
    words = jnp.asarray((numbers % 2**32).astype(np.uint32))
    sent = modular.reduced(words, bits)
    assert sent.tolist() == [n % 2**bits for n in numbers.tolist()]
    assert modular.centred(sent, bits).tolist() == numbers.tolist()


@pytest.mark.parametrize("name", GUARDS)
def test_what_is_released_is_the_mean_with_noise_of_the_promised_size(name):
    guard, rounds = GUARDS[name], 400
    messages = jnp.asarray(DATA)[:, :5] / 10

    def once(number):
        def one(client, message):
            keys = round_keys(ROOTS, number, client)
            return guard.encode((), 0, message, keys).summand

        each = jax.vmap(one)(jnp.arange(CLIENTS), messages)
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, 0, dtype=leaf.dtype), each)
        release = guard.release((), 0, total, round_keys(ROOTS, number, 0))
        return release.mean, release.facts["wraps"]

    means, wraps = jax.device_get(compiled(jax.vmap(once))(jnp.arange(rounds)))
    true = jax.vmap(CLIP.apply)(messages)[0].sum(0) / CLIENTS
    several = CLIENTS / (guard.smallest or CLIENTS)
    scale = Z * C / CLIENTS * several**0.5
    assert not wraps.any()
    assert np.abs(means.mean(0) - true).max() < 5 * scale / rounds**0.5
    assert np.std(means - true) == pytest.approx(scale, rel=0.06)


def test_what_is_released_of_nothing_is_whole_steps_of_noise():
    guard = integers(granularity=0.25, noise_multiplier=2.0)
    mean = released(guard, added(summands(guard, jnp.zeros((1, 4))))).mean
    steps = np.asarray(hadamard.rotated(MIXING, mean)) * CLIENTS / (0.25 * C)
    assert np.abs(steps - np.round(steps)).max() < 1e-4 and steps.any()


@pytest.mark.parametrize("length", [1, 4, 300, 2**17])
def test_the_squares_of_a_message_are_bounded_exactly(length):
    guard = integers(bits=12, noise_multiplier=0.0)
    scale = lattice.scale(guard.integers, 0.0, lattice.padded(length))
    messages = jax.random.normal(KEY, (3, length)) * jnp.array([[1e-3], [1.0], [1e5]])
    words = words_of(summands(guard, messages)).view(np.int32).astype(object)
    squares = (words**2).sum(axis=1)
    assert max(squares) <= lattice.square(scale, lattice.padded(length))
    assert squares[2] > 0.9 * scale**2 and squares[0] < squares[1]


@pytest.mark.parametrize(
    ("number", "count"), [(3, 5), (46340, 1), (46340, 2**16), (1000, 2**18), (0, 4)]
)
def test_squares_are_added_up_exactly(number, count):
    whole, square = jnp.full(count, number, jnp.int32), number**2 * count
    for at_most, holds in ((square, True), (max(0, square - 1), square == 0)):
        assert bool(integer_sums._square_at_most(whole, at_most)) == holds


def test_rounding_is_unbiased_and_is_drawn_again_where_it_is_too_long():
    values = jnp.array([0.25, -1.75, 3.0, 1e-9, -1e-9])  # squares 9 to 14
    keys = jax.random.split(KEY, 20_000)

    def each(square):
        def one(key):
            return integer_sums.rounded(key, values, square)

        return np.asarray(compiled(jax.vmap(one))(keys))

    free, bounded = each(100), each(13)
    assert np.abs(free.mean(0) - values).max() < 0.02
    assert (free**2).sum(1).max() == 14
    assert (bounded**2).sum(1).max() == 13 and bounded.any(1).all()
    assert not each(8).any()  # which no rounding has: a message that counts for nothing


def test_a_wrap_is_counted_and_changes_nothing_but_itself():
    """Where steps are so fine that sums do not fit into 8 bits."""
    messages = jnp.tile(jnp.array([[0.5, 0, 0, 0]]), (CLIENTS, 1))
    found = []
    for bits in (8, 20):
        guard = integers(bits, granularity=0.01)
        release = released(guard, added(summands(guard, messages)))
        found.append((steps_of(guard, release), release.facts["wraps"]))
    (short, wraps), (long, none) = found
    turns = (long - short) / 2**8
    assert np.array_equal(turns, np.round(turns))
    assert np.sum(turns != 0) == wraps == np.sum(abs(long) > 2**7) > 0 == none


def test_wraps_are_as_rare_as_promised():
    guard = integers(10, denominator=20, most=20, smallest=20, noise_multiplier=3.0)
    messages = jnp.tile(jax.random.normal(KEY, (1, 1024)), (20, 1))  # all alike
    found = 0
    for number in range(3):
        total = added(summands(guard, messages, number=number))
        found += released(guard, total, number=number).facts["wraps"]
    assert found <= 3 * 1024 * 2 * np.exp(-(lattice.DEVIATIONS**2) / 2)


def test_a_message_that_is_one_number_is_spread_over_all():
    guard = integers(16, noise_multiplier=0.0)
    spread = words_of(summands(guard, jnp.eye(1024)[:2] * 9)).view(np.int32)
    scale = lattice.scale(guard.integers, 0.0, 1024)
    assert np.abs(np.abs(spread) - scale / 32).max() <= 1


def test_no_two_clients_exchanges_or_rounds_share_noise_or_rounding():
    guard, zeros = GUARDS["skellam, of clients"], jnp.zeros((3, 64))
    draws = [
        row.tobytes()
        for exchange in (0, 1)
        for number in (0, 1)
        for row in words_of(summands(guard, zeros, exchange, number))
    ]
    assert len({*draws}) == 12
    central = GUARDS["skellam, of the server"]
    nothing = jax.tree.map(lambda leaf: leaf[0] * 0, summands(central, zeros))
    means = {
        released(central, nothing, exchange, number).mean.tobytes()
        for exchange in (0, 1)
        for number in (0, 1)
    }
    assert len(means) == 4


def test_a_release_is_withheld_from_a_cohort_that_is_too_small():
    algorithm = ALGORITHMS["safl"]._replace(mechanism=GUARDS["skellam, of clients"])
    for people, moves in [(4, False), (5, True)]:
        cohort = cohort_of(range(6), np.arange(6) < people, 6.0)
        state, report = with_cohort(algorithm, cohort, rounds=1)
        assert (flat(state.server.params) != flat(PARAMS)).any() == moves
        assert bool(report.released["withheld"][0]) is not moves


@pytest.mark.parametrize(
    "name", ["skellam, of clients", "discrete_gaussian, of the server"]
)
def test_a_nan_is_rejected_counted_and_kept_out(name):
    algorithm = ALGORITHMS["heaprix"]._replace(mechanism=GUARDS[name])
    data = DATA.copy()
    data[2] = np.nan
    state, report = with_cohort(algorithm, cohort_of(range(CLIENTS)), data=data)
    assert np.isfinite(flat(state.server.params)).all()
    facts = report.simulator_only.diagnostics
    assert facts["mechanism_rejected"].tolist() == [2.0] * 5  # in two exchanges


def traffic_of(name, guard):
    algorithm = ALGORITHMS[name]._replace(mechanism=guard)
    return costs.measure_traffic(algorithm, PARAMS, jnp.zeros((STEPS, D)))


def test_a_round_is_priced_by_its_bits_and_planned_by_its_lengths():
    guard = GUARDS["skellam, of clients"]
    talk = traffic_of("heaprix", guard)  # of 12 and 4 numbers
    lengths = tuple(lattice.padded(count) for count in talk.sent)
    assert talk.bits_up == 16 * sum(lengths) and not talk.coded
    plan = plan_of(
        guard, engine.everyone(CLIENTS), talk, rounds=3, relation="replace_one"
    )
    assert plan.noise == "skellam" and plan.integers.lengths == lengths
    assert (plan.integers.smallest, plan.integers.most) == (5, CLIENTS)
    assert plan.coordinates == sum(lengths) and plan.releases == 2
    assert 0 < accounting.spent(plan, 10 * Z, delta=1e-5) < np.inf


@pytest.mark.parametrize("name", ["quantised", "ef21", "marina", "onebit_adam"])
def test_messages_that_are_no_floats_are_refused(name):
    guard = GUARDS["skellam, of clients"]
    with refused("noise=skellam"):
        plan_of(
            guard,
            engine.everyone(CLIENTS),
            traffic_of(name, guard),
            rounds=3,
            relation="replace_one",
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bits": 7}, "bits=7"),
        ({"noise": "laplace"}, "noise='laplace'"),
        ({"bound": clipping.clip(np.inf), "noise_multiplier": 0.0}, "threshold=inf"),
        ({"granularity": 1e-9}, "granularity=1e-09"),
        ({"smallest": -1}, "smallest=-1"),
        ({"most": -3}, "most=-3"),
        ({"denominator": 0}, "denominator=0"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with refused(words):
        integers(**options)


def test_bits_that_are_too_few_for_a_message_are_refused():
    with refused("bits=8"):
        traffic_of("fedavg", integers(8, denominator=1000, most=1000))
