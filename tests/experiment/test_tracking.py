"""Who reaches the minimum of unlike clients."""

import pytest

from fl_sketch import files
from tests.launching import launch


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What is left of the distance, over FedAvg's, as `launch.tracking` measures it."""
    out = tmp_path_factory.mktemp("tracking") / "rows.csv"
    sizes = ("--parameters=32", "--clients=4", "--rows=3", "--cols=8", "--rounds=600")
    done = launch("launch.tracking", *sizes, f"--out={out}")
    assert done.returncode == 0, done.stderr
    rows = list(files.read_rows(out))
    assert len(rows) == len(done.stdout.splitlines()) - 1
    names = ("algorithm", "query", "variates")
    return {tuple(row[n] for n in names): float(row["of_fedavg"]) for row in rows}


def test_variates_lead_to_the_minimum_without_a_sketch_and_with_one_read_linearly(left):
    assert left["FedAvg", "", ""] == 1
    assert left["SCAFFOLD", "", "its own"] < 0.1
    assert left["FedGATE", "", "1/(eta tau)"] < 0.1
    assert left["FedGATE", "", "1/tau"] < 0.1
    assert left["FedSKETCHGATE privix", "mean", "1/tau"] < 0.1


def test_sketches_alone_stall_where_fedavg_does(left):
    for query in ("median", "mean"):
        assert 0.5 < left["FedSKETCH privix", query, ""] < 2
        assert 0.5 < left["FedSKETCH heaprix", query, ""] < 2


def test_variates_read_by_medians_do_not_lead_there(left):
    assert left["FedSKETCHGATE privix", "median", "1/tau"] > 1
    assert not left["FedSKETCHGATE privix", "median", "1/(eta tau)"] < 10
