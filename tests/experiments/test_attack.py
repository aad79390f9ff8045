"""The attacker knows what travels, and not the noise."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import attack_mnist
from fl_sketch.audit import gradient_inversion as inversion
from fl_sketch.core import trees
from fl_sketch.experiments import attack, attack_scene, attack_theory

pytestmark = pytest.mark.slow


def small(**changes):
    config = attack_mnist.get_config()
    config.data.name = "digits"
    config.update_from_flattened_dict(
        {"data.clients": 100, "cohort.size": 10, "client.batch": 1} | changes
    )
    return config


def scene(images=1, batch=1, clients=1, **changes):
    return attack_scene.scene_of(
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
    subject = scene(**changes)
    images, labels = jnp.asarray(subject.images[0]), jnp.asarray(subject.targets[0])
    keys = subject.keys(0)
    seen = trees.ravel(subject.seen(images, keys, labels))
    gap = trees.ravel(subject.view(keys, labels)(images)) - seen
    left = float(optax.tree.norm(gap) / optax.tree.norm(seen))
    assert left > 0.1 if noisy else left < 1e-5


@pytest.mark.parametrize("steps", [1, 3])
def test_of_one_step_the_mean_of_clients_is_the_message_of_their_batch(steps):
    """And of more it is not: each client went its own way."""

    def message(batch, clients):
        subject = scene(4, batch, clients, **{"client.steps": steps})
        view = subject.view(subject.keys(0), jnp.asarray(subject.targets[0]))
        return trees.ravel(view(jnp.asarray(subject.images[0]))) / clients

    of_one, of_four = message(4, 1), message(1, 4)
    gap = optax.tree.norm(of_four - of_one) / optax.tree.norm(of_one)
    assert (gap < 1e-5) == (steps == 1)


NOISY = {"privacy.noise_multiplier": 0.5}
CLIPPED = {"privacy.bound": "clip"} | NOISY
STORED = {"sketch.stored": True, "sketch.compression": 4.0}
WAYS = {
    "plain": CLIPPED | {"algorithm": "fedavg"},
    "after the sketch": CLIPPED,
    "before the sketch": CLIPPED | {"privacy.form": "update"},
    "local": EXAMPLES | NOISY,
    "local, three rows": EXAMPLES | NOISY | {"sketch.rows": 3},
    "local, a matrix": EXAMPLES | NOISY | STORED | {"sketch.operator": "gaussian"},
    "local, short steps": EXAMPLES | NOISY | {"client.steps": 4, "client.rate": 1e-4},
}


@pytest.mark.parametrize(
    ("way", "batch", "clients"),
    [*((way, 1, 1) for way in WAYS), ("local", 2, 2), ("after the sketch", 2, 2)],
)
def test_the_attacker_knows_the_noise_of_every_number(way, batch, clients):
    few = {"sketch.compression": 4.0, "model.name": "logistic"}
    subject = scene(batch * clients, batch, clients, **few | WAYS[way])
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
    # Also of the numbers that vary least and most, where they are not all alike.
    for part in np.array_split(np.argsort(deviations, kind="stable"), 4):
        assert found[part].std() == pytest.approx(1, abs=6 / np.sqrt(2 * part.size))


def test_every_attack_has_hashes_and_noise_of_its_own():
    clipped = scene(**CLIPPED)
    images, labels = (jnp.asarray(x[0]) for x in (clipped.images, clipped.targets))
    messages, noises = [], []
    for number in (0, 1):
        keys = clipped.keys(number)
        messages.append(trees.ravel(clipped.view(keys, labels)(images)))
        seen = trees.ravel(clipped.seen(images, keys, labels))
        noises.append(seen - messages[-1])
    assert abs(float(jnp.corrcoef(*noises)[0, 1])) < 0.1
    assert abs(float(jnp.corrcoef(*messages)[0, 1])) < 0.5


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"sketch.stored": True}, {"known_key": False}, "sketch.stored=True"),
        ({"algorithm": "fetchsgd"}, {"known_key": False}, "algorithm=fetchsgd"),
        ({}, {"images": 5, "batch": 2}, "batch=2 times clients=1, got images=5"),
        ({}, {"images": 6, "clients": 4}, "batch=1 times clients=4, got images=6"),
        ({}, {"labels": "tried", "clients": 2}, "got batch=1 and clients=2"),
        ({}, {"prior": "gausian"}, "Did you mean 'gaussian'?"),
        ({}, {"prior": "gaussian", "smoothness": 0.1}, "got smoothness=0.1, prior="),
        ({"privacy.bound": "clip", "privacy.watch": True}, {}, "watch=False"),
    ],
)
def test_what_would_say_nothing_is_refused(changes, options, words):
    with pytest.raises(ValueError, match=words):
        attack.run(small(**changes), attack.Attack(**options))


def test_all_labels_are_tried_also_with_one_image(monkeypatch):
    tries = []

    def listen(found, best_of=inversion.best_of):
        tries.append(found.mismatch.shape)
        return best_of(found)

    monkeypatch.setattr(inversion, "best_of", listen)
    options = attack.Attack(images=1, steps=1, labels="tried")
    attack._attacked(scene(), options, np.zeros((2, 8, 8, 1)))
    assert set(tries) == {(10,)}  # once for its constants, once for its program


@pytest.mark.parametrize(
    "changes",
    [{"sketch.layout": "leaves"}, {"algorithm": "fetchsgd", "sketch.rows": 3}],
    ids=["leaves", "fetchsgd"],
)
def test_the_theory_reads_the_sketch_that_clients_use(changes):
    few = {"sketch.compression": 4.0, "model.name": "logistic"}
    (row,) = attack_theory.rows(small(**few | changes), images=1, steps=30)
    # Logistic regression's gradient is linear in the pixels: its sketch cannot
    # stretch what they do by more than R.
    assert row.sigma_2 <= row.gamma_2 * row.hessian_2 * (1 + 1e-4)
    assert 0 < row.gamma_1 < row.gamma_2
    assert 0 < row.promised <= row.measured
