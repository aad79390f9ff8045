"""`engine.simulate` is the engine's own rounds, and says what does not fit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, data, engine, sketch
from fl_sketch.data import batches as draws
from fl_sketch.data import residency
from fl_sketch.privacy import accounting, clipping, mechanism
from fl_sketch.sketch import compressors
from tests.simulation import KEY

COUNT, POPULATION = 90, 9
INPUTS = np.asarray(jax.random.normal(jax.random.key(3), (COUNT, 4)))
TARGETS = (INPUTS @ np.array([1.0, -2.0, 0.5, 0.0])).astype(np.float32)
CLIENTS = data.clients((INPUTS, TARGETS), np.arange(COUNT) % POPULATION)
PARAMS = {"w": np.zeros(4, np.float32)}
# Of three rounds or more all runs of an algorithm are one program, compiled once.
WORK = {
    "key": KEY,
    "cohort": 4,
    "steps": 2,
    "batch": 5,
    "every": 3,
    "bar": False,
    "devices": jax.devices()[:1],
}


def loss(params, batch):
    inputs, targets = batch
    return jnp.mean((inputs @ params["w"] - targets) ** 2)


SAFL = algorithms.safl(
    loss, sketch=sketch.count_sketch(2), client_rate=0.05, server=optax.adam(0.05)
)
EF21 = algorithms.sketched_sgd(
    loss, sketch=sketch.count_sketch(2, rows=3), server_rate=0.05, heavy=1
)
NOISY = mechanism.central(clipping.clip(1.0), noise_multiplier=2.0, denominator=4)

PRIVATE = SAFL._replace(mechanism=NOISY)
POISSON = engine.poisson(POPULATION, 4)
SCAFFOLD = algorithms.scaffold(loss, client_rate=0.05, server_rate=1.0, steps=5)
EXACT = {"relation": "replace_one"}


def same(one, other):
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


@functools.cache
def ran(algorithm, rounds, cohort=4, **change):
    """Returns a run from the beginning, which all tests share that ask for it."""
    work = WORK | {"cohort": cohort} | change
    return engine.simulate(algorithm, PARAMS, CLIENTS, rounds=rounds, **work)


def test_it_is_the_engines_own_rounds():
    run = ran(SAFL, 7)
    mesh = engine.mesh_over(WORK["devices"])
    fetch = draws.fetching("fresh", steps=2, batch=5)
    one_round = jax.jit(engine.make_round(SAFL, fetch, mesh))
    sampler = engine.fixed_size(POPULATION, 4)
    state = engine.initial_state(SAFL, jax.tree.map(jnp.asarray, PARAMS), POPULATION)
    resident = draws.resident(CLIENTS.examples, CLIENTS.partition)
    step = jax.jit(functools.partial(engine.run_rounds, one_round, sampler, most=1))
    losses = []
    for _ in range(7):
        state, report = step(state, KEY, resident, 1)
        losses.append(report.simulator_only.diagnostics["loss"].item())
    np.testing.assert_allclose(run.params["w"], state.server.params["w"], rtol=1e-6)
    assert [row["round"] for row in run.history] == [3, 6, 7]
    np.testing.assert_allclose(run.history[1]["loss"], np.mean(losses[3:6]), rtol=1e-6)
    assert run.history[-1]["bytes_up"] == 7 * 4 * 2 * 4
    assert run.history[-1]["bytes_down"] == run.state.ledger.down.sum()
    assert "epsilon" not in run.history[-1]


@pytest.mark.parametrize("algorithm", [SAFL, EF21], ids=["safl", "client state"])
def test_it_goes_on_to_the_bit_from_a_state_that_is_not_used_up(algorithm):
    whole, begun = ran(algorithm, 7), ran(algorithm, 4)
    for _ in range(2):
        ended = engine.simulate(
            algorithm, PARAMS, CLIENTS, rounds=3, state=begun.state, **WORK
        )
        assert same(ended.state, whole.state)
        assert ended.history[-1] == whole.history[-1]


def test_data_on_the_host_give_the_same_run_to_the_bit(tmp_path):
    np.save(tmp_path / "inputs.npy", INPUTS)
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    clients = data.clients((mapped, TARGETS), CLIENTS.partition)
    runs = [
        engine.simulate(SAFL, PARAMS, clients, rounds=7, data=form, **WORK)
        for form in ("resident", "streamed")
    ]
    assert same(runs[0].state, runs[1].state) and runs[0].history == runs[1].history


def test_devices_and_chunks_change_last_bits_only():
    one, all_devices = ran(SAFL, 7), ran(SAFL, 7, devices=None, chunk=2)
    np.testing.assert_allclose(one.params["w"], all_devices.params["w"], rtol=1e-5)
    assert one.history[-1]["bytes_up"] == all_devices.history[-1]["bytes_up"]


def test_what_is_looked_at_may_be_kept():
    kept = []

    def look(params):
        kept.append(params)
        return {"far": jnp.abs(params["w"]).sum()}

    run = engine.simulate(SAFL, PARAMS, CLIENTS, rounds=6, look=look, **WORK)
    fars = [float(jnp.abs(params["w"]).sum()) for params in kept]
    assert [row["far"] for row in run.history] == fars and len(fars) == 2


def test_a_mechanism_makes_it_private_and_history_says_for_which_epsilon():
    run = ran(PRIVATE, 4, POISSON)
    row = run.history[-1]
    plan = accounting.Plan(4, 4, POPULATION, coordinates=2)
    assert row["epsilon"] == pytest.approx(
        accounting.epsilon(plan, 2.0, delta=1e-5), rel=1e-3
    )
    assert row["randomness"] == "simulated" and "simulator_only_loss" in row
    assert not {"loss", "bytes_up"} & {*row}
    secret = WORK | {"key": engine.secret_roots(0), "cohort": POISSON}
    other = engine.simulate(PRIVATE, PARAMS, CLIENTS, rounds=4, **secret)
    assert other.history[-1]["randomness"] == "secret"
    assert other.history[-1]["epsilon"] == row["epsilon"]
    assert not same(other.params, run.params)
    assert ran(PRIVATE, 4, **EXACT).history[-1]["epsilon"] > 0


def test_rounds_that_were_played_otherwise_are_not_counted_as_these():
    weak = SAFL._replace(mechanism=NOISY._replace(noise_multiplier=0.5))
    work = WORK | {"cohort": POISSON}
    open_to_all, noisy = ran(SAFL, 4).state, ran(PRIVATE, 4, POISSON).state
    known = ran(PRIVATE, 4, **EXACT).state
    for other, played in ((PRIVATE, open_to_all), (PRIVATE, known), (weak, noisy)):
        with pytest.raises(ValueError, match="same mechanism, cohorts and relation"):
            engine.simulate(other, PARAMS, CLIENTS, rounds=1, state=played, **work)
    ended = engine.simulate(PRIVATE, PARAMS, CLIENTS, rounds=3, state=noisy, **work)
    whole = ran(PRIVATE, 7, POISSON)
    assert ended.history[-1]["epsilon"] == whole.history[-1]["epsilon"]


def test_distributed_noise_is_for_cohorts_whose_size_all_know():
    shares = mechanism.distributed(
        clipping.clip(1.0), noise_multiplier=2.0, denominator=4, smallest=4
    )
    private = SAFL._replace(mechanism=shares)
    work = WORK | {"cohort": POISSON}
    for given in (WORK, work | EXACT):
        with pytest.raises(ValueError, match="with distributed noise, got"):
            engine.simulate(private, PARAMS, CLIENTS, rounds=1, **given)
    run = engine.simulate(private, PARAMS, CLIENTS, rounds=1, **WORK, **EXACT)
    assert run.history[-1]["epsilon"] > 0


@pytest.mark.parametrize(
    "cohort",
    [
        engine.with_replacement(POPULATION, 4),
        engine.weighted(POISSON, lambda ids: ids + 1.0),
    ],
    ids=["replacement", "weighted"],
)
def test_cohorts_that_no_accountant_knows_are_refused(cohort):
    with pytest.raises(ValueError, match="no accountant here knows"):
        engine.simulate(PRIVATE, PARAMS, CLIENTS, rounds=2, **WORK | {"cohort": cohort})


def test_a_key_of_the_loss_is_its_own_in_every_round_step_and_client():
    def shaken(params, batch, key):
        return loss(params, batch) + params["w"][0] * jax.random.normal(key)

    drawn = []

    def one(params, batch, key):
        jax.debug.callback(
            lambda words: drawn.append(tuple(words.tolist())), jax.random.key_data(key)
        )
        return loss(params, batch) + 0 * params["w"][0]

    plain = algorithms.fedavg(one, client_rate=0.05)
    # On one device: on more, empty places work as well.
    engine.simulate(plain, PARAMS, CLIENTS, rounds=3, **WORK)
    jax.effects_barrier()
    assert len({*drawn}) == len(drawn) == 3 * 4 * 2
    named = algorithms.fedavg(
        lambda params, batch, key=None: loss(params, batch) if key is None else 1 / 0,
        client_rate=0.05,
    )
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        engine.simulate(named, PARAMS, CLIENTS, rounds=1, **WORK)
    noisy = algorithms.fedavg(shaken, client_rate=0.05)
    whole, begun = ran(noisy, 6), ran(noisy, 3)
    ended = engine.simulate(noisy, PARAMS, CLIENTS, rounds=3, state=begun.state, **WORK)
    assert same(ended.params, whole.params)
    quiet = ran(algorithms.fedavg(loss, client_rate=0.05), 6)
    assert not same(quiet.params, whole.params)


def fedavg(own):
    return algorithms.fedavg(own, client_rate=0.1)


OTHER = data.clients((INPUTS, TARGETS), np.arange(COUNT) % 3)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"algorithm": loss}, TypeError, "algorithm to be made by .*type function"),
        ({"clients": (INPUTS, TARGETS)}, TypeError, "clients to be made by data.cl"),
        (
            {"params": {"w": np.zeros(4, int)}},
            TypeError,
            r"32, got int64 at \['w'",
        ),
        (
            {"params": {"w": jnp.zeros(4, jnp.bfloat16)}},
            TypeError,
            r"got bfloat16 at \['w'\]. A loss may compute in other",
        ),
        ({"params": {}}, TypeError, "params to be a tree of float arrays"),
        ({"params": {"w": np.zeros(3)}}, TypeError, "fit together, got TypeError"),
        ({"params": {"v": np.zeros(4)}}, ValueError, "together, got KeyError: 'w'"),
        ({"algorithm": fedavg(lambda p: 0.0)}, TypeError, r"loss to take .*got \(p\)"),
        ({"algorithm": fedavg(3)}, TypeError, "loss to be a function .*got 3"),
        (
            {"algorithm": fedavg(lambda p, b: p["w"])},
            TypeError,
            r"loss to return one float, got float32 of shape \(4,\)",
        ),
        (
            {"algorithm": fedavg(lambda p, b: (loss(p, b), 1))},
            TypeError,
            "one float, got tuple",
        ),
        ({"algorithm": fedavg(lambda p, b: None)}, TypeError, "got NoneType"),
        ({"algorithm": SAFL._replace(server=0.1)}, TypeError, "optax trans.*got 0.1"),
        (
            {"algorithm": SAFL._replace(mechanism=NOISY), "cohort": None},
            ValueError,
            "denominator to be 9, .*got denominator=4",
        ),
        ({"key": 0}, TypeError, "key to be one typed key"),
        ({"rounds": 0}, ValueError, "rounds"),
        ({"every": 0}, ValueError, "every"),
        ({"cohort": 10}, ValueError, "cohort <= 9"),
        ({"cohort": engine.everyone(5)}, ValueError, "cohort .*got one of 5"),
        ({"batches": "all"}, ValueError, "batches='all'"),
        ({"data": "disk"}, ValueError, "data='disk'"),
        (
            {"data": "streamed", "batches": "whole", "batch": 10},
            ValueError,
            "data='resident' with whole batches, got",
        ),
        ({"batches": "whole", "batch": 7}, ValueError, "batch=7 and clients of 10"),
        ({"batches": "subsets", "batch": 11}, ValueError, "batch <= 10"),
        ({"steps": 0}, ValueError, "steps"),
        ({"batch": 1.5}, TypeError, "batch"),
        ({"devices": 1}, TypeError, "some of jax.devices.*got 1"),
        ({"devices": "cpu"}, TypeError, "some of jax.devices"),
        ({"relation": "near"}, ValueError, "relation='near'"),
        ({"delta": None}, TypeError, "delta=None"),
        ({"algorithm": SCAFFOLD}, ValueError, "steps=2, the batches of a client"),
        ({"look": 3}, TypeError, "look to be a function of params, got look=3"),
        ({"look": lambda params: 3.0}, ValueError, "look to return .*got 3.0"),
        ({"look": lambda params: {"loss": 0}}, ValueError, "not among round, loss"),
        ({"download": "all"}, ValueError, "download='all'"),
        ({"state": 1}, TypeError, "state to be made by .* of type int"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(change, kind, words):
    given = {"algorithm": SAFL, "params": PARAMS, "clients": CLIENTS, "rounds": 3}
    with pytest.raises(kind, match=words) as raised:
        engine.simulate(**WORK | given | change)
    assert "\n" not in str(raised.value)


def test_a_state_of_another_algorithm_or_population_is_refused():
    begun = ran(SAFL, 4)
    for algorithm, clients in ((EF21, CLIENTS), (SAFL, OTHER)):
        with pytest.raises(ValueError, match="Expected state to be that of a run"):
            engine.simulate(
                algorithm,
                PARAMS,
                clients,
                rounds=1,
                state=begun.state,
                **WORK | {"cohort": 2},
            )


def test_a_run_goes_on_with_the_hashes_and_the_prices_that_it_had():
    begun = ran(SAFL, 4)
    longer = algorithms.safl(
        loss, sketch=sketch.count_sketch(3), client_rate=0.05, server=optax.adam(0.05)
    )
    with pytest.raises(ValueError, match="public root of the rounds before"):
        engine.simulate(
            SAFL,
            PARAMS,
            CLIENTS,
            rounds=1,
            state=begun.state,
            **WORK | {"key": jax.random.key(99)},
        )
    work = WORK | {"download": "messages"}
    begun = ran(SAFL, 4, download="messages")
    assert begun.prices.followed
    with pytest.raises(ValueError, match="Expected messages of as many bytes"):
        engine.simulate(longer, PARAMS, CLIENTS, rounds=1, state=begun.state, **work)
    work = WORK | {"cohort": None, "every": 1}
    begun = engine.simulate(SAFL, PARAMS, CLIENTS, rounds=1, **work)
    # Of one round the model is the cheapest way, of more it is to follow; and those
    # who have the model and no moments begin as newcomers.
    ended = engine.simulate(SAFL, PARAMS, CLIENTS, rounds=9, state=begun.state, **work)
    assert not begun.prices.followed and ended.prices.followed
    book = ended.state.ledger
    assert (book.down == 16 + (16 + 8) + 8 * 8).all()


def test_data_too_large_for_the_devices_are_streamed_or_refused(monkeypatch):
    monkeypatch.setattr(residency, "HOST_LIMIT", 10)
    streamed = engine.simulate(SAFL, PARAMS, CLIENTS, rounds=7, **WORK)
    with pytest.raises(
        ValueError, match="at most .* with subsets batches.*try data='resident'"
    ):
        engine.simulate(SAFL, PARAMS, CLIENTS, rounds=2, batches="subsets", **WORK)
    whole = ran(SAFL, 7, data="resident")
    assert same(streamed.params, whole.params)


@pytest.mark.parametrize(
    ("examples", "owners", "words"),
    [
        ((INPUTS, TARGETS[:5]), np.arange(COUNT), r"shapes \(90, 4\), \(5,\)"),
        ((), np.arange(COUNT), "got shapes none"),
        ((INPUTS, 3.0), np.arange(COUNT), r"\(90, 4\), \(\)"),
        (np.zeros(2, [("a", "f4")]), [0, 1], "to be numbers, got .*'a'"),
        (INPUTS[:3], ["a", None, "b"], "3 integers or strings"),
        (np.array(["a"] * 4), np.arange(4), "to be numbers, got <U1"),
        (np.array([2**40]), [0], r"lie in \[-2\^31"),
        (INPUTS, np.arange(5), "90 integers or strings"),
        (INPUTS, np.arange(COUNT) / 2, "integers or strings.*float64"),
        (INPUTS, data.iid(200, 3, seed=0), "whose last example is 199"),
        (INPUTS, data.Partition(np.array([-1, 0]), np.array([0, 2])), "first -1"),
        (INPUTS, data.Partition(np.arange(2), np.array([0, 2, 2])), "sizes from 0"),
        (INPUTS, data.Partition(np.arange(2), np.array([0, 1])), "an example, got"),
    ],
)
def test_examples_that_cannot_be_are_refused_in_one_line(examples, owners, words):
    with pytest.raises((ValueError, TypeError), match=words) as raised:
        data.clients(examples, owners)
    assert "\n" not in str(raised.value)


def test_weights_known_for_all_clients_scale_no_memory():
    """EF21's server keeps the weighted mean over all clients, here or not."""

    algorithm = algorithms.ef21(
        loss, compressor=compressors.top_k(2), server=optax.sgd(0.05)
    )

    def after(sampler):
        return ran(algorithm, 8, sampler).params

    half, all_nine = engine.fixed_size(POPULATION, 4), engine.everyone(POPULATION)
    ten = engine.weighted(half, lambda ids: 10.0 + 0.0 * ids, average=10.0)
    np.testing.assert_allclose(after(ten)["w"], after(half)["w"], rtol=1e-4)
    ten = engine.weighted(all_nine, lambda ids: 10.0 + 0.0 * ids)
    np.testing.assert_allclose(after(ten)["w"], after(all_nine)["w"], rtol=1e-4)
    ten = engine.weighted(half, lambda ids: 10.0 + 0.0 * ids)
    with pytest.raises(ValueError, match="weighted.*average"):
        after(ten)


def test_owners_may_be_objects_of_one_kind():
    for owners in (np.arange(COUNT) % 5, np.array(["ann", "bo"] * (COUNT // 2))):
        assert data.clients(INPUTS, owners.astype(object)).population in (2, 5)
