"""Streamed data: the same run to the bit, whatever is made ahead of time."""

import functools
import threading

import chex
import jax
import numpy as np
import pytest

from configs import default
from fl_sketch import engine
from fl_sketch.core.protocols import Server
from fl_sketch.data import datasets, residency
from fl_sketch.engine import prefetch
from fl_sketch.run import build
from tests.meshes import mesh_of
from tests.run.devices import Device

pytestmark = pytest.mark.slow


def built(form, **changes):
    config = default.get_config()
    config.compute.devices = 2
    config.model.name = "logistic"
    config.eval_every = 8
    config.cohort.size = 7  # not a multiple of the devices
    config.compute.data = form
    config.update_from_flattened_dict(changes)
    return build(config)


def where_it_was(leaf, old):
    """Returns a copy: on the devices, or on the host if the old one was there."""
    if isinstance(old, np.ndarray):
        return leaf.copy()
    return jax.device_put(leaf, old.sharding)


def run(form, cuts=(5,), **changes):
    """Returns the state after rounds in calls of these lengths, and all reports."""
    one = built(form, **changes)
    advance, state, reports = one.compile().advance, one.start(), []
    for count in cuts:
        state, report = advance(state, count)
        reports.append(jax.tree.map(lambda leaf, n=count: np.asarray(leaf[:n]), report))
        # As a checkpoint would have it.
        saved = jax.device_get(state)
        state = jax.tree.map(where_it_was, saved, state)
    return saved, jax.tree.map(lambda *leaves: np.concatenate(leaves), *reports)


EVERYONE = {"cohort.sampling": "everyone", "algorithm": "fedopt"}


@functools.cache
def whole_run():
    return run("streamed", **EVERYONE)


@pytest.mark.parametrize(
    "changes",
    [
        {
            "cohort.sampling": "poisson",
            "cohort.dropout": 0.3,
            "cohort.weighting": "examples",
            "data.partition": "power_law",
        },
        {
            "cohort.sampling": "replacement",
            "compute.chunk": 3,
            "data.partition": "dirichlet",
            "algorithm": "fedopt",
        },
        EVERYONE,
    ],
    ids=lambda changes: ",".join(f"{k}={v}" for k, v in changes.items()),
)
def test_a_streamed_run_is_the_resident_run_to_the_bit(changes):
    streamed = whole_run() if changes is EVERYONE else run("streamed", **changes)
    resident = run("resident", **changes)
    chex.assert_trees_all_equal(streamed, resident)
    chex.assert_trees_all_equal_dtypes(streamed, resident)


def test_a_streamed_run_may_be_cut_and_resumed():
    whole = whole_run()
    chex.assert_trees_all_equal(run("streamed", (2, 1, 2), **EVERYONE), whole)
    one = built("streamed", **EVERYONE)
    advance = one.compile().advance
    middle, _ = advance(one.start(), 3)
    kept = jax.device_get(middle)
    advance(middle, 2)  # and then back, to batches that nobody has made ahead
    again = jax.tree.map(
        lambda leaf, old: jax.device_put(leaf, old.sharding), kept, one.start()
    )
    chex.assert_trees_all_equal(jax.device_get(advance(again, 2)[0]), whole[0])


class Script:
    """Parts for `advancing` that write down what happens, and in which thread."""

    def __init__(self):
        self.drawn, self.gathered, self.used, self.threads = [], [], [], set()
        self.more = threading.Condition()

    def draw(self, number):
        self.drawn.append(number)
        return number

    def gather(self, number):
        with self.more:
            self.threads.add(threading.current_thread())
            self.gathered.append(number)
            self.more.notify()
        return number

    def one_round(self, state, batches):
        following = state.server.round + 1
        with self.more:  # a round lasts until the next one's batches have come
            assert self.more.wait_for(lambda: following in self.gathered, timeout=10)
        self.used.append(batches)
        return state_of(following), np.array([batches])


def state_of(number):
    return engine.State(Server((), (), (), number), ())


def test_batches_are_gathered_a_round_ahead_also_between_calls():
    script = Script()
    advance = prefetch.advancing(script.draw, script.gather, script.one_round)
    state, report = advance(state_of(0), 3)
    assert report.tolist() == [0, 1, 2]
    advance(state, 2)
    assert script.used == [0, 1, 2, 3, 4] and script.drawn == [0, 1, 2, 3, 4, 5]
    assert len(script.threads) == 1 and threading.main_thread() not in script.threads
    advance(state_of(9), 1)
    assert script.used[-1] == 9


def test_an_error_of_the_reading_thread_reaches_the_caller():
    def gather(number):
        raise OSError(f"cannot read for round {number}")

    script = Script()
    advance = prefetch.advancing(script.draw, gather, script.one_round)
    with pytest.raises(OSError, match="for round 4"):
        advance(state_of(4), 1)


def test_data_are_streamed_if_they_do_not_fit(monkeypatch):
    train, mesh = datasets.load("digits").train, mesh_of(2, "clients")
    size = sum(leaf.nbytes for leaf in train)
    assert residency.form("auto", train, mesh, "fresh") == "resident"
    monkeypatch.setattr(residency, "HOST_LIMIT", 2 * size)
    assert residency.form("auto", train, mesh, "fresh") == "resident"
    monkeypatch.setattr(residency, "HOST_LIMIT", 2 * size - 2)
    assert residency.form("auto", train, mesh, "fresh") == "streamed"
    assert residency.form("resident", train, mesh, "fresh") == "resident"
    assert built("auto").facts["data"] == "streamed"
    assert built("resident").facts["data"] == "resident"


def test_room_is_a_share_of_what_is_free():
    devices = [Device(20), Device(60)]
    assert residency.room(devices) == residency.SHARE * 40


def test_another_form_is_refused():
    with pytest.raises(ValueError, match="compute: .*data='stream'.*mean 'streamed'"):
        built("stream")
