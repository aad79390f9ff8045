"""No noise is released with two sums: it is a function of secret and program."""

import shutil

import jax
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, data, sketch
from fl_sketch.core import platforms
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.run import secret_roots
from fl_sketch.workdir import checkpoint, identity, secrets
from tests.engine.regression import (
    INPUTS,
    NOISY,
    OWNERS,
    POISSON,
    PRIVATE,
    TARGETS,
    killed,
    loss,
    simulated,
)
from tests.engine.test_folder import refused


def edited(bound=None, loss=loss, client_rate=0.05, server=0.05):
    """Returns the private algorithm after an edit of its script."""
    algorithm = algorithms.safl(
        loss,
        sketch=sketch.count_sketch(2),
        client_rate=client_rate,
        server=optax.adam(server),
    )
    guard = PRIVATE.mechanism
    if bound:
        guard = mechanism.central(
            bound,
            noise_multiplier=guard.noise_multiplier,
            denominator=guard.denominator,
        )
    return algorithm._replace(mechanism=guard)


EDITS = {
    "client rate": {"client_rate": 1e-4},
    "server rate": {"server": 0.1},
    "smaller bound": {"bound": clipping.clip(1e-6)},
    "another bound": {"bound": clipping.normalise(1.0)},
    "loss": {"loss": lambda params, batch: 2 * loss(params, batch)},
}


@pytest.fixture(scope="module", name="early")
def _early(tmp_path_factory):
    """A private run that was killed before its first checkpoint."""
    folder = tmp_path_factory.mktemp("early")
    killed(folder, 2, **NOISY, key=secret_roots(0))
    assert not checkpoint.rounds(folder / "checkpoints")
    return folder


@pytest.mark.parametrize("edit", EDITS)
def test_noise_is_not_released_with_the_sum_of_another_program(
    early, edit, monkeypatch
):
    """Two releases with the same noise differ by what it was to hide.

    The folder notices by itself, and so does the secret if the folder would not.
    """
    before = {p: p.read_bytes() for p in early.rglob("*") if p.is_file()}
    change = NOISY | {"algorithm": edited(**EDITS[edit])}
    for words in ("the loss, rates", "same program"):
        refused(early, words, **change, key=secret_roots(0))
        monkeypatch.setattr(identity, "unlike", lambda ours, theirs: ("", ""))
    assert {p: p.read_bytes() for p in early.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("what", ["versions", "flags", "devices", "streamed"])
def test_noise_is_not_released_again_in_other_surroundings(early, what, monkeypatch):
    change = {"key": secret_roots(0)}
    if what == "versions":
        versions = platforms.versions() | {"jax": "9.9"}
        monkeypatch.setattr(platforms, "versions", lambda: versions)
    elif what == "flags":
        monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    else:
        devices = {"devices": jax.devices()[:2]}
        change |= devices if what == "devices" else {"data": "streamed"}
    words = "others than" if what in ("versions", "devices") else "same program"
    refused(early, words, **NOISY, **change)


def test_rounds_that_were_counted_need_the_program_that_played_them(early, tmp_path):
    folder = shutil.copytree(early, tmp_path / "run")
    path, key = folder / secrets.FILE, {"key": secret_roots(0)}
    path.write_bytes(path.read_bytes()[:32])  # as older versions left it
    refused(folder, "same program", **NOISY, **key)


@pytest.mark.slow
def test_two_programs_have_unlike_noise_from_one_secret():
    """Without a folder, which would refuse the second one."""
    key, great = secret_roots(0), 1e4
    guard = mechanism.central(clipping.clip(1.0), noise_multiplier=great, denominator=4)

    def run(rate=0.05, **change):
        private = algorithms.fedavg(loss, client_rate=rate)._replace(mechanism=guard)
        change = {"rounds": 1, "cohort": POISSON, "key": key} | change
        return simulated(private, **change)

    def apart(one, other):
        return np.linalg.norm(one.params["w"] - other.params["w"])

    first, other_rate = run(), run(0.0500001)
    other_data = data.clients((INPUTS, TARGETS + 1e-3), OWNERS)
    assert apart(first, run()) == 0
    assert apart(first, other_rate) > great / 10
    assert apart(first, run(clients=other_data)) > great / 10
    assert apart(first, run(params={"w": np.ones(4, np.float32)})) > great / 10
    # Two states of one algorithm that other ones have led to.
    steps = [
        run(state=before.state).params["w"] - before.params["w"]
        for before in (first, other_rate)
    ]
    assert np.linalg.norm(steps[0] - steps[1]) > great / 10
    # One state, from which it goes on with other data, and one that was changed.
    moved = first.state.server._replace(params={"w": first.params["w"] + 1})
    for state, more in (
        (first.state, {"clients": other_data}),
        (first.state._replace(server=moved), {}),
    ):
        step = run(state=state, **more).params["w"] - state.server.params["w"]
        plain = run(state=first.state).params["w"] - first.params["w"]
        assert np.linalg.norm(step - plain) > great / 10
    assert np.array_equal(run(rounds=2).params["w"], run(state=first.state).params["w"])


@pytest.mark.slow
def test_local_noise_is_a_function_of_its_program_too():
    """Which no mechanism counts, so that a folder with a secret key is refused."""
    key = secret_roots(0)

    def run(rate, **change):
        algorithm = algorithms.private_sketching(
            loss,
            sketch=sketch.count_sketch(4),
            client_rate=rate,
            server_rate=1.0,
            threshold=1.0,
            noise_multiplier=1e4,
        )
        return simulated(algorithm, rounds=1, key=key, **change)

    one, other = run(0.05), run(0.0625)
    scaled = other.params["w"] * (0.05 / 0.0625)
    assert np.linalg.norm(one.params["w"] - scaled) > 1
    with pytest.raises(ValueError, match="mechanism"):
        run(0.05, workdir="unused")
