"""`simulate(workdir=...)` goes on to the bit, and counts what it spends."""

import json

import jax
import numpy as np
import pytest

from fl_sketch import algorithms, data, sketch
from fl_sketch.models import params_io
from fl_sketch.run import secret_roots
from fl_sketch.workdir import (
    checkpoint,
    identity,
    odometer,
    secrets,
    weights,
)
from fl_sketch.workdir import rows as tables
from tests.engine.regression import (
    CLIENTS,
    EF21,
    INPUTS,
    NOISY,
    OFTEN,
    OWNERS,
    PARAMS,
    PRIVATE,
    SAFL,
    TARGETS,
    killed,
    loss,
    played,
    private,
    same,
    simulated,
)


def rows_of(folder):
    rows = tables.read(folder / "metrics.csv")
    assert all(float(row.pop("rounds_per_second")) > 0 for row in rows)
    return rows


def newest(folder):
    """Returns the name of the newest checkpoint, and all that it holds."""
    path = max((folder / "checkpoints").iterdir())
    with np.load(path) as arrays:
        kept = {name: arrays[name].tobytes() for name in arrays.files}
    kept.pop(
        checkpoint.EXTRA + identity.IDENTITY
    )  # private data have digests by a key of the folder
    return path.name, kept


@pytest.mark.parametrize(
    ("change", "roots"),
    [({"algorithm": EF21}, None), (NOISY, secret_roots)],
    ids=["client state", "secret"],
)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path, change, roots):
    """A private one with the secret that it began with, though it is given others."""
    first = {"key": roots(0)} if roots else {}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run = played(whole, **change, **first)
    for at in (2, 4):
        killed(broken, at, **change, **first)
        first = {"key": roots(0)} if roots else {}
        assert (broken / secrets.FILE).exists() == bool(roots)
    told = []
    again = played(broken, **change, **first, on_row=told.append)
    assert [row["round"] for row in told] == [4, 6, 7]  # the checkpoint is of round 3
    assert same(again.state, run.state)
    assert rows_of(broken) == rows_of(whole) and newest(broken) == newest(whole)
    assert [row["round"] for row in again.history] == [2, 4, 6, 7]
    for one, other in zip(again.history, run.history, strict=True):
        assert one | {"rounds_per_second": 0} == other | {"rounds_per_second": 0}
    for folder in (whole, broken):
        assert same(weights.load_params(folder), run.params)
        assert not (folder / secrets.FILE).exists()


def test_rows_of_a_folder_are_those_of_a_run_without_one(tmp_path):
    run, bare = played(tmp_path / "run"), simulated(**OFTEN)
    assert same(run.state, bare.state)
    columns = [name for name in run.history[0] if name != "rounds_per_second"]
    assert columns == [*bare.history[0]]
    for row, other in zip(run.history, bare.history, strict=True):
        assert {name: row[name] for name in columns} == other
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["rounds"] == 7 and summary["d"] == 4
    for name in ("train_loss", "bytes_up_total", "bytes_down_total", "epsilon"):
        assert summary[name] == bare.history[-1][name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "later"),
    [({}, {}), (NOISY, {}), (NOISY, {"key": secret_roots})],
    ids=["public", "simulated", "secret"],
)
def test_a_run_that_is_done_is_not_run_again(tmp_path, first, later):
    later = {name: make(0) for name, make in later.items()}
    run = played(tmp_path, **first, **later)
    if later:  # as a process that was killed in its last moment leaves it
        later = {"key": secret_roots(0)}
        secrets.keep(tmp_path, secrets.Secret(bytes(32)))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    told = []
    again = played(tmp_path, **first, **later, on_row=told.append)
    assert not told and same(again.state.server, run.state.server)
    np.testing.assert_equal(again.history, run.history)
    assert same(again.state.ledger, run.state.ledger)
    before.pop(tmp_path / secrets.FILE, None)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_rounds_are_counted_before_they_are_played(tmp_path):
    counted = []

    def noting(params, batch):
        def note():
            counted.append(odometer.read(tmp_path)["run"].plan.steps)

        jax.debug.callback(note)
        return loss(params, batch)

    algorithm = algorithms.safl(
        noting, sketch=sketch.count_sketch(2), client_rate=0.05, server=SAFL.server
    )
    noisy = NOISY | {"algorithm": algorithm._replace(mechanism=PRIVATE.mechanism)}
    run = played(tmp_path, **noisy, key=secret_roots(0))
    jax.effects_barrier()
    assert min(counted) >= 1 and max(counted) <= 7
    (entry,) = odometer.read(tmp_path).values()
    assert entry.plan.steps == 7 and entry.randomness == "system"
    assert entry.spent() == run.history[-1]["epsilon"]


@pytest.mark.slow
def test_a_run_ends_at_its_target_in_a_folder_too(tmp_path):
    """And its calibrated noise is that of the folder."""
    ended = played(tmp_path / "ended", **NOISY, target_epsilon=2.0)
    assert 0 < ended.history[-1]["round"] < 7
    assert ended.history[-1]["epsilon"] <= 2.0
    change = NOISY | {"algorithm": private, "target_epsilon": 3.0}
    killed(tmp_path / "broken", 4, **change)
    run = played(tmp_path / "broken", **change)
    assert run.history[-1]["round"] == 7
    assert 2.9 < run.history[-1]["epsilon"] <= 3.0


LONGER = algorithms.safl(
    loss, sketch=sketch.count_sketch(3), client_rate=0.05, server=SAFL.server
)
OTHER_TARGETS = data.clients((INPUTS, TARGETS + 1), OWNERS)
OTHER_OWNERS = data.clients((INPUTS, TARGETS), OWNERS[::-1])
COLS = sketch.count_sketch(2)
FASTER = algorithms.safl(loss, sketch=COLS, client_rate=0.06, server=SAFL.server)
STEEPER = algorithms.safl(
    lambda params, batch: 2 * loss(params, batch),
    sketch=COLS, client_rate=0.05, server=SAFL.server,
)  # fmt: skip
OTHERS = {
    "rate": ({"algorithm": FASTER}, "the loss, rates"),
    "loss": ({"algorithm": STEEPER}, "the loss, rates"),
    "data": ({"clients": OTHER_TARGETS}, "data"),
    "owners": ({"clients": OTHER_OWNERS}, "partition"),
    "model": ({"params": {"w": PARAMS["w"] + 1}}, "model"),
    "algorithm": ({"algorithm": EF21}, "algorithm"),
    "sketch": ({"algorithm": LONGER}, "the loss, rates"),
    "cohort": ({"cohort": 5}, "cohort"),
    "rounds": ({"rounds": 8}, "rounds=7.*rounds=8.*state=run.state"),
    "chunk": ({"chunk": 2}, "compute.chunk=0.*compute.chunk=2"),
    "steps": ({"steps": 3}, "steps=3"),
    "key": ({"key": jax.random.key(1)}, "key"),
}


@pytest.fixture(scope="module", name="begun")
def _begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun")
    killed(folder, 4)
    return folder


@pytest.fixture(scope="module", name="noisy")
def _noisy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noisy")
    killed(folder, 4, **NOISY, key=secret_roots(0))
    return folder


def refused(folder, words, **change):
    with pytest.raises(ValueError, match=words) as raised:
        played(folder, **change)
    assert "\n" not in str(raised.value) and str(folder) in str(raised.value)


@pytest.mark.parametrize("what", OTHERS)
def test_another_call_is_refused_in_one_line(begun, what):
    change, words = OTHERS[what]
    refused(begun, words, **change)


@pytest.mark.parametrize("what", ("data", "owners", "rounds", "key"))
def test_another_private_call_is_refused_in_one_line(noisy, what):
    change, words = OTHERS[what]
    key = {"key": secret_roots(1 if what == "key" else 0)}
    refused(noisy, words, **NOISY | change | key)


def test_a_run_that_is_done_is_not_taken_for_one_with_another_rate(tmp_path):
    played(tmp_path)
    refused(tmp_path, "the loss, rates", algorithm=FASTER)


def test_other_noise_is_refused_in_one_line(noisy):
    key = {"key": secret_roots(0)}
    refused(noisy, "workdir", **NOISY | key | {"algorithm": private(1.0)})
    with pytest.raises(ValueError, match="mechanism"):
        played(noisy, **NOISY | key | {"algorithm": SAFL})
    refused(noisy, "workdir", **NOISY)  # that everybody knows


def test_a_secret_that_was_lost_or_damaged_is_refused_in_one_line(noisy):
    path, key = noisy / secrets.FILE, {"key": secret_roots(0)}
    raw = path.read_bytes()
    for spoilt in (bytes(len(raw)), raw[:5], None):
        path.unlink()
        if spoilt is not None:
            secrets.keep(noisy, secrets.Secret(spoilt))
        refused(noisy, "secret", **NOISY, **key)
    secrets.keep(noisy, secrets.Secret(raw))


@pytest.mark.slow
def test_other_devices_are_a_warning(tmp_path):
    killed(tmp_path, 4)
    with pytest.warns(UserWarning, match="last bits"):
        again = played(tmp_path, devices=jax.devices()[:2])
    whole = simulated(**OFTEN)
    np.testing.assert_allclose(again.params["w"], whole.params["w"], rtol=1e-5)


def test_more_rounds_go_on_from_the_state_of_a_folder_that_is_done(tmp_path):
    """As the refusal of another number of rounds says."""
    played(tmp_path)
    refused(tmp_path, "state=run.state", rounds=9)
    run = played(tmp_path)
    longer, whole = simulated(rounds=2, state=run.state), simulated(rounds=9)
    assert same(longer.state, whole.state)


def test_a_run_goes_on_from_a_folder_or_from_a_state(tmp_path):
    state = simulated(rounds=1).state
    with pytest.raises(ValueError, match="workdir"):
        played(tmp_path / "run", state=state)
    assert CLIENTS.population == len(state.ledger.up) and not [*tmp_path.iterdir()]


def test_a_model_that_is_one_array_is_kept_as_one(tmp_path):
    def of_array(params, batch):
        return loss({"w": params}, batch)

    algorithm = algorithms.fedavg(of_array, client_rate=0.05)
    change = {"algorithm": algorithm, "params": PARAMS["w"]}
    run = simulated(workdir=tmp_path, rounds=3, **change)
    assert same(weights.load_params(tmp_path), run.params)
    (array,) = params_io.load(tmp_path / weights.FILE).values()
    assert same(array, run.params)


def test_integers_of_numpy_are_kept_as_integers(tmp_path):
    sizes = {"rounds": 3, "every": 3, "cohort": 4, "batch": 10}
    numbers = {name: np.int64(size) for name, size in sizes.items()}
    one = simulated(workdir=tmp_path, batches="whole", **numbers)
    again = simulated(workdir=tmp_path, batches="whole", **sizes)
    assert same(one.state, again.state) and one.history == again.history
