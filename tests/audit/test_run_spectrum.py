"""A run's folder gets the spectrum at each of its checkpoints."""

import csv

import pytest

from configs import default
from fl_sketch.audit import run_spectrum
from fl_sketch.run import run
from tests.run.configs import config_with

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    config = config_with(rounds=12, eval_every=4, checkpoint_every=4, checkpoint_keep=0)
    run(config, str(folder), say=lambda line: None)
    return folder


def test_every_checkpoint_that_was_kept_is_a_row(folder):
    rows = run_spectrum.of_run(
        str(folder),
        default.get_config(),
        None,
        examples=200,
        probes=4,
        steps=20,
    )
    assert [row["round"] for row in rows] == [0, 4, 8, 12]
    with open(folder / "spectrum.csv") as file:
        written = list(csv.DictReader(file))
    assert [float(row["largest"]) for row in written] == [
        row["largest"] for row in rows
    ]
    # Logistic regression is convex, of 650 parameters, of which few matter.
    for row in rows:
        assert row["smallest"] > -1e-4 * row["largest"]
        assert row["spread"] < 0.05
        assert 1 <= row["intrinsic_dimension"] < 60
        # No eigenvalue is negative, so that their sum is that of absolute values.
        assert row["least"] == pytest.approx(row["intrinsic_dimension"], rel=1e-3)
        assert row["least"] <= row["most"]
        assert 0 < row["half_width"] < row["intrinsic_dimension"]
    assert (folder / "spectrum.png").stat().st_size > 1000


def test_code_of_a_folder_runs_only_if_it_is_named(tmp_path):
    own, place = tmp_path / "own.py", str(tmp_path / "run")
    own.write_text(
        "from flax import linen as nn\n"
        "def net(classes):\n"
        "    flat = lambda x: x.reshape(len(x), -1)\n"
        "    return nn.Sequential([flat, nn.Dense(classes)])\n"
    )
    keys = {"model__name": f"{own}:net", "rounds": 1, "eval_every": 1}
    run(config_with(**keys), place, say=lambda line: None)
    where, sizes = (place, default.get_config(), None), (20, 2, 3)
    how = dict(zip(("examples", "probes", "steps"), sizes, strict=True))
    with pytest.raises(ValueError, match="--plugin="):
        run_spectrum.of_run(*where, **how)
    rows = run_spectrum.of_run(*where, **how, plugin=[f"{own}:net"])
    assert [row["round"] for row in rows] == [0, 1]
