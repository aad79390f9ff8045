"""A method that a config file registers: trained, swept, compared, private, resumed."""

import csv
import json

import pytest

from fl_sketch.algorithms import catalog
from fl_sketch.sketch.compressors import top_k
from tests.launch.test_train import saved
from tests.launching import launch
from tests.run.configs import ran, stop_at

pytestmark = pytest.mark.slow

METHOD = """
import optax
from configs import default
from fl_sketch import channels
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local
from fl_sketch.algorithms import catalog
from fl_sketch.sweep.comparison import Comparison, Method
from fl_sketch.core.protocols import Algorithm


def heavy_server(loss, *, client_rate, server, k=20):
    return Algorithm(
        local.sgd_steps(loss, optax.sgd(client_rate)),
        channels.error_feedback(channels.compressed(compressors.top_k(k))),
        server,
    )


catalog.register(catalog.Method("heavy_server", heavy_server))


def get_config():
    config = default.get_config()
    config.algorithm, config.model.name = "heavy_server", "logistic"
    config.rounds, config.eval_every, config.checkpoint_every = 6, 2, 2
    return config


def get_comparison():
    return Comparison(get_config(), {"mine": Method({}), "SAFL": Method({"algorithm": "safl"})}, seeds=(0, 1))
"""  # noqa: E501
D, K, COHORT = 650, 20, 10


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(METHOD)
    return path


@pytest.fixture(autouse=True)
def _own_catalogue(monkeypatch):
    """Leaves the catalogue to other tests as it was."""
    monkeypatch.setattr(catalog, "_METHODS", catalog.methods())


def started(command, config, folder, *more):
    """Returns what a command printed that was given the file of the method."""
    done = launch(
        f"launch.{command}", f"--config={config}", f"--workdir={folder}", *more
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_train_has_it_and_counts_the_bytes_of_the_encoded_messages(config, tmp_path):
    """And says what it does not read."""
    said = started("train", config, tmp_path / "run", "--config.sketch.rows=3")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    each = -(-top_k(K).bits(D) // 8)
    assert summary["bytes_up_total"] == 6 * COHORT * each
    assert summary["client_state_bytes"] == 20 * D * 4
    assert "not read" in said


def test_a_private_one_that_is_stopped_goes_on_to_the_bit(tmp_path, monkeypatch):
    exec(METHOD, {})  # as a notebook would have it
    keys = {
        "algorithm": "heavy_server",
        "privacy__bound": "clip",
        "privacy__noise_multiplier": 1.0,
        "privacy__randomness": "seed",
        "compute__devices": 1,
    }
    summary, _ = ran(tmp_path / "whole", **keys)
    assert summary["epsilon"] > 0 and summary["releases"] == 1
    stop_at(tmp_path / "stopped", 5, monkeypatch, **keys)
    ran(tmp_path / "stopped", **keys)
    assert saved(tmp_path / "whole") == saved(tmp_path / "stopped")


def test_a_sweep_has_it(config, tmp_path):
    over = "--over=client.rate=0.03,0.1", "--over=seed=0,1"
    started("sweep", config, tmp_path / "out", *over)
    with open(tmp_path / "out/sweep.csv") as file:
        rows = list(csv.DictReader(file))
    assert len({row["point"] for row in rows}) == 4


def test_a_comparison_has_it(config, tmp_path):
    said = started("compare", config, tmp_path / "out", "--set=rounds=2")
    assert "| mine | " in said and "| SAFL | " in said


def test_names_of_the_project_are_kept():
    with pytest.raises(ValueError, match="not taken, got name='safl'"):
        catalog.register(catalog.Method("safl", lambda loss: loss))


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (lambda loss: loss, r"catalog.Method\(name, make\)"),
        (catalog.Method("three", 3), "with a function, got"),
        (catalog.Method("many", lambda loss, *rest: rest), "by names, got many"),
        (catalog.Method("first", lambda loss, rate, /: rate), "by names, got first"),
    ],
)
def test_what_no_config_could_call_is_refused(own, words):
    with pytest.raises(TypeError, match=words):
        catalog.register(own)


def test_a_method_whose_noise_is_its_own_takes_how_much():
    quiet = catalog.Method("quiet", lambda loss, *, client_rate: None, unit="example")
    with pytest.raises(ValueError, match="to take noise_multiplier, .*client_rate"):
        catalog.register(quiet)
