"""Who reaches the minimum of unlike clients."""

import itertools

import jax.numpy as jnp
import pytest

from fl_sketch.core import files
from fl_sketch.experiments import gradient_tracking
from tests.launching import launch

pytestmark = pytest.mark.slow


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


def test_variates_grow_at_a_client_too_curved_for_its_rate():
    """Beyond eta q = 2 each round starts where the last blew up, but for FedAvg's."""

    def left(q):
        curvature, optima = jnp.array([[q], [5.0]]), jnp.array([[1.0], [2.0]])
        task = gradient_tracking.Problem(curvature, optima, rate=0.1, steps=2)
        measured = gradient_tracking.measure(
            task, rows=1, cols=1, rounds=200, server_rates=(0.2,)
        )
        unsketched = itertools.islice(measured, 4)
        return {
            row.algorithm: row.distance for row in unsketched if row.variates != "1/tau"
        }

    calm, wild = left(18.0), left(22.0)
    assert calm["FedAvg"] < 3 and wild["FedAvg"] < 3
    assert calm["SCAFFOLD"] < 1e-3 and calm["FedGATE"] < 1e-3
    assert wild["SCAFFOLD"] > 1e3 and wild["FedGATE"] > 1e3
