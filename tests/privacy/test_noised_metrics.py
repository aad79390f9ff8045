"""Watched numbers are clipped, noised, paid for, and leave the message's promise."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch.core.keys import round_keys
from fl_sketch.privacy import clipping, mechanism, noised_metrics
from fl_sketch.run import prepare
from fl_sketch.run.task import facts_of
from tests.run.configs import config_with, rows_of

Z, NOISE, CLIENTS, C = 1.5, 4.0, 50, 2.0
RANGES = {"loss": (0.0, 5.0), "accuracy": (0.0, 1.0)}


def make(z):
    return mechanism.central(clipping.clip(C), noise_multiplier=z, denominator=CLIENTS)


GUARD = noised_metrics.watching(make, RANGES, noise_multiplier=Z, noise=NOISE)


def seen(loss, accuracy):
    return {"loss": jnp.float32(loss), "accuracy": jnp.float32(accuracy)}


def shares(loss, accuracy, message=1.0):
    told = (jnp.full(3, message), seen(loss, accuracy))
    return np.asarray(GUARD.encode((), 0, told, None).summand[1])


def test_numbers_are_cut_to_their_ranges_and_centred():
    np.testing.assert_allclose(shares(2.5, 0.5), [0, 0], atol=1e-6)
    np.testing.assert_allclose(shares(99, 1.0), [0.5, 0.5])
    np.testing.assert_allclose(shares(-99, -1.0), [-0.5, -0.5])
    np.testing.assert_allclose(shares(math.inf, 0.0), [0.5, -0.5])
    np.testing.assert_allclose(shares(math.nan, 1.0), [0, 0.5])
    np.testing.assert_allclose(shares(5, 1, message=math.nan), [0, 0])


def test_what_all_numbers_of_a_client_cost_is_one_release_with_z():
    """One Gaussian on (message / its noise, numbers / theirs): a sum of z^-2."""
    keys = round_keys(jax.random.key(0), 0, 0)

    @jax.jit
    @jax.vmap
    def drawn(key):
        zeros = (jnp.zeros(8), jnp.zeros(2))
        out = GUARD.release((), 0, zeros, keys._replace(server=key))
        loss, accuracy = out.released["noised_loss"], out.released["noised_accuracy"]
        return jnp.append(out.mean, jnp.stack([loss / 5, accuracy]))

    noise = CLIENTS * np.asarray(drawn(jax.random.split(keys.server, 4000)))
    on_messages, on_numbers = noise[:, :8].std() / C, noise[:, 8:].std()
    assert on_numbers == pytest.approx(NOISE, rel=0.05)
    longest = math.sqrt(2) / 2  # of a client's two numbers
    cost = on_messages**-2 + (longest / on_numbers) ** 2
    assert cost == pytest.approx(Z**-2, rel=0.03)
    assert np.abs(np.corrcoef(noise.T) - np.eye(10)).max() < 0.08  # no shared draw


def adaptive(z):
    return mechanism.adaptive(
        1.0, noise_multiplier=z, denominator=CLIENTS, count_noise=2.5
    )


@pytest.mark.parametrize(("inner", "z"), [(make, 0.0), (adaptive, Z)])
def test_means_over_the_cohort_come_out_and_only_of_the_first_exchange(inner, z):
    guard = noised_metrics.watching(inner, RANGES, noise_multiplier=z, noise=NOISE)
    keys = round_keys(jax.random.key(0), 0, 0)

    @jax.jit
    def after_a_round(numbers):
        def one(n):
            told = (jnp.full(3, n), seen(n / 10, n / 50))
            return guard.encode(guard.init(), 0, told, keys).summand

        total = jax.tree.map(lambda leaf: leaf.sum(0), jax.vmap(one)(numbers))
        out = guard.release(guard.init(), 0, total, keys)
        return out.state, out.released

    state, released = after_a_round(jnp.arange(CLIENTS))
    room = 4 * 0.08 if z else 1e-4  # noise of 0.08 of each range
    assert released["noised_loss"] == pytest.approx(2.45, abs=5 * room)
    assert released["noised_accuracy"] == pytest.approx(0.49, abs=room)
    if inner is adaptive:  # a threshold that is released beside them
        assert state > 1.0  # all but one message were longer
        assert set(released) == {"threshold", "noised_loss", "noised_accuracy"}
    else:
        second = guard.encode((), 1, jnp.ones(3), None).summand
        assert guard.release((), 1, second, None).released == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranges": {"loss": (1.0, 1.0)}}, "low < high of loss"),
        ({"ranges": {"loss": (0.0, math.inf)}}, "low < high of loss"),
        ({"noise": 0.1}, "noise > 1.061 on the watched metrics"),
        ({"noise": math.nan}, "noise=nan"),
    ],
)
def test_what_cannot_be_watched_is_refused(options, words):
    options = {"ranges": RANGES, "noise": NOISE} | options
    with pytest.raises(ValueError, match=words):
        noised_metrics.watching(
            make, options["ranges"], noise_multiplier=Z, noise=options["noise"]
        )


WATCHED = {
    "data__clients": 100,
    "cohort__sampling": "poisson",
    "cohort__size": 50,
    "rounds": 6,
    "eval_every": 3,
    "privacy__bound": "clip",
    "privacy__noise_multiplier": 1.0,
    "privacy__watch": True,
}


@pytest.mark.slow
def test_a_private_run_has_noised_numbers_to_look_at():
    for row in rows_of(**WATCHED):
        # Noise of 2.5 on sums over 50, means of three rounds: 0.03 of each range.
        assert abs(row["noised_train_loss"] - row["train_loss"]) < 1.0
        assert abs(row["noised_train_accuracy"] - row["test_accuracy"]) < 0.3


def test_they_cost_no_more_epsilon_but_two_numbers_more_on_the_way():
    plain, watched = (
        prepare(config_with(**WATCHED | {"privacy__watch": watch}))
        for watch in (False, True)
    )
    assert plain.guarantee.epsilon(6) == pytest.approx(watched.guarantee.epsilon(6))
    more = facts_of(watched)["bytes_up_planned"] - facts_of(plain)["bytes_up_planned"]
    assert more == 8
    assert watched.guarantee.plan.coordinates == plain.guarantee.plan.coordinates + 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy__form": "update"}, "form=message with watch=True"),
        ({"privacy__watch_loss": 0.0}, "watch_loss=0.0"),
        ({"privacy__watch_noise": -1.0}, "watch_noise=-1.0"),
        (
            {"privacy__watch_noise": 0.7},
            r"config.privacy: .*watch_noise > 0\.7072 .*=0.7",
        ),
        (
            {
                "algorithm": "private_sketching",
                "privacy__unit": "example",
                "privacy__bound": "none",
                "client__batches": "subsets",
            },
            "unit=client with watch=True",
        ),
    ],
)
def test_configs_that_cannot_be_watched_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        prepare(config_with(**WATCHED | changes))
