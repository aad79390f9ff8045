"""Mechanisms draw the noise that the accountant knows, and as much as is left."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import engine
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Encoded
from fl_sketch.core.wire import byte_count
from fl_sketch.privacy import accounting, clipping, gaussian, mechanism
from tests.meshes import mesh_of
from tests.privacy.noise import CLIENTS, GAUSSIAN, GUARDS, C, Z, fits, measured_noise
from tests.quadratics import ALGORITHMS, PARAMS, D, fetch, flat, optima
from tests.simulation import KEY, cohort_of, compiled


def test_the_noise_is_what_the_accountant_assumed():
    noise = measured_noise(GAUSSIAN, 10_000, jnp.zeros(4))
    assert fits(noise, Z * C)
    assert not fits(noise, 2 / 3 * Z * C)
    assert not fits(noise, 3 / 2 * Z * C)
    between = np.corrcoef(np.asarray(noise).T)
    assert np.abs(between - np.eye(4)).max() < 0.05
    later = np.corrcoef(noise[:-1, 0], noise[1:, 0])[0, 1]
    assert abs(later) < 0.05


def test_adaptive_noise_is_what_the_count_leaves_of_it():
    count_noise = 0.4  # most of what z = 0.7 allows
    guard = mechanism.adaptive(
        C, noise_multiplier=Z, denominator=CLIENTS, count_noise=count_noise
    )
    noise = measured_noise(guard, 10_000, (jnp.zeros(4), jnp.zeros(())))
    left = (Z**-2 - (2 * count_noise) ** -2) ** -0.5
    assert left > 2 * Z and fits(noise, left * C)


@pytest.mark.parametrize("guard", ["central", "distributed"])
def test_noise_has_the_tail_that_the_accountant_knows(guard, monkeypatch):
    """That of `gaussian.noise`, and not of jax.random.normal, which ends too soon."""
    zeros, keys = jnp.zeros(4), round_keys(KEY, 0, 0)
    monkeypatch.setattr(
        gaussian, "noise", lambda key, like, scale: jnp.full(like.shape, 11.0 * scale)
    )
    if guard == "central":
        noise, scale = CLIENTS * GAUSSIAN.release((), 0, zeros, keys).mean, Z * C
    else:
        noise = GUARDS[guard].encode((), 0, zeros, keys).summand[0]
        scale = Z * C / 5**0.5
    np.testing.assert_allclose(noise, 11 * scale, rtol=0.01)


def test_the_shares_of_clients_add_up_to_the_noise_on_the_smallest_cohort():
    guard = mechanism.distributed(
        clipping.clip(C), noise_multiplier=Z, denominator=1.0, smallest=5
    )

    def totals(number):
        def one(client):
            keys = round_keys(KEY, number, client)
            return guard.encode((), 0, jnp.zeros(4), keys).summand

        shares = jax.vmap(one)(jnp.arange(6))
        summed = [jax.tree.map(lambda leaf, n=n: leaf[:n].sum(0), shares) for n in few]
        return [guard.release((), 0, total, None) for total in summed]

    few = (4, 5, 6)
    four, five, six = jax.device_get(compiled(jax.vmap(totals))(np.arange(10_000)))
    assert guard.smallest == 5
    assert fits(five.mean, Z * C)
    assert np.std(six.mean) > Z * C
    assert not four.mean.any() and four.released["withheld"].all()


def test_no_two_exchanges_rounds_or_leaves_share_a_draw():
    like = {"a": jnp.zeros(3), "b": jnp.zeros(3)}

    def draw(exchange, number):
        keys = round_keys(KEY, number, 0)
        return GAUSSIAN.release((), exchange, like, keys).mean

    @compiled
    def all_draws():
        return [draw(e, n) for e in (0, 1) for n in (0, 1)]

    draws = all_draws()
    values = {np.asarray(leaf).tobytes() for d in draws for leaf in d.values()}
    assert len(values) == 8


def test_the_count_of_an_adaptive_threshold_has_a_draw_of_its_own():
    guard, zeros = GUARDS["adaptive"], (jnp.zeros(4), jnp.zeros(()))

    @compiled
    @jax.vmap
    def released(number):
        after = guard.release(guard.init(), 0, zeros, round_keys(KEY, number, 0))
        return jnp.append(after.mean, jnp.log(after.state))

    between = np.corrcoef(np.asarray(released(np.arange(2000))).T)
    assert np.abs(between - np.eye(5)).max() < 0.1


@pytest.mark.parametrize(("guard", "more"), [("central", 0), ("adaptive", 1)])
def test_a_count_is_a_bit_on_the_wire_and_a_number_with_noise(guard, more):
    assert GUARDS[guard].wire(160, 5) == 160 + more and GUARDS[guard].extra == more


def whole_numbers(summed):
    """Returns a mechanism whose messages are integers above 2^24, without noise.

    A float32 sum of such numbers would be rounded; `summed` gets what the engine adds.
    """
    grid = 2.0**-26

    def encode(state, exchange, message, keys):
        del exchange, keys
        sent = jax.tree.map(lambda leaf: jnp.int32(leaf / grid), message)
        return Encoded(sent, GAUSSIAN.bounded(state, message).rejected)

    def release(state, exchange, total, keys):
        summed.append(jax.tree.leaves(total))
        mean = jax.tree.map(lambda leaf: leaf * (grid / CLIENTS), total)
        return GAUSSIAN.release(state, exchange, mean, keys)._replace(mean=mean)

    return GAUSSIAN._replace(
        encode=encode, release=release, wire=lambda bits, numbers: 24 * sum(numbers)
    )


def test_integers_are_added_exactly_and_priced_as_the_mechanism_says():
    summed, everyone = [], cohort_of(range(CLIENTS))
    data, guard = np.asarray(optima(CLIENTS)), whole_numbers(summed)

    def mean(chunk, devices):
        algorithm = ALGORITHMS["fedavg"]._replace(mechanism=guard)
        one_round = engine.make_round(
            algorithm, fetch, mesh_of(devices, "clients"), chunk=chunk
        )
        state = engine.initial_state(algorithm, PARAMS, CLIENTS)
        state, report = compiled(one_round)(state, KEY, everyone, data)
        return flat(state.server.params), report

    first, report = mean(1, 1)
    for chunk, devices in ((3, 1), (2, 1), (3, 2)):
        np.testing.assert_array_equal(first, mean(chunk, devices)[0])
    assert all(leaf.dtype == jnp.int32 for leaves in summed for leaf in leaves)
    assert byte_count(report.simulator_only.bytes_up) == 3 * D


def test_an_accountant_prices_the_noise_that_a_mechanism_names():
    plan = accounting.Plan(steps=3, sample=5, population=50)
    with pytest.raises(ValueError, match="noise='laplace'"):
        accounting.epsilon(plan._replace(noise="laplace"), 1.0, delta=1e-5)
