"""`simulate` is the engine's own rounds, and says what does not fit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, data, engine, sketch
from fl_sketch.core.protocols import Roots
from fl_sketch.data import batches as draws
from fl_sketch.privacy import accounting
from fl_sketch.run import secret_roots
from fl_sketch.workdir.rows import may_be_published
from tests.engine.regression import (
    CLIENTS,
    EF21,
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
    owners = OWNERS[:50] * 2 % POPULATION
    held_out = data.clients((INPUTS[:50], TARGETS[:50]), owners)
    each_client = engine.per_client(error, held_out)

    def look(params):
        models.append(params)
        return {"far": jnp.abs(params["w"]).sum(), **each_client(params)}

    run = simulated(look=look, on_row=rows.append, rounds=6)
    assert len(models) == len(rows) == len(run.history) == 2
    for params, row, told in zip(models, run.history, rows, strict=True):
        assert row["far"] == float(jnp.abs(params["w"]).sum())
        errors = np.abs(INPUTS[:50] @ np.asarray(params["w"]) - TARGETS[:50])
        each = [errors[owners == client].mean() for client in range(POPULATION)]
        found = [row[f"clients_error{of}"] for of in ("", "_worst_tenth", "_median")]
        expected = [np.mean(each), np.max(each), np.median(each)]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert row == {k: v for k, v in told.items() if k != "rounds_per_second"}


def test_it_goes_on_to_the_bit_from_a_state_that_is_not_used_up():
    whole, begun = ran(EF21), ran(EF21, rounds=4)
    for _ in range(2):
        ended = simulated(EF21, rounds=3, state=begun.state)
        assert same(ended.state, whole.state)
        assert ended.history[-1] == whole.history[-1]


def test_data_on_the_host_give_the_same_run_to_the_bit(tmp_path):
    np.save(tmp_path / "inputs.npy", INPUTS)
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    clients = data.clients((mapped, TARGETS), CLIENTS.partition)
    streamed = simulated(clients=clients, data="streamed")
    assert same(ran(SAFL).state, streamed.state)
    assert ran(SAFL).history == streamed.history


def test_devices_and_chunks_change_last_bits_only():
    one, all_devices = ran(SAFL), ran(SAFL, devices=None, chunk=2)
    np.testing.assert_allclose(one.params["w"], all_devices.params["w"], rtol=1e-5)
    assert same(one.state.ledger, all_devices.state.ledger)


def test_a_mechanism_makes_it_private_and_history_says_for_which_epsilon():
    run = ran(PRIVATE, rounds=4, cohort=POISSON)
    row, plan = run.history[-1], accounting.Plan(4, 4, POPULATION, coordinates=2)
    expected = accounting.epsilon(plan, 2.0, delta=1e-5)
    assert row["epsilon"] == pytest.approx(expected, rel=1e-3) and row["delta"] == 1e-5
    hidden = {"train_loss", "bytes_up_total", "mechanism_rejected"}
    assert hidden <= {*row}
    open_to_all = {"round", "epsilon", "delta", "randomness"}
    assert {name for name in row if may_be_published(name)} == open_to_all
    assert ran(PRIVATE, rounds=4, **EXACT).history[-1]["epsilon"] > 0


@pytest.mark.slow
def test_only_secret_bits_of_the_system_are_called_so():
    """Roots that differ are not enough: whoever knows them knows the noise."""
    known, rounds = Roots(jax.random.key(0), jax.random.key(1)), {"rounds": 3}
    runs = {
        name: simulated(PRIVATE, key=key, cohort=POISSON, **rounds)
        for name, key in (("simulated", known), ("system", secret_roots(0)))
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


def test_a_key_of_the_loss_is_its_own_in_every_round_step_and_client():
    """On one device: on more, empty places work as well."""
    drawn = []

    def noted(params, batch, key):
        jax.debug.callback(
            lambda words: drawn.append(tuple(words.tolist())), jax.random.key_data(key)
        )
        return loss(params, batch)

    simulated(algorithms.fedavg(noted, client_rate=0.05), rounds=3)
    jax.effects_barrier()
    assert len({*drawn}) == len(drawn) == 3 * 4 * 2


def test_a_run_goes_on_with_the_hashes_and_the_prices_that_it_had():
    begun = ran(SAFL, rounds=4, download="messages")
    with pytest.raises(ValueError, match="key to be that of the earlier rounds"):
        simulated(rounds=1, state=begun.state, key=jax.random.key(99))
    longer = algorithms.safl(
        loss, sketch=sketch.count_sketch(3), client_rate=0.05, server=optax.adam(0.05)
    )
    with pytest.raises(ValueError, match="Expected messages of as many bytes"):
        simulated(longer, rounds=1, state=begun.state, download="messages")
