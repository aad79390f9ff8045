"""Clients' states on the host: the same run to the bit, and a size that is said."""

import chex
import jax
import numpy as np
import pytest

from fl_sketch.config import parse as choices
from fl_sketch.core import free_memory
from fl_sketch.run import build, display, host_states
from tests.engine.test_prefetch import run as run_form
from tests.meshes import mesh_of
from tests.run.configs import config_with

GATE = {"algorithm": "fedsketchgate", "sketch.rows": 3, "server.rate": 0.5}


def built(place, **changes):
    config = config_with(cohort__size=7, eval_every=8)
    config.update_from_flattened_dict({"compute.clients": place, **changes})
    return build(config)


@pytest.mark.parametrize(
    "changes",
    [
        # Two exchanges and a state of the local work; one exchange and a memory.
        pytest.param(
            GATE
            | {
                "sketch.query": "heaprix",
                "cohort.sampling": "poisson",
                "cohort.dropout": 0.3,
            },
            marks=pytest.mark.slow,
        ),
        {
            "algorithm": "scaffold",
            "cohort.sampling": "everyone",
            "compute.data": "streamed",
            "compute.chunk": 2,
        },
        {"algorithm": "fedopt"},
    ],
    ids=lambda changes: ",".join(f"{k}={v}" for k, v in changes.items()),
)
def test_a_bank_on_the_host_is_the_bank_on_the_devices_to_the_bit(changes):
    changes = dict(changes)
    form = changes.pop("compute.data", "resident")
    places = [
        run_form(form, (2, 3), **changes, **{"compute.clients": place})
        for place in choices.BANKS
    ]
    chex.assert_trees_all_equal(*places)
    chex.assert_trees_all_equal_dtypes(*places)


def test_who_is_absent_keeps_a_row_and_everyone_begins_alike():
    one = built("host", algorithm="scaffold")
    state = one.start()
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(state.clients))
    state, report = one.compile().advance(state, 1)
    changed = np.zeros(20, bool)
    for leaf in jax.tree.leaves(state.clients):
        changed |= leaf.reshape(20, -1).any(axis=1)
    assert set(np.flatnonzero(changed)) == set(
        report.simulator_only.clients[0].tolist()
    )


def test_the_size_of_the_bank_is_said_before_anything_runs():
    one = built("auto", algorithm="scaffold")
    assert one.facts["client_state"] == "devices"
    assert one.facts["client_state_bytes"] == 20 * 4 * one.facts["d"]
    config = config_with(algorithm="scaffold")
    (said,) = [line for line in display.plan(config, one) if "states of" in line]
    assert "20 clients: 0.052 MB in the memory of every device" in said
    stateless = built("auto", algorithm="fedopt")
    assert stateless.facts["client_state"] is None


@pytest.mark.parametrize(
    ("place", "room", "there", "words"),
    [
        ("devices", 10, 10_000, None),
        ("auto", 10, 10_000, None),
        ("auto", 10, 900, "at most 9e-07 GB.*1e-06 GB with clients='host'"),
        ("devices", 10_000, 1_800, "at most 9e-07 GB.*with clients='devices'"),
    ],
)
def test_a_bank_goes_where_it_fits_or_is_refused(
    monkeypatch, place, room, there, words
):
    monkeypatch.setattr(host_states, "room", lambda devices: room)
    monkeypatch.setattr(free_memory, "of_host", lambda: there)
    if words is None:
        expected = "host" if place == "auto" else place
        assert host_states.place(place, 1000, mesh_of(2, "clients")) == expected
    else:
        with pytest.raises(ValueError, match=words):
            host_states.place(place, 1000, mesh_of(2, "clients"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compute.clients": "disk"}, "clients to be one of 'auto', 'devices', 'host'"),
        ({**GATE, "cohort.sampling": "replacement"}, "sampling='replacement'"),
    ],
)
def test_what_cannot_be_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        built("auto", **changes)
