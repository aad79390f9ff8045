"""Data and clients' states on the host: the same run to the bit as on the devices."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import data, engine
from fl_sketch.core.keys import roots_of
from fl_sketch.core.protocols import Server
from fl_sketch.data import residency
from fl_sketch.engine import prefetch
from fl_sketch.engine.cohort import Cohort, Sampler
from fl_sketch.engine.experiment import Experiment, LocalWork
from fl_sketch.engine.loop import initial
from fl_sketch.engine.rounds import compile_rounds
from tests.engine.regression import (
    EF21,
    FEDAVG,
    INPUTS,
    KEY,
    OWNERS,
    PARAMS,
    POPULATION,
    TARGETS,
)
from tests.meshes import mesh_of
from tests.quick import some_fast

UNLIKE = data.clients((INPUTS, TARGETS), np.minimum(OWNERS, np.arange(90) % 8 + 1))
DROPPED = engine.with_dropout(engine.poisson(POPULATION, 4), 0.3)


def some_rounds(key):
    """In some rounds empty places have the number of a client that answers."""
    whole = jax.random.bernoulli(key)
    weights = jnp.where(whole, 1.0, jnp.array([1.0, 0.0, 0.0]))
    ids = jnp.where(weights > 0, jnp.array([0, 3, 7]), 0)
    return Cohort(ids, weights, weights.sum())


TRACE = Sampler(some_rounds, "", POPULATION, 3, float(POPULATION))


@functools.cache
def compiled(form, algorithm, sampler, weighting="equal", chunk=1):
    """Returns what plays rounds on two devices, and the first state."""
    params = jax.tree.map(jax.numpy.asarray, PARAMS)
    experiment = Experiment(
        algorithm=lambda hyperparameters, z: algorithm,
        init=lambda hyperparameters, key: params,
        clients=UNLIKE,
        cohort=sampler,
        local=LocalWork(2, 5),
        rounds=5,
        mesh=mesh_of(2, "clients"),
        weighting=weighting,
        chunk=chunk,
        data=form,
    )
    roots = roots_of(KEY)
    state = initial(experiment, roots).state
    advance = compile_rounds(experiment, state, roots)
    return advance, jax.device_get(state), state


def placed(saved, like):
    """Returns a state that was saved where a run has it."""
    return jax.tree.map(
        lambda leaf, old: jax.device_put(leaf, old.sharding), saved, like
    )


def played(form, *what, cuts=(5,), **how):
    """Returns the state after rounds in calls of these lengths, and all reports."""
    advance, saved, like = compiled(form, *what, **how)
    reports, done = [], 0
    for count in cuts:
        state, report = advance(placed(saved, like), done, count)
        reports.append(jax.tree.map(lambda leaf, n=count: np.asarray(leaf[:n]), report))
        saved, done = jax.device_get(state), done + count
    return saved, jax.tree.map(lambda *leaves: np.concatenate(leaves), *reports)


CASES = {
    "weights": (FEDAVG, DROPPED, {"weighting": "examples"}),
    "replacement": (FEDAVG, engine.with_replacement(POPULATION, 5), {"chunk": 3}),
    "client state": (EF21, TRACE, {"chunk": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", some_fast(CASES, ["client state"]))
def test_what_stays_on_the_host_changes_no_bit(case):
    """Cohorts are no multiple of the devices; some clients do not answer."""
    *what, how = CASES[case]
    reference = played("resident", *what, **how)
    assert not reference[1].simulator_only.answered.all() or case == "replacement"
    found = played("streamed", *what, **how)
    chex.assert_trees_all_equal(found, reference)
    chex.assert_trees_all_equal_dtypes(found, reference)


def test_a_run_on_the_host_may_be_cut_and_resumed():
    *what, how = CASES["client state"]
    whole = played("streamed", *what, **how)
    cut = played("streamed", *what, cuts=(2, 1, 2), **how)
    chex.assert_trees_all_equal(cut, whole)
    advance, saved, like = compiled("streamed", *what, **how)
    middle, _ = advance(placed(saved, like), 0, 3)
    kept = jax.device_get(jax.tree.map(np.copy, middle))
    advance(middle, 3, 2)  # and then back, to batches that nobody has made ahead
    again, _ = advance(placed(kept, like), 3, 2)
    chex.assert_trees_all_equal(jax.device_get(again), whole[0])


def test_an_error_of_the_reading_thread_reaches_the_caller():
    def gather(number):
        raise OSError(f"cannot read for round {number}")

    one_round = prefetch.gathered_ahead(lambda number: number, gather, None)
    state = engine.State(Server((), (), (), 4), ())
    with pytest.raises(OSError, match="for round 4"):
        one_round(state, 4)


def test_data_are_streamed_if_they_do_not_fit(monkeypatch):
    train, mesh = UNLIKE.examples, mesh_of(2, "clients")
    size = sum(leaf.nbytes for leaf in train)
    assert residency.placement("auto", train, mesh, "fresh") == "resident"
    # The two devices share one copy.
    for limit, form in ((size, "resident"), (size - 1, "streamed")):
        monkeypatch.setattr(residency, "HOST_LIMIT", limit)
        assert residency.placement("auto", train, mesh, "fresh") == form
    assert residency.placement("resident", train, mesh, "fresh") == "resident"
