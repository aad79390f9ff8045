"""Rounds whose messages are integers: in the engine, on the wire, and under masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.core import chacha
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Field, Roots
from fl_sketch.core.wire import byte_count, decode, encode
from fl_sketch.engine import clients
from fl_sketch.privacy import clipping, integer_sums, mechanism
from tests.meshes import mesh_of
from tests.privacy.noise import CLIENTS, C, Z
from tests.quadratics import ALGORITHMS, PARAMS, fetch, flat, optima
from tests.simulation import KEY, cohort_of, compiled

ROOTS = Roots(KEY, chacha.key_of(bytes(32)))
DATA = np.asarray(optima(CLIENTS))
IDS, AWAY = [4, 1, 0, 5, 2, 3], 0
COHORT = cohort_of(IDS, [client != AWAY for client in IDS], CLIENTS)
OWNERS = {
    tuple(jax.random.key_data(round_keys(ROOTS, 0, client).own).tolist()): client
    for client in IDS
}
LENGTH = 16  # of a message, padded


def integers(bits=16, smallest=5):
    options = {"noise_multiplier": Z, "denominator": CLIENTS, "smallest": smallest}
    return mechanism.integers(clipping.clip(C), bits=bits, **options)


def in_the_engine(guard, chunk=3, devices=1):
    """Returns the parameters, the summands by client, their sum, and the report."""
    sent, summed = [], []

    def encode(state, exchange, message, keys):
        one = guard.encode(state, exchange, message, keys)
        own = jax.random.key_data(keys.own)
        jax.debug.callback(lambda *got: sent.append(got), one.summand, own)
        return one

    def release(state, exchange, total, keys):
        jax.debug.callback(summed.append, total)
        return guard.release(state, exchange, total, keys)

    heard = guard._replace(encode=encode, release=release)
    algorithm = ALGORITHMS["fedavg"]._replace(mechanism=heard)
    mesh = mesh_of(devices, "clients")
    one_round = compiled(engine.make_round(algorithm, fetch, mesh, chunk=chunk))
    state = engine.initial_state(algorithm, PARAMS, CLIENTS)
    state, report = one_round(state, ROOTS, COHORT, DATA)
    jax.effects_barrier()
    found = {OWNERS.get(tuple(own.tolist())): summand for summand, own in sent}
    return flat(state.server.params), found, summed[0], report


def words_in(summand):
    leaves = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(summand)]
    return np.concatenate([x for x in leaves if x.dtype == np.uint32]).tolist()


def by_python(summands):
    rows = [words_in(one) for client, one in summands.items() if client in IDS]
    assert AWAY in summands and len(rows) == CLIENTS
    away = words_in(summands[AWAY])
    sums = map(sum, zip(*rows, strict=True))
    return [(n - less) % 2**32 for n, less in zip(sums, away, strict=True)]


@pytest.mark.parametrize(
    "smallest",
    [
        pytest.param(5, id="noise of clients"),
        pytest.param(0, id="noise of the server", marks=pytest.mark.slow),
    ],
)
def test_sums_are_those_of_python_to_the_bit(smallest):
    """However clients are spread; one of them does not take part."""
    for chunk, devices in ((1, 1), (3, 1), (1, 2), (2, 3)):
        _, found, total, report = in_the_engine(integers(16, smallest), chunk, devices)
        assert len(words_in(total)) == LENGTH
        assert words_in(total) == by_python(found)
        assert max(map(max, map(words_in, found.values()))) > 2**31  # below zero
    assert byte_count(report.simulator_only.bytes_up) == LENGTH * 16 // 8


def test_a_sum_in_floats_is_another(monkeypatch):
    def in_floats(weights, values):
        shape = (-1,) + (1,) * (values.ndim - 1)
        total = jnp.sum(weights.reshape(shape) * values.astype(jnp.float32), axis=0)
        return total.astype(values.dtype)

    monkeypatch.setattr(clients, "_weighted_sum", in_floats)
    _, found, total, _ = in_the_engine(integers())
    assert words_in(total) != by_python(found)


@pytest.mark.parametrize("bits", [10, 16, 32])
def test_messages_take_their_bits_on_the_wire_and_are_read_back(bits):
    guard = integers(bits)
    _, found, _, _ = in_the_engine(guard)
    for summand in found.values():
        numbers = np.asarray(integer_sums.on_wire(guard, summand))
        field = Field(LENGTH, bits, "uint")
        data = encode((field,), (numbers,))
        assert len(data) == guard.integers.bytes_up(LENGTH) == LENGTH * bits // 8
        assert np.array_equal(decode((field,), data)[0], numbers)


@pytest.mark.parametrize("bits", [10, 16, 32])
def test_sums_of_integers_are_those_of_the_engine_to_the_bit(bits):
    """One client drops out: the engine gives it no weight."""
    guard = integers(bits)
    _, found, total, _ = in_the_engine(guard)
    messages = {
        client: np.asarray(integer_sums.on_wire(guard, summand))
        for client, summand in found.items()
    }
    here = [one.astype(np.uint64) for client, one in messages.items() if client != AWAY]
    hidden = (sum(here) % 2**bits).astype(np.uint32)
    assert np.array_equal(hidden, np.asarray(integer_sums.on_wire(guard, total)))

    received = integer_sums.from_wire(guard, jnp.asarray(hidden), PARAMS, CLIENTS - 1)
    keys = round_keys(ROOTS, 0, 0)
    means = [guard.release((), 0, one, keys).mean for one in (received, total)]
    jax.tree.map(np.testing.assert_array_equal, *means)
    assert any(leaf.any() for leaf in jax.tree.leaves(means[0]))
