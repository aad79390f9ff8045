"""`engine.simulate` is the engine's own rounds, and says what does not fit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, data, engine, sketch
from fl_sketch.core.protocols import Roots
from fl_sketch.data import batches as draws
from fl_sketch.data import residency
from fl_sketch.privacy import accounting, clipping, mechanism
from fl_sketch.sketch import compressors
from fl_sketch.workdir.rows import may_be_published
from tests.engine.regression import (
    CLIENTS,
    COUNT,
    EF21,
    FEDAVG,
    INPUTS,
    OWNERS,
    PARAMS,
    POISSON,
    POPULATION,
    PRIVATE,
    SAFL,
    TARGETS,
    WORK,
    error,
    loss,
    private,
    ran,
    same,
    simulated,
)

EXACT = {"relation": "replace_one"}


def test_a_column_has_one_name_in_private_and_other_runs():
    for run in (ran(SAFL), ran(PRIVATE, cohort=POISSON)):
        known = run.column("bytes_up_total")
        assert known == [row["bytes_up_total"] for row in run.history]
    with pytest.raises(ValueError, match="train_loss.*Did you mean 'bytes_up_total'"):
        run.column("bytes_up_totl")


def test_it_is_the_engines_own_rounds():
    run = ran(SAFL)
    fetch = draws.fetching("fresh", steps=2, batch=5)
    one_round = engine.make_round(SAFL, fetch, engine.mesh_over(WORK["devices"]))
    sampler = engine.fixed_size(POPULATION, 4)
    state = engine.initial_state(SAFL, jax.tree.map(jnp.asarray, PARAMS), POPULATION)
    resident = draws.resident(CLIENTS.examples, CLIENTS.partition)
    play = jax.jit(functools.partial(engine.run_rounds, one_round, sampler, most=7))
    state, report = play(state, WORK["key"], resident, 7)
    np.testing.assert_allclose(run.params["w"], state.server.params["w"], rtol=1e-6)
    assert [row["round"] for row in run.history] == [3, 6, 7]
    losses = report.simulator_only.diagnostics["loss"]
    expected = [losses[:3].mean(), losses[3:6].mean(), losses[6]]
    found = [row["train_loss"] for row in run.history]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    row = run.history[-1]
    assert row["bytes_up_total"] == 7 * 4 * 2 * 4 == run.state.ledger.up.sum()
    assert row["bytes_down_total"] == run.state.ledger.down.sum()
    assert row["epsilon"] is None and not {"delta", "randomness"} & {*row}


def test_rows_have_what_is_measured_of_the_model_and_of_each_client():
    """Of the models that `look` was given, which it may keep."""
    models, rows = [], []

    def look(params):
        models.append(params)
        return {"far": jnp.abs(params["w"]).sum()}

    few = slice(0, 50), OWNERS[:50] * 2 % POPULATION
    for some, owners in ((slice(None), OWNERS), few):
        held_out = data.clients((INPUTS[some], TARGETS[some]), owners)
        del models[:], rows[:]
        measured = {"look": look, "per_client": error}
        measured |= {"held_out": held_out} if owners is not OWNERS else {}
        run = simulated(on_row=rows.append, rounds=6, **measured)
        assert len(models) == len(rows) == len(run.history) == 2
        for params, row, told in zip(models, run.history, rows, strict=True):
            assert row["far"] == float(jnp.abs(params["w"]).sum())
            errors = np.abs(INPUTS[some] @ np.asarray(params["w"]) - TARGETS[some])
            each = [errors[owners == client].mean() for client in range(POPULATION)]
            found = [
                row[f"clients_error{of}"] for of in ("", "_worst_tenth", "_median")
            ]
            expected = [np.mean(each), np.max(each), np.median(each)]
            np.testing.assert_allclose(found, expected, rtol=1e-5)
            assert row == {k: v for k, v in told.items() if k != "rounds_per_second"}
            assert told["rounds_per_second"] > 0


@pytest.mark.parametrize("algorithm", [SAFL, EF21], ids=["safl", "client state"])
def test_it_goes_on_to_the_bit_from_a_state_that_is_not_used_up(algorithm):
    whole, begun = ran(algorithm), ran(algorithm, rounds=4)
    for _ in range(2):
        ended = simulated(algorithm, rounds=3, state=begun.state)
        assert same(ended.state, whole.state)
        assert ended.history[-1] == whole.history[-1]


def test_data_on_the_host_give_the_same_run_to_the_bit(tmp_path, monkeypatch):
    """By choice, or if they are too large; files and bare arrays as well."""
    np.save(tmp_path / "inputs.npy", INPUTS)
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    clients = data.clients((mapped, TARGETS), CLIENTS.partition)
    streamed = simulated(clients=clients, data="streamed")
    assert same(ran(SAFL).state, streamed.state)
    assert ran(SAFL).history == streamed.history
    bare = {"clients": data.clients(INPUTS, OWNERS), "rounds": 3}
    length = algorithms.fedavg(
        lambda params, inputs: jnp.mean((inputs @ (params["w"] - 1)) ** 2),
        client_rate=0.05,
    )
    monkeypatch.setattr(residency, "HOST_LIMIT", 10)
    runs = [simulated(length, data=form, **bare) for form in ("resident", "auto")]
    assert same(runs[0].state, runs[1].state) and np.abs(runs[0].params["w"]).any()
    with pytest.raises(ValueError, match="data='resident'"):
        simulated(batches="subsets")


def test_devices_and_chunks_change_last_bits_only():
    one, all_devices = ran(SAFL), ran(SAFL, devices=None, chunk=2)
    np.testing.assert_allclose(one.params["w"], all_devices.params["w"], rtol=1e-5)
    assert same(one.state.ledger, all_devices.state.ledger)


def test_a_row_of_a_longer_stretch_than_the_run_needs_no_room_for_it():
    assert [row["round"] for row in simulated(every=2**40).history] == [7]


def test_a_mechanism_makes_it_private_and_history_says_for_which_epsilon():
    run = ran(PRIVATE, rounds=4, cohort=POISSON)
    row, plan = run.history[-1], accounting.Plan(4, 4, POPULATION, coordinates=2)
    expected = accounting.epsilon(plan, 2.0, delta=1e-5)
    assert row["epsilon"] == pytest.approx(expected, rel=1e-3) and row["delta"] == 1e-5
    assert {"train_loss", "bytes_up_total", "mechanism_rejected"} <= {*row}
    open_to_all = {"round", "epsilon", "delta", "randomness"}
    assert {name for name in row if may_be_published(name)} == open_to_all
    assert ran(PRIVATE, rounds=4, **EXACT).history[-1]["epsilon"] > 0


@pytest.mark.parametrize("algorithm", [SAFL, PRIVATE], ids=["public", "private"])
def test_the_bar_shows_no_loss_of_a_private_run(algorithm, capsys):
    simulated(algorithm, cohort=POISSON, bar=True)
    shown = capsys.readouterr().err
    assert "7/7" in shown and ("loss=" in shown) == (algorithm is SAFL)


def test_only_secret_bits_of_the_system_are_called_so():
    """Roots that differ are not enough: whoever knows them knows the noise."""
    known, rounds = Roots(jax.random.key(0), jax.random.key(1)), {"rounds": 3}
    runs = {
        name: simulated(PRIVATE, key=key, cohort=POISSON, **rounds)
        for name, key in (("simulated", known), ("system", engine.secret_roots(0)))
    }
    for name, run in runs.items():
        assert run.history[-1]["randomness"] == name
    runs |= {"same": simulated(PRIVATE, key=known, cohort=POISSON, **rounds)}
    assert same(runs["simulated"].params, runs["same"].params)
    assert not same(runs["simulated"].params, runs["system"].params)


def test_a_target_chooses_the_noise_or_ends_the_run_before_it_is_passed():
    target, made = 3.0, []

    def make(noise_multiplier):
        made.append(noise_multiplier)
        return private(noise_multiplier)

    run = simulated(make, cohort=POISSON, target_epsilon=target)
    last = run.history[-1]
    assert last["round"] == 7 and 0.99 * target < last["epsilon"] <= target
    z = made[-1]
    assert last["epsilon"] == ran(private(z), cohort=POISSON).history[-1]["epsilon"]
    plan = accounting.Plan(7, 4, POPULATION, coordinates=2)
    assert accounting.epsilon(plan, 0.99 * z, delta=1e-5) > target
    ended = simulated(PRIVATE, cohort=POISSON, target_epsilon=2.0)
    assert ended.history[-1]["epsilon"] <= 2.0
    rounds = ended.history[-1]["round"]
    assert 0 < rounds < 7
    more = accounting.epsilon(plan._replace(steps=rounds + 1), 2.0, delta=1e-5)
    assert more > 2.0


def test_rounds_that_were_played_otherwise_are_not_counted_as_these():
    open_to_all = ran(SAFL, rounds=4).state
    noisy = ran(PRIVATE, rounds=4, cohort=POISSON).state
    known = ran(PRIVATE, rounds=4, **EXACT).state
    pairs = (PRIVATE, open_to_all), (PRIVATE, known), (private(0.5), noisy)
    for algorithm, state in pairs:
        with pytest.raises(ValueError, match="same mechanism, cohorts and relation"):
            simulated(algorithm, rounds=1, state=state, cohort=POISSON)
    ended = simulated(PRIVATE, rounds=3, state=noisy, cohort=POISSON)
    whole = ran(PRIVATE, cohort=POISSON)
    assert ended.history[-1]["epsilon"] == whole.history[-1]["epsilon"]


def test_noise_in_shares_is_for_cohorts_whose_size_all_know():
    shares = mechanism.integers(
        clipping.clip(1.0), noise_multiplier=2.0, denominator=4, smallest=4, bits=16
    )
    for change in ({}, {"cohort": POISSON, **EXACT}):
        with pytest.raises(ValueError, match="with noise in shares, got"):
            simulated(SAFL._replace(mechanism=shares), rounds=1, **change)
    run = simulated(SAFL._replace(mechanism=shares), rounds=1, **EXACT)
    assert run.history[-1]["epsilon"] > 0


@pytest.mark.parametrize("with_key", [False, True])
def test_a_key_of_the_loss_is_its_own_in_every_round_step_and_client(with_key):
    drawn = []

    def noted(params, batch, key):
        jax.debug.callback(
            lambda words: drawn.append(tuple(words.tolist())), jax.random.key_data(key)
        )
        return loss(params, batch)

    def shaken(params, batch, key):
        return loss(params, batch) + params["w"][0] * jax.random.normal(key)

    if not with_key:  # on one device: on more, empty places work as well
        simulated(algorithms.fedavg(noted, client_rate=0.05), rounds=3)
        jax.effects_barrier()
        assert len({*drawn}) == len(drawn) == 3 * 4 * 2
        return
    noisy = algorithms.fedavg(shaken, client_rate=0.05)
    whole, begun = simulated(noisy, rounds=6), simulated(noisy, rounds=3)
    assert same(simulated(noisy, rounds=3, state=begun.state).params, whole.params)
    assert not same(ran(FEDAVG, rounds=6).params, whole.params)


def test_weights_known_for_all_clients_scale_no_memory():
    """EF21's server keeps the weighted mean over all clients, here or not."""
    algorithm = algorithms.ef21(
        loss, compressor=compressors.top_k(2), server=optax.sgd(0.05)
    )

    def after(sampler):
        return ran(algorithm, rounds=8, cohort=sampler).params["w"]

    half = engine.fixed_size(POPULATION, 4)
    ten = engine.weighted(half, lambda ids: 10.0 + 0.0 * ids, average=10.0)
    np.testing.assert_allclose(after(ten), after(half), rtol=1e-4)
    with pytest.raises(ValueError, match="weighted.*average"):
        after(engine.weighted(half, lambda ids: 10.0 + 0.0 * ids))


def test_a_run_goes_on_with_the_hashes_and_the_prices_that_it_had():
    begun = ran(SAFL, rounds=4, download="messages")
    with pytest.raises(ValueError, match="key to be that of the earlier rounds"):
        simulated(rounds=1, state=begun.state, key=jax.random.key(99))
    longer = algorithms.safl(
        loss, sketch=sketch.count_sketch(3), client_rate=0.05, server=optax.adam(0.05)
    )
    with pytest.raises(ValueError, match="Expected messages of as many bytes"):
        simulated(longer, rounds=1, state=begun.state, download="messages")


def test_who_begins_to_follow_is_a_newcomer():
    """Of one round the model is the cheapest way, of more it is to follow.

    Those who have the model and no moments fetch them, and forget what they heard.
    """
    begun = simulated(rounds=1, cohort=None, every=1)
    ended = simulated(rounds=9, state=begun.state, cohort=None, every=9)
    assert not begun.prices.followed and ended.prices.followed
    assert (ended.state.ledger.down == 16 + (16 + 8) + 8 * 8).all()


def test_owners_may_be_objects_of_one_kind():
    for owners in (np.arange(COUNT) % 5, np.array(["ann", "bo"] * (COUNT // 2))):
        assert data.clients(INPUTS, owners.astype(object)).population in (2, 5)


def test_no_size_of_a_client_ends_a_private_run():
    """An error would say how many examples it has."""
    change = {"cohort": POISSON, "rounds": 1, "batches": "subsets", "batch": 11}
    assert np.isfinite(simulated(PRIVATE, **change).params["w"]).all()
    with pytest.raises(ValueError, match="batch=11"):
        simulated(**change | {"cohort": 4})


@pytest.mark.parametrize("z", [1e-300, 1e-10, 1e300])
def test_noise_that_no_accountant_counts_is_refused(z):
    with pytest.raises(ValueError, match="noise_multiplier"):
        simulated(private(z), cohort=POISSON, rounds=1)
