"""Messages as integers: their sums are exact, bounded, mixed, and read back."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.core import chacha, modular
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Field, Roots
from fl_sketch.core.wire import byte_count, decode, encode
from fl_sketch.engine import costs
from fl_sketch.engine.plan import plan_of
from fl_sketch.privacy import accounting, clipping, integer_sums, lattice, mechanism
from tests.meshes import mesh_of
from tests.privacy.noise import CLIENTS, C, Z
from tests.quadratics import ALGORITHMS, PARAMS, STEPS, D, fetch, flat, optima
from tests.quick import some_fast
from tests.refusals import refused
from tests.simulation import KEY, cohort_of, compiled, with_cohort

ROOTS = Roots(KEY, chacha.key_of(bytes(32)))
CLIP = clipping.clip(C)
DATA = np.asarray(optima(CLIENTS))


def integers(bits=16, **options):
    options = {"noise_multiplier": Z, "denominator": CLIENTS} | options
    return mechanism.integers(options.pop("bound", CLIP), bits=bits, **options)


GUARDS = {"of clients": integers(smallest=5), "of the server": integers()}


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
    messages = jnp.asarray(DATA)[:, :6] / 10  # no power of two: in two blocks
    assert lattice.padded(6) == 6

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


@pytest.mark.parametrize("length", [1, 4, 300, 2**17 - 9999])
def test_the_squares_of_a_message_are_bounded_exactly(length):
    guard, sent = integers(bits=12, noise_multiplier=0.0), lattice.padded(length)
    scale = lattice.scale(guard.integers, 0.0, sent)
    messages = jax.random.normal(KEY, (3, length)) * jnp.array([[1e-3], [1.0], [1e5]])
    words = words_of(summands(guard, messages)).view(np.int32).astype(object)
    assert words.shape == (3, sent)
    squares = (words**2).sum(axis=1)
    assert max(squares) <= lattice.square(scale, sent)
    assert squares[2] > 0.9 * scale**2 and squares[0] < squares[1]


@pytest.mark.parametrize(
    ("number", "count"),
    [(3, 5), (46340, 1), (46340, 2**16 + 7), (1000, 2**18), (0, 4)],
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


@pytest.mark.slow
def test_wraps_are_counted_and_as_rare_as_promised(monkeypatch):
    """And where sums are given twice the room, none of their bits is left."""
    guard = integers(10, denominator=20, smallest=20, noise_multiplier=3.0)
    alike = jax.random.normal(KEY, (1, 1500))  # all messages, and all in one block
    alike = jnp.where(jnp.arange(1500) < 476, 0, alike)
    messages = jnp.tile(alike, (20, 1))

    def wraps(guard):
        found = [
            released(guard, added(summands(guard, messages, number=n)), number=n)
            for n in range(3)
        ]
        return sum(float(one.facts["wraps"]) for one in found)

    rare = 3 * 1500 * 2 * np.exp(-(lattice.DEVIATIONS**2) / 2)
    assert wraps(guard) <= rare
    monkeypatch.setattr(lattice, "DEVIATIONS", 1.0)
    fine = integers(10, denominator=20, smallest=20, noise_multiplier=3.0)
    assert wraps(fine) > 100 * rare


@pytest.mark.parametrize(
    "length", some_fast([1, 2, 3, 130, 256, 1000, 1500], [1, 130, 1500])
)
def test_mixed_numbers_are_rotated_and_read_back(length):
    """Wherever a vector is long, no number of it is larger than its block allows."""
    sent, rows = lattice.padded(length), 64
    keys = jax.random.split(KEY, rows)
    for place in (0, length // 2, length - 1):
        one = jnp.zeros(length).at[place].set(3.0)

        @compiled
        @jax.vmap
        def both(key, one=one):
            mixed = integer_sums.mixed(key, one, sent)
            return mixed, integer_sums.unmixed(key, mixed, length)

        mixed, back = jax.device_get(both(keys))
        assert mixed.shape == (rows, sent)
        np.testing.assert_allclose(np.linalg.norm(mixed, axis=1), 3, rtol=1e-5)
        np.testing.assert_allclose(back, np.tile(one, (rows, 1)), atol=1e-5)
        square = (mixed**2).mean(0) * lattice.block(sent) / 9
        assert square.max() < 1 + 6 * (2 / rows) ** 0.5


def test_no_two_clients_exchanges_or_rounds_share_noise_or_rounding():
    guard, zeros = GUARDS["of clients"], jnp.zeros((3, 64))
    draws = [
        row.tobytes()
        for exchange in (0, 1)
        for number in (0, 1)
        for row in words_of(summands(guard, zeros, exchange, number))
    ]
    assert len({*draws}) == 12
    central = GUARDS["of the server"]
    shapes = jax.eval_shape(encoding(central, 0), np.arange(3), zeros, 0)
    nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), shapes)
    means = {
        released(central, nothing, exchange, number).mean.tobytes()
        for exchange in (0, 1)
        for number in (0, 1)
    }
    assert len(means) == 4


def test_a_release_is_withheld_from_a_cohort_that_is_too_small():
    algorithm = ALGORITHMS["safl"]._replace(mechanism=GUARDS["of clients"])
    for people, moves in [(4, False), (5, True)]:
        cohort = cohort_of(range(6), np.arange(6) < people, 6.0)
        state, report = with_cohort(algorithm, cohort, rounds=1)
        assert (flat(state.server.params) != flat(PARAMS)).any() == moves
        assert bool(report.released["withheld"][0]) is not moves


def traffic_of(name, guard):
    algorithm = ALGORITHMS[name]._replace(mechanism=guard)
    return costs.measure_traffic(algorithm, PARAMS, jnp.zeros((STEPS, D)))


def test_a_round_is_priced_by_its_bits_and_planned_by_its_lengths():
    guard = GUARDS["of clients"]
    traffic = traffic_of("heaprix", guard)  # of 12 and 4 numbers
    lengths = tuple(lattice.padded(count) for count in traffic.sent)
    assert traffic.bits_up == 16 * sum(lengths) and not traffic.coded
    plan = plan_of(
        guard, engine.everyone(CLIENTS), traffic, rounds=3, relation="replace_one"
    )
    assert plan.noise == "skellam" and plan.integers.lengths == lengths
    assert (plan.integers.smallest, plan.integers.most) == (5, CLIENTS)
    assert plan.coordinates == sum(lengths) and plan.releases == 2
    assert 0 < accounting.epsilon(plan, 10 * Z, delta=1e-5) < np.inf


@pytest.mark.parametrize("name", ["quantised", "ef21", "marina", "onebit_adam"])
def test_messages_that_are_no_floats_are_refused(name):
    guard = GUARDS["of clients"]
    with refused("become integers"):
        plan_of(
            guard,
            engine.everyone(CLIENTS),
            traffic_of(name, guard),
            rounds=3,
            relation="replace_one",
        )


# Rounds of the engine.

LENGTH = lattice.padded(D)  # of a message


@pytest.mark.slow
@pytest.mark.parametrize("name", some_fast(GUARDS, ["of clients"]))
def test_sums_are_the_same_to_the_bit_however_clients_are_spread(name):
    """And whatever the data of a client that is in the cohort, and does not answer."""
    guard, sums, cohort = GUARDS[name], [], cohort_of(range(6), np.arange(6) > 0, 6.0)

    def release(state, exchange, total, keys):
        jax.debug.callback(lambda total: sums.append(words_in(total)), total)
        return guard.release(state, exchange, total, keys)

    heard = guard._replace(release=release)
    algorithm = ALGORITHMS["fedavg"]._replace(mechanism=heard)
    for chunk, devices, away in ((1, 1, 0.0), (2, 3, np.nan)):
        mesh, data = mesh_of(devices, "clients"), DATA.copy()
        data[0] = away
        one_round = compiled(engine.make_round(algorithm, fetch, mesh, chunk=chunk))
        state = engine.initial_state(algorithm, PARAMS, CLIENTS)
        _, report = one_round(state, ROOTS, cohort, data)
        jax.effects_barrier()
        assert sums[-1] == sums[0] and len(sums[0]) == LENGTH
    assert max(sums[0]) > 2**31  # below zero
    assert byte_count(report.simulator_only.bytes_up) == LENGTH * 16 // 8


def words_in(summand):
    rows = jax.tree.map(lambda leaf: np.asarray(leaf)[None], summand)
    return words_of(rows)[0].tolist()


def test_messages_take_their_bits_on_the_wire_and_are_read_back():
    guard, bits = integers(10, smallest=5), 10
    made = summands(guard, DATA)
    for client in range(CLIENTS):
        summand = jax.tree.map(lambda leaf, client=client: leaf[client], made)
        numbers = np.asarray(integer_sums.on_wire(guard, summand))
        field = Field(LENGTH, bits, "uint")
        data = encode((field,), (numbers,))
        assert len(data) == guard.integers.bytes_up(LENGTH) == LENGTH * bits // 8
        assert np.array_equal(decode((field,), data)[0], numbers)
