"""A run's folder gets the spectrum at each of its checkpoints."""

import csv

import pytest

from configs import default
from fl_sketch.audit import run_spectrum
from fl_sketch.run import run
from tests.run.configs import config_with, quiet

pytestmark = pytest.mark.slow


def test_every_checkpoint_that_was_kept_is_a_row(tmp_path):
    folder = tmp_path / "run"
    config = config_with(rounds=12, eval_every=4, checkpoint_every=4, checkpoint_keep=0)
    run(config, str(folder), say=quiet)
    rows = run_spectrum.of_run(
        str(folder),
        default.get_config(),
        None,
        examples=200,
        probes=4,
        steps=20,
    )
    assert [row["round"] for row in rows] == [0, 4, 8, 12]
    assert len({row["largest"] for row in rows}) == 4
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
