"""The attacker knows what travels, and not the noise."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import attack_mnist
from fl_sketch import trees
from fl_sketch.audit import gradient_inversion as inversion
from fl_sketch.studies import attack, attack_scene, attack_theory

pytestmark = pytest.mark.slow


def small(**changes):
    config = attack_mnist.get_config()
    config.data.name = "digits"
    config.update_from_flattened_dict(
        {"data.clients": 100, "cohort.size": 10, "client.batch": 1} | changes
    )
    return config


def scene(**changes):
    return attack_scene.scene_of(small(**changes), None, images=1)


EXAMPLES = {
    "algorithm": "private_sketching",
    "privacy.unit": "example",
    "cohort.sampling": "everyone",
    "client.batch": 2,
    "client.batches": "subsets",
    "privacy.relation": "replace_one",
}


@pytest.mark.parametrize(
    ("changes", "noisy"),
    [
        ({}, False),
        ({"privacy.bound": "clip"}, False),
        ({"privacy.bound": "clip", "privacy.noise_multiplier": 0.5}, True),
        (EXAMPLES, False),
        (EXAMPLES | {"privacy.noise_multiplier": 0.5}, True),
    ],
    ids=["plain", "clipped", "central", "sketching", "local"],
)
def test_the_true_image_explains_the_message_but_for_its_noise(changes, noisy):
    own = scene(**changes)
    images, labels = jnp.asarray(own.images[0]), jnp.asarray(own.targets[0])
    keys = own.keys(0)
    seen = trees.ravel(own.seen(images, keys, labels))
    gap = trees.ravel(own.view(keys, labels)(images)) - seen
    left = float(optax.tree.norm(gap) / optax.tree.norm(seen))
    assert left > 0.1 if noisy else left < 1e-5


@pytest.mark.parametrize("steps", [1, 3])
def test_of_one_step_the_mean_of_clients_is_the_message_of_their_batch(steps):
    """And of more it is not: each client went its own way."""

    def message(batch, clients):
        config = small(**{"client.steps": steps})
        own = attack_scene.scene_of(config, None, images=4, batch=batch, clients=clients)
        view = own.view(own.keys(0), jnp.asarray(own.targets[0]))
        return trees.ravel(view(jnp.asarray(own.images[0]))) / clients

    of_one, of_four = message(4, 1), message(1, 4)
    gap = optax.tree.norm(of_four - of_one) / optax.tree.norm(of_one)
    assert (gap < 1e-5) == (steps == 1)


def test_every_attack_has_hashes_and_noise_of_its_own():
    own = scene(**{"privacy.bound": "clip", "privacy.noise_multiplier": 0.5})
    images, labels = jnp.asarray(own.images[0]), jnp.asarray(own.targets[0])

    def parts(number):
        keys = own.keys(number)
        clean = trees.ravel(own.view(keys, labels)(images))
        return clean, trees.ravel(own.seen(images, keys, labels)) - clean

    (first, noise), (second, other) = parts(0), parts(1)
    assert abs(float(jnp.corrcoef(noise, other)[0, 1])) < 0.1
    assert abs(float(jnp.corrcoef(first, second)[0, 1])) < 0.5


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"sketch.stored": True}, {"known_key": False}, "sketch.stored=True"),
        ({"algorithm": "fetchsgd"}, {"known_key": False}, "algorithm=fetchsgd"),
        ({}, {"images": 5, "batch": 2}, "batch=2 times clients=1, got images=5"),
        ({}, {"images": 6, "clients": 4}, "batch=1 times clients=4, got images=6"),
        ({}, {"labels": "tried", "clients": 2}, "got batch=1 and clients=2"),
    ],
)
def test_what_would_say_nothing_is_refused(changes, options, words):
    config = attack_mnist.get_config()
    config.data.name = "digits"
    config.update_from_flattened_dict(changes)
    with pytest.raises(ValueError, match=words):
        attack.run(config, attack.Attack(**options))


def test_all_labels_are_tried_also_with_one_image(monkeypatch):
    tries = []

    def listen(found, best_of=inversion.best_of):
        tries.append(found.mismatch.shape)
        return best_of(found)

    monkeypatch.setattr(inversion, "best_of", listen)
    options = attack.Attack(images=1, steps=1, labels="tried")
    attack._attacked(scene(), options, np.zeros((2, 8, 8, 1)))
    assert tries == [(10,)]


@pytest.mark.parametrize(
    "changes",
    [{"sketch.layout": "leaves"}, {"algorithm": "fetchsgd", "sketch.rows": 3}],
    ids=["leaves", "fetchsgd"],
)
def test_the_theory_reads_the_sketch_that_clients_use(changes):
    config = attack_mnist.get_config()
    config.data.name, config.model.name = "digits", "logistic"
    config.sketch.compression = 4.0
    config.update_from_flattened_dict({"data.clients": 100, "cohort.size": 10})
    config.update_from_flattened_dict(changes)
    (row,) = attack_theory.rows(config, images=1, steps=30)
    # Logistic regression's gradient is linear in the pixels: its sketch cannot
    # stretch what they do by more than R.
    assert row.sigma_2 <= row.gamma_2 * row.hessian_2 * (1 + 1e-4)
    assert 0 < row.gamma_1 < row.gamma_2
    assert 0 < row.promised <= row.measured
