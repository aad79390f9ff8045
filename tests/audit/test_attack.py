"""The attacker knows what is sent and how large the noise is, and not the noise."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import attack_mnist
from fl_sketch.audit import attack
from fl_sketch.core import trees


def small(**changes):
    config = attack_mnist.get_config()
    config.data.name = "digits"
    config.update_from_flattened_dict(
        {"data.clients": 100, "cohort.size": 10, "client.batch": 1} | changes
    )
    return config


def problem(images=1, batch=1, clients=1, **changes):
    return attack.problem_of(
        small(**changes), None, images=images, batch=batch, clients=clients
    )


EXAMPLES = {
    "algorithm": "private_sketching",
    "privacy.unit": "example",
    "cohort.sampling": "everyone",
    "client.batch": 2,
    "client.batches": "subsets",
    "privacy.relation": "replace_one",
}
NOISY = {"privacy.noise_multiplier": 0.5}
CLIPPED = {"privacy.bound": "clip"} | NOISY


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_of_one_step_the_mean_of_clients_is_the_message_of_their_batch(steps):
    """With more steps it is not: each client went its own way."""

    def message(batch, clients):
        subject = problem(4, batch, clients, **{"client.steps": steps})
        view = subject.view(subject.keys(0), jnp.asarray(subject.targets[0]))
        return trees.ravel(view(jnp.asarray(subject.images[0]))) / clients

    of_one, of_four = message(4, 1), message(1, 4)
    gap = optax.tree.norm(of_four - of_one) / optax.tree.norm(of_one)
    assert (gap < 1e-5) == (steps == 1)


WAYS = {
    "plain": CLIPPED | {"algorithm": "fedavg"},
    "after the sketch": CLIPPED,
    "local": EXAMPLES | NOISY,
    "local, short steps": EXAMPLES | NOISY | {"client.steps": 4, "client.rate": 1e-4},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "batch", "clients"),
    [*((way, 1, 1) for way in WAYS), ("local", 2, 2), ("after the sketch", 2, 2)],
)
def test_the_attacker_knows_the_noise_of_every_entry(way, batch, clients):
    few = {"sketch.compression": 4.0, "model.name": "logistic"}
    subject = problem(batch * clients, batch, clients, **few | WAYS[way])
    inputs, labels = jnp.asarray(subject.images[0]), jnp.asarray(subject.targets[0])

    def standardised(number):
        keys = subject.keys(number)
        clean = trees.ravel(subject.view(keys, labels)(inputs))
        noise = trees.ravel(subject.seen(inputs, keys, labels)) - clean
        return noise / subject.deviations(keys), subject.deviations(keys)

    numbers = jnp.arange(100)
    found, deviations = jax.jit(lambda: jax.lax.map(standardised, numbers))()
    found, deviations = np.ravel(found), np.ravel(deviations)
    assert found.std() == pytest.approx(1, abs=6 / np.sqrt(2 * found.size))
    # Also of the entries that vary least and most, where they are not all alike.
    for part in np.array_split(np.argsort(deviations, kind="stable"), 4):
        assert found[part].std() == pytest.approx(1, abs=6 / np.sqrt(2 * part.size))


@pytest.mark.parametrize(
    ("changes", "options", "word"),
    [
        ({"algorithm": "fetchsgd"}, {"known_key": False}, "algorithm=fetchsgd"),
        ({}, {"images": 5, "batch": 2}, "images=5"),
        ({}, {"labels": "tried", "clients": 2}, "clients=2"),
        ({}, {"prior": "gaussian", "smoothness": 0.1}, "smoothness=0.1"),
    ],
)
def test_an_attack_that_would_prove_nothing_is_refused(changes, options, word):
    with pytest.raises(ValueError, match=word):
        attack.run(small(**changes), attack.Attack(**options))
