"""The attacker knows what is sent, and not the noise; pictures of what it finds."""

import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np
import optax
import pytest

from configs import attack_mnist
from fl_sketch.audit import attack, attack_pictures
from fl_sketch.core import files, trees


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
@pytest.mark.parametrize(
    ("changes", "noisy"),
    [({}, False), (CLIPPED, True), (EXAMPLES, False), (EXAMPLES | NOISY, True)],
    ids=["plain", "central", "sketching", "local"],
)
def test_the_true_image_explains_the_message_but_for_its_noise(changes, noisy):
    subject = problem(**changes)
    images, labels = jnp.asarray(subject.images[0]), jnp.asarray(subject.targets[0])
    keys = subject.keys(0)
    seen = trees.ravel(subject.seen(images, keys, labels))
    gap = trees.ravel(subject.view(keys, labels)(images)) - seen
    left = float(optax.tree.norm(gap) / optax.tree.norm(seen))
    assert left > 0.1 if noisy else left < 1e-5


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


STORED = {"sketch.stored": True, "sketch.operator": "gaussian"}
WAYS = {
    "plain": CLIPPED | {"algorithm": "fedavg"},
    "after the sketch": CLIPPED,
    "local": EXAMPLES | NOISY,
    "local, three rows": EXAMPLES | NOISY | {"sketch.rows": 3},
    "local, a matrix": EXAMPLES | NOISY | STORED,
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


def rows(prior, levels=(0.1, 1.0), baseline=12.0, **keys):
    found = {"psnr_mean": 14.0, "psnr_half_width": 1, "guess_mean": baseline}
    return [
        {"privacy.z": z, **keys, "prior": prior, "images": 2, **found} for z in levels
    ]


@pytest.fixture
def panels(monkeypatch):
    """Returns (title, axis, legend) of every panel, once they are drawn."""
    drawn = []

    def kept(_, figure):
        assert isinstance(figure, matplotlib.figure.Figure)
        for panel in figure.axes:
            words = [text.get_text() for text in panel.get_legend().get_texts()]
            drawn.append((panel.get_title(), panel.get_xlabel(), sorted(words)))

    monkeypatch.setattr(files, "write_figure", kept)
    return drawn


def test_attacks_are_named_by_their_folders_and_each_has_its_baseline(tmp_path, panels):
    for name, prior, *other in (("plain", "none"), ("other", "gaussian", 9.0)):
        (tmp_path / name).mkdir()
        files.write_rows(tmp_path / name / "attack.csv", rows(prior, (0.1, 1), *other))
    beside = attack_pictures.rows_of([str(tmp_path / "plain"), tmp_path / "other"])
    path = tmp_path / "here" / "attack_curves.png"
    attack_pictures.draw_curves(rows("gaussian"), path, beside)
    guesses = ["a guess in here", "a guess in other"]
    assert panels == [
        ("prior=none", "privacy.z", ["a guess", "plain"]),
        ("prior=gaussian", "privacy.z", [*guesses, "here", "other"]),
    ]
