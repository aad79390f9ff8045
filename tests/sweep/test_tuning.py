"""Searches choose the best point, on sweeps that are made up."""

import pathlib

import numpy as np
import pytest

from configs import default
from fl_sketch.core import files
from fl_sketch.sweep import grid, tuning

pytestmark = pytest.mark.fast
RATES = (0.01, 0.1, 1)


@pytest.fixture
def swept(monkeypatch):
    """Makes sweeps write scores that follow from a rate, where few have the best."""
    folders = []

    def sweep(config, over, folder, data_dir, *, say):
        del data_dir, say
        pathlib.Path(folder).mkdir(parents=True)
        folders.append(pathlib.Path(folder).name)
        rows = []
        for point, _ in grid.points_of(config, over):
            rate = point["server.rate"]
            for number in (1, 2, 3):
                late = abs(np.log10(rate)) if number > 1 else 9.0  # best at a rate of 1
                rows.append({
                    "point": len(rows) // 3, **point, "round": number, "train_loss": 1,
                    "validation_rmse": late, "test_rmse": 3 - late,
                    "bytes_up_total": 1, "epsilon": 1.5, "delta": 1e-5,
                    "randomness": "simulated",
                })  # fmt: skip
        files.write_rows(folder / "sweep.csv", rows)

    monkeypatch.setattr(tuning, "sweep", sweep)
    return folders


def config_of(**changes):
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return grid.changed(default.get_config(), {"privacy.randomness": "seed", **keys})


def search(folder, rates, widen=0, **words):
    said, tune = [], {"server.rate": rates, **words}
    tuned = tuning.Tuning(config_of(), tune, folder, None, 2, said.append)
    return *tuned.search(widen), said


def test_a_search_chooses_by_validation_and_the_last_evaluations(tmp_path, swept):
    best, points, said = search(tmp_path, RATES)
    assert best == {"server.rate": 1.0} and swept == ["tuning"]
    assert [(p["server.rate"], p["rmse"]) for p in points] == [
        (0.01, 2), (0.1, 1), (1.0, 0),
    ]  # fmt: skip
    assert points[0]["epsilon"] == 1.5 and points[0]["randomness"] == "simulated"
    assert "edge of the grid" in said[-1] and said[-1].endswith("server.rate=10")


def test_a_grid_grows_until_its_best_point_is_inside(tmp_path, swept):
    best, points, said = search(tmp_path, (0.01, 0.1), widen=2)
    assert best == {"server.rate": 1.0} and swept == ["tuning", "tuning_1", "tuning_2"]
    assert [point["server.rate"] for point in points] == [0.01, 0.1, 1.0, 10.0]
    assert len(said) == 1 and "best of 4" in said[0]
