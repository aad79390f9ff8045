"""Clients' states on the host: the same run to the bit, and a size that is said."""

import chex
import jax
import numpy as np
import pytest

from fl_sketch.core import free_memory
from fl_sketch.core.protocols import Server
from fl_sketch.engine import host_states
from fl_sketch.engine.round import Report, SimulatorOnly, State
from fl_sketch.engine.rounds import one_by_one
from fl_sketch.run import display, task_of
from tests.meshes import mesh_of
from tests.run.configs import begun, config_with, refused

GATE = {"algorithm": "fedsketchgate", "sketch.rows": 3, "server.rate": 0.5}


def task_with(place, **changes):
    config = config_with(cohort__size=7, eval_every=8)
    config.update_from_flattened_dict({"compute.clients": place, **changes})
    return task_of(config)


def states_and_reports(cuts, **changes):
    """Returns the state after chunks of these lengths, and the reports of rounds."""
    state, compiled = begun(task_with(**changes))
    done, reports = 0, []
    for count in cuts:
        state, report = compiled.advance(state, done, count)
        reports.append(jax.tree.map(lambda leaf, n=count: np.array(leaf[:n]), report))
        done += count
        # As a checkpoint would have it.
        saved = jax.tree.map(np.array, state)
        state = jax.tree.map(as_it_was, saved, state)
    return saved, jax.tree.map(lambda *leaves: np.concatenate(leaves), *reports)


def as_it_was(leaf, old):
    """Returns a leaf on the devices, or on the host if the old one was there."""
    return jax.device_put(leaf, old.sharding) if isinstance(old, jax.Array) else leaf


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
    ],
    ids=lambda changes: ",".join(f"{k}={v}" for k, v in changes.items()),
)
def test_a_bank_on_the_host_is_the_bank_on_the_devices_to_the_bit(changes):
    places = [
        states_and_reports((2, 3), place=place, **changes)
        for place in host_states.PLACES
    ]
    chex.assert_trees_all_equal(*places)
    chex.assert_trees_all_equal_dtypes(*places)


def test_who_is_absent_keeps_a_row_and_everyone_begins_alike():
    state, compiled = begun(task_with("host", algorithm="scaffold"))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(state.clients))
    state, report = compiled.advance(state, 0, 1)
    changed = np.zeros(20, bool)
    for leaf in jax.tree.leaves(state.clients):
        changed |= leaf.reshape(20, -1).any(axis=1)
    asked = report.simulator_only.clients[0].tolist()
    assert set(np.flatnonzero(changed)) == set(asked)


def test_all_clients_begin_alike_in_a_bank():
    state = State((), {"a": np.ones((2, 3)), "b": np.zeros((2, 0))})
    bank = host_states.start(state, 5).clients
    assert bank["a"].tolist() == np.ones((5, 3)).tolist() and bank["b"].shape == (5, 0)


def test_rows_of_those_who_did_not_answer_are_as_they_were():
    """Whatever a round leaves in their places."""
    bank = np.arange(12.0).reshape(6, 2)
    answered = np.array([True, False, True])

    def one_round(state, number):
        del number
        shown = SimulatorOnly(np.arange(3), answered, 0, 0, {})
        rows = state.clients + 100.0
        report = jax.tree.map(lambda leaf: np.asarray(leaf)[None], Report({}, shown))
        return state._replace(clients=rows), report

    def draw(number):
        return np.array([[4, 1, 0], [2, 4, 5]][number])

    advance = one_by_one(
        host_states.cohort_at_a_time(one_round, draw, lambda rows: rows)
    )
    begun = State(Server((), (), (), 0), bank)
    expected = bank.copy()
    expected[[4, 0, 2, 5]] += 100.0
    state, reports = advance(begun, 0, 2)
    np.testing.assert_array_equal(state.clients, expected)
    np.testing.assert_array_equal(reports.simulator_only.answered, [answered] * 2)


def test_the_size_of_the_bank_is_said_before_anything_runs():
    task = task_with("auto", algorithm="scaffold")
    assert task.facts["client_state"] == "devices"
    assert task.facts["client_state_bytes"] == 20 * 4 * task.facts["d"]
    lines = display.plan(config_with(algorithm="scaffold"), task)
    assert any("20 clients" in line and "0.052 MB" in line for line in lines)
    assert task_with("auto", algorithm="fedopt").facts["client_state"] is None


@pytest.mark.parametrize(
    ("place", "room", "there", "expected"),
    [
        ("devices", 10, 10_000, "devices"),
        ("auto", 10_000, 10_000, "devices"),
        ("auto", 10, 10_000, "host"),
        ("auto", 10, 900, ["9e-07 GB", "1e-06 GB", "clients='host'"]),
        ("devices", 10_000, 1_800, ["9e-07 GB", "clients='devices'"]),
    ],
)
def test_a_bank_goes_where_it_fits_or_is_refused(
    monkeypatch, place, room, there, expected
):
    monkeypatch.setattr(host_states, "room", lambda devices, **_: room)
    monkeypatch.setattr(free_memory, "of_host", lambda: there)
    mesh = mesh_of(2, "clients")
    if expected in host_states.PLACES:
        assert host_states.place(place, 1000, mesh) == expected
    else:
        with refused(*expected):
            host_states.place(place, 1000, mesh)


def test_what_cannot_be_is_refused():
    with refused("'auto', 'devices', 'host'", "clients='disk'"):
        task_with("disk")
    with refused("config.cohort: ", "sampling='replacement'"):
        task_with("auto", **{**GATE, "cohort.sampling": "replacement"})
