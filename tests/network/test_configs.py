"""A config with five sites is the run of launch.train, in a folder like its folder."""

import pytest

from fl_sketch.run import run
from tests.network.sites import METHODS, Hospitals, five, furthest, weights_in
from tests.run.configs import quiet, table_in


@pytest.mark.slow
@pytest.mark.parametrize("name", [*METHODS][:-1])  # test_masked has the last
def test_a_run_with_sites_is_that_of_one_program(name, tmp_path):
    config = five(**METHODS[name])
    hospitals = Hospitals(tmp_path, config, tells=["measured"])
    summary = hospitals.run(tmp_path / "network")
    expected = run(config, str(tmp_path / "train"), say=quiet)
    assert not hospitals.lines
    models = weights_in(tmp_path / "network"), weights_in(tmp_path / "train")
    assert furthest(*models) <= 1e-6
    for key in ("bytes_up_total", "bytes_down_total", "rounds"):
        assert summary[key] == expected[key]
    ours, theirs = (table_in(tmp_path / one) for one in ("network", "train"))
    for one, other in zip(ours, theirs, strict=True):
        assert float(one["test_loss"]) == pytest.approx(
            float(other["test_loss"]), abs=1e-5
        )
        assert float(one["train_loss"]) == pytest.approx(
            float(other["train_loss"]), abs=1e-5
        )
