"""Epochs: a client passes over its own examples, as numpy does it batch by batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, data
from fl_sketch.core.keys import batch_key
from fl_sketch.data import batches
from fl_sketch.privacy import local_noise
from fl_sketch.run import simulate
from fl_sketch.transforms import local

KEY, RATE, MOMENTUM, EPOCHS, BATCH = jax.random.key(3), 0.1, 0.5, 2, 3
SIZES = (4, 8)  # two steps a pass and three, the last with one example and two
X = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=12).astype(np.float32)
CLIENTS = data.clients((X, Y), owners=np.repeat([0, 1], SIZES))


def loss(w, batch, weights=None):
    x, y = batch
    weights = jnp.ones(len(y)) if weights is None else weights
    return (weights * (x @ w - y) ** 2).sum() / weights.sum()


MOVING = functools.partial(optax.sgd, momentum=MOMENTUM)
FEDAVG = algorithms.fedavg(loss, client_rate=RATE, client_optimizer=MOVING)
SCAFFOLD = algorithms.scaffold(
    loss, client_rate=RATE, server_rate=1.0, steps=None, client_optimizer=MOVING
)


def run(algorithm, rounds=3, **options):
    given = {"epochs": EPOCHS, "batch": BATCH, "every": 1} | options
    return simulate(algorithm, np.zeros(2), CLIENTS, key=KEY, rounds=rounds, **given)


@functools.cache
def ended(name, chunk):
    return run(SCAFFOLD if name == "scaffold" else FEDAVG, chunk=chunk)


def orders(number, client):
    """Returns the library's order of a client's examples in each pass of a round."""
    starts = CLIENTS.partition.starts
    drawn = batches.Passes(
        batches.resident(np.arange(12), CLIENTS.partition),
        jnp.int32(starts[client]),
        jnp.int32(SIZES[client]),
        batch_key(KEY, number, client),
        epochs=EPOCHS,
        batch=SIZES[client],
    )
    return [np.asarray(drawn.at(jnp.int32(n)).examples) for n in range(EPOCHS)]


def trained(x, number, client, correction):
    """Returns a client's model after its steps, and how many these were."""
    velocity, steps = np.zeros(2), 0
    for order in orders(number, client):
        assert sorted(order) == sorted(CLIENTS.partition.of(client))
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            gradient = 2 * X[rows].T @ (X[rows] @ x - Y[rows]) / len(rows)
            velocity = MOMENTUM * velocity + gradient
            x = x - RATE * velocity + RATE * correction
            steps += 1
    return x, steps


def by_hand(rounds, controlled):
    """FedAvg, or SCAFFOLD with c_i - c added to steps, both clients in each round."""
    x, own = np.zeros(2), np.zeros((2, 2))
    for number in range(rounds):
        common, ends = own.mean(axis=0), []
        for client in range(2):
            correction = controlled * (own[client] - common)
            end, steps = trained(x, number, client, correction)
            assert steps == EPOCHS * -(-SIZES[client] // BATCH)
            own[client] += (x - end) / (steps * RATE) - common
            ends.append(end)
        x = np.mean(ends, axis=0)
    return x, own


@pytest.mark.parametrize("chunk", [1, 2], ids=["loop", "vmap"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_rounds_are_those_of_numpy(name, chunk):
    controlled, end = name == "scaffold", ended(name, chunk)
    x, own = by_hand(3, controlled)
    np.testing.assert_allclose(end.params, x, rtol=1e-4, atol=1e-6)
    assert end.history[-1]["bytes_up_total"] == 3 * 2 * 2 * 4 * (1 + controlled)
    if controlled:
        np.testing.assert_allclose(end.state.clients.local, own, rtol=1e-4, atol=1e-5)
        mean = end.state.server.memory
        np.testing.assert_allclose(mean, own.mean(axis=0), rtol=1e-4, atol=1e-5)


def test_the_loss_of_a_round_is_that_of_the_first_batches():
    first = [orders(0, client)[0][:BATCH] for client in range(2)]
    at_zero = np.mean([np.mean(Y[rows] ** 2) for rows in first])
    row = ended("fedavg", 1).history[0]
    np.testing.assert_allclose(row["train_loss"], at_zero, rtol=1e-5)


def test_a_batch_of_zero_is_all_examples_of_a_client():
    x = np.zeros(2)
    for _ in range(2):
        ends = []
        for client in range(2):
            rows, own = CLIENTS.partition.of(client), x
            for _ in range(EPOCHS):
                own = own - RATE * 2 * X[rows].T @ (X[rows] @ own - Y[rows]) / len(rows)
            ends.append(own)
        x = np.mean(ends, axis=0)
    plain = algorithms.fedavg(loss, client_rate=RATE)
    np.testing.assert_allclose(run(plain, rounds=2, batch=0).params, x, rtol=1e-4)


def test_a_run_goes_on_to_the_bit():
    whole, half = run(SCAFFOLD, rounds=4), run(SCAFFOLD, rounds=2)
    end = run(SCAFFOLD, rounds=2, state=half.state)
    np.testing.assert_array_equal(end.params, whole.params)
    assert end.history[-1] == whole.history[-1]


def without_weights(w, batch):
    return loss(w, batch)


TRACKED = algorithms.fedgate(loss, client_rate=RATE, server_rate=1.0, gain=1.0)
NOISY = local_noise.noisy_steps(loss, rate=RATE, clip=1.0, noise_multiplier=1.0)
REFUSED = {
    "one gradient": (algorithms.sign_sgd(loss, server_rate=RATE), {}, "epochs=0"),
    "gradient tracking": (TRACKED, {}, "epochs=0"),
    "noise at every step": (FEDAVG._replace(local=NOISY), {}, "epochs=0"),
    "repeated steps": (
        FEDAVG._replace(local=local.full_gradient_steps(loss, MOVING(RATE), steps=2)),
        {}, "epochs=0",
    ),
    "a loss without weights": (
        algorithms.fedavg(without_weights, client_rate=RATE), {}, "weights=None",
    ),
    "SCAFFOLD of steps": (
        algorithms.scaffold(loss, client_rate=RATE, server_rate=1.0, steps=2), {},
        "steps=None",
    ),
    "streaming": (FEDAVG, {"data": "streamed"}, "epochs"),
    "a part of a pass": (FEDAVG, {"epochs": 0.5}, "epochs"),
    "negative": (FEDAVG, {"epochs": -1}, "epochs"),
    "no batch and no epochs": (FEDAVG, {"epochs": 0, "batch": 0}, "batch"),
    "steps too": (FEDAVG, {"steps": 5}, "steps"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(name):
    algorithm, options, words = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=words) as error:
        run(algorithm, **options)
    assert "\n" not in str(error.value)
