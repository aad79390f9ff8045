"""What protects is drawn from a secret of its own, kept as long as it is needed."""

import contextlib
import json
import os
import shutil
import signal
import stat

import jax
import numpy as np
import pytest
from fl_sketch.run.program import prepare

from fl_sketch.core import trees
from fl_sketch.core.keys import roots_of, round_keys, sketch_keys
from fl_sketch.run import Stopped, build, run
from fl_sketch.sweep import grid, programs
from fl_sketch.workdir import odometer, secrets
from tests.run.configs import config_with
from tests.run.test_run import numbers

pytestmark = pytest.mark.slow

PRIVATE = {
    "algorithm": "dp_normfedavg",
    "server__optimizer": "sgd",
    "server__rate": 1.0,
    "data__clients": 20,
    "cohort__sampling": "everyone",
    "cohort__size": 20,
    "privacy__target_epsilon": 2.0,
    "rounds": 6,
    "eval_every": 3,
    "checkpoint_every": 2,
}
SIMULATED = PRIVATE | {"privacy__randomness": "seed"}


def quiet(line):
    del line


def first_step(**changes):
    """Returns (the first released mean, z) of a run."""
    built = build(config_with(**PRIVATE | changes))
    state = built.start()
    before = trees.ravel(jax.tree.map(np.asarray, state.server.params))
    state, _ = built.compile().advance(state, 1)
    step = (before - trees.ravel(state.server.params)) / 0.1
    return np.asarray(step), built.guarantee.noise_multiplier


def test_two_runs_that_differ_in_rounds_do_not_share_their_noise():
    """Everyone takes part, so both sums are the same but for noise of z1 and z2."""
    one, z1 = first_step()
    other, z2 = first_step(rounds=50)
    alone = np.linalg.norm(one)  # what one release is off by, nearly all of it noise
    without = (z2 * one - z1 * other) / (z2 - z1)  # the sum, if noise was shared
    assert np.linalg.norm(without) > alone
    assert np.linalg.norm(one / z1 - other / z2) > 0.5 * alone / z1


def points_of(config):
    """Returns the program and the points of C = 1 and C = 2."""
    axes = grid.read_axes(config, ["privacy.threshold=1,2"])
    (group,) = grid.programs(config, axes)
    return prepare(config), group


def test_what_changes_messages_changes_their_noise_and_what_does_not_does_not():
    plain = config_with(algorithm="safl")
    own = secrets.simulated(plain).reveal()
    for key, value in (("dtype", "bfloat16"), ("model_devices", 2)):
        other = config_with(algorithm="safl", **{f"compute__{key}": value})
        assert secrets.simulated(other).reveal() != own
    for key, value in (("chunk", 4), ("devices", 1), ("clients", "host")):
        other = config_with(algorithm="safl", **{f"compute__{key}": value})
        assert secrets.simulated(other).reveal() == own


@pytest.mark.parametrize("randomness", ["system", "seed"])
def test_points_of_a_sweep_have_secrets_of_their_own(randomness):
    config = config_with(**PRIVATE, privacy__randomness=randomness)
    ((one, other),) = programs._secrets(*points_of(config))
    assert data(one) != data(other)


def test_points_of_a_sweep_do_not_share_their_noise():
    """With C = 1 and C = 2, normalised messages and noise double alike."""
    program, group = points_of(config_with(**PRIVATE))
    for how in programs.MAPS:
        points = programs.compile_points(program, group, how)
        before = np.asarray(jax.vmap(trees.ravel)(_points(points.states)))
        states, _ = points.advance(points.states, 0, 1)
        steps = before - np.asarray(jax.vmap(trees.ravel)(_points(states)))
        rest = np.linalg.norm(2 * steps[0] - steps[1])
        assert rest > 0.5 * np.linalg.norm(steps[1])


def _points(states):
    return jax.tree.map(
        lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), states.server.params
    )


def test_nothing_that_clients_are_told_leads_to_a_key_that_protects():
    roots = secrets.roots(0, secrets.fresh())
    told = {data(key) for key in sketch_keys(roots, 5)}
    assert told == {data(round_keys(roots, t, 0).shared) for t in range(5)}
    public = roots.public
    for number in range(3):
        keys, wrong = round_keys(roots, number, 2), round_keys(public, number, 2)
        assert data(keys.shared) == data(wrong.shared)
        for name in ("own", "server"):
            assert data(getattr(keys, name)) != data(getattr(wrong, name))
            assert "cc12" in str(getattr(keys, name).dtype)


def data(key):
    return np.asarray(jax.random.key_data(key)).tobytes()


def test_runs_that_protect_nobody_have_one_root_and_no_secret(tmp_path):
    built = build(config_with(rounds=2))
    assert built.secret is None and not built.private
    run(config_with(rounds=2), tmp_path, say=quiet)
    names = {path.name for path in tmp_path.iterdir()}
    assert not names & {secrets.FILE, odometer.FILE}
    one = jax.random.key(3)
    assert roots_of(one) == (one, one)


PLANTED = secrets.Secret(bytes(32))


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A run whose folder held a secret when it began, and what it came to."""
    folder = tmp_path_factory.mktemp("asked")
    secrets.keep(folder, PLANTED)
    return folder, run(config_with(**PRIVATE), folder, tensorboard=True, say=quiet)


def test_rows_of_a_private_run_may_go_to_tensorboard_too(asked):
    (events,) = (asked[0] / "tensorboard").iterdir()
    assert events.stat().st_size > 500


def test_the_system_is_asked_anew_for_every_run(tmp_path, asked):
    folder, one = asked
    other = run(config_with(**PRIVATE), tmp_path, say=quiet)
    assert one["epsilon"] == other["epsilon"]
    assert one["test_loss"] != other["test_loss"]
    assert numbers(folder)[1] != numbers(tmp_path)[1]


def test_a_simulation_is_the_same_to_the_bit_and_says_so(tmp_path):
    said = []
    for name in "ab":
        config = config_with(**SIMULATED)
        summary = run(config, tmp_path / name, say=said.append)
    assert numbers(tmp_path / "a") == numbers(tmp_path / "b")
    assert summary["randomness"] == "simulated"
    assert any("SIMULATED" in line for line in said)
    assert any("(simulated)" in line for line in said)
    rows, _ = numbers(tmp_path / "a")
    assert {row["randomness"] for row in rows} == {"simulated"}
    assert not (tmp_path / "a" / secrets.FILE).exists()


def stop_after(number, monkeypatch):
    """Makes the next run end by SIGTERM in the call that reaches a round."""

    @contextlib.contextmanager
    def bar(rounds, done, hidden):
        del rounds, done, hidden

        def move(now, loss):
            del loss
            if now >= number:
                os.kill(os.getpid(), signal.SIGTERM)

        yield move

    monkeypatch.setattr(run.__globals__["display"], "bar", bar)


def everything(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


OWN = secrets.Secret(bytes(range(1, 33)))
WATCHED = PRIVATE | {
    "cohort__sampling": "poisson",
    "cohort__size": 5,
    "client__batch": 4,
    "privacy__bound": "clip",
    "algorithm": "safl",
    "privacy__watch": True,
    "privacy__watch_noise": 8.0,
}


def stopped_in(folder, config):
    """Leaves a run with `OWN` that was stopped in the call that reaches round 3."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(secrets, "fresh", lambda: OWN)
        stop_after(3, patched)
        with pytest.raises(Stopped):
            run(config, folder, say=quiet)


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """The folder of a run that was stopped; of which tests take copies."""
    folder = tmp_path_factory.mktemp("left")
    stopped_in(folder, config_with(**PRIVATE))
    return folder


def test_a_run_that_was_stopped_goes_on_to_the_bit_and_forgets_its_secret(
    tmp_path, monkeypatch
):
    config, own = config_with(**WATCHED), OWN
    folder = tmp_path / "stopped"
    stopped_in(folder, config)
    monkeypatch.setattr(secrets, "fresh", lambda: own)
    run(config, tmp_path / "whole", say=quiet)
    kept = folder / secrets.FILE
    assert kept.read_bytes() == own.reveal()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    # Another process would make another secret; the one in the folder is used.
    monkeypatch.setattr(secrets, "fresh", lambda: secrets.Secret(bytes(32)))
    run(config, folder, say=quiet)
    assert numbers(folder) == numbers(tmp_path / "whole")
    for place in (folder, tmp_path / "whole"):
        assert not (place / secrets.FILE).exists()
        left = everything(place)
        assert own.reveal() not in left and own.reveal().hex().encode() not in left


def test_a_run_whose_secret_is_gone_is_not_played_again(tmp_path, left):
    folder = shutil.copytree(left, tmp_path / "run")
    (folder / secrets.FILE).unlink()
    with pytest.raises(ValueError, match="secret of the run .* gone, as after the end"):
        run(config_with(**PRIVATE), folder, say=quiet)


def test_a_run_that_was_counted_goes_on_as_it_was_counted(tmp_path, left):
    """Also where nobody knows its config any more."""
    folder = shutil.copytree(left, tmp_path / "run")
    (folder / "config.json").unlink()
    other = config_with(**PRIVATE | {"cohort__sampling": "poisson", "cohort__size": 5})
    with pytest.raises(ValueError, match="of this run, got one of another config"):
        run(other, folder, say=quiet)


def test_a_damaged_secret_is_refused_and_shown_nowhere(tmp_path):
    path = tmp_path / secrets.FILE
    path.write_bytes(b"short")
    path.chmod(0o644)
    with pytest.raises(ValueError, match="owner alone can read, got -rw-r--r--"):
        secrets.kept(tmp_path)
    path.chmod(0o600)
    with pytest.raises(ValueError, match="32 bytes, got 5"):
        secrets.kept(tmp_path)
    own = secrets.fresh()
    assert own.reveal().hex() not in f"{own} {own!r} {[own]}"
    built = build(config_with(**PRIVATE))
    assert built.secret.reveal().hex() not in repr(built)


def test_a_secret_is_not_written_through_a_link(tmp_path):
    target = tmp_path / "target"
    (tmp_path / secrets.PARTIAL).symlink_to(target)
    secrets.keep(tmp_path, secrets.fresh())
    assert not target.exists() and (tmp_path / secrets.FILE).stat().st_size == 32


def test_a_secret_that_no_run_has_used_is_not_taken_over(asked):
    folder, _ = asked
    keyed = build(config_with(**PRIVATE)).keyed(PLANTED)
    params = keyed.compile().advance(keyed.start(), 6)[0].server.params
    with np.load(folder / "checkpoints" / "round_00000006.npz") as saved:
        names = [name for name in saved if name.startswith("state/server/params/")]
        ends = np.concatenate([saved[name].ravel() for name in sorted(names)])
    assert len(ends) == trees.size(params)
    assert not np.array_equal(np.sort(ends), np.sort(trees.ravel(params)))


def test_the_odometer_counts_before_rounds_are_played_and_never_back(
    tmp_path, monkeypatch
):
    config = config_with(**PRIVATE | {"checkpoint_every": 6})
    counted = []

    class Enough(Exception):
        pass

    def until(last):
        def bar(*arguments, **options):
            del arguments, options

            @contextlib.contextmanager
            def shown():
                def move(done, loss):
                    del loss
                    (entry,) = odometer.read(tmp_path)
                    counted.append((done, entry.plan.steps))
                    if done >= last:  # killed: nothing is saved
                        raise Enough

                yield move

            return shown()

        return bar

    for last in (5, 2):
        with monkeypatch.context() as patched, pytest.raises(Enough):
            patched.setattr(run.__globals__["display"], "bar", until(last))
            run(config, tmp_path, say=quiet)
    assert all(steps >= done for done, steps in counted)
    assert [steps for _, steps in counted][-1] >= 5


def test_streamed_rounds_are_those_of_the_same_secret():
    own, states = secrets.Secret(bytes(range(32))), []
    for form in ("resident", "streamed"):
        built = build(config_with(**WATCHED, compute__data=form)).keyed(own)
        states.append(built.compile().advance(built.start(), 3)[0])
    one, other = (np.asarray(trees.ravel(s.server.params)) for s in states)
    np.testing.assert_array_equal(one, other)


def test_the_odometer_is_written_before_the_first_round(tmp_path, monkeypatch):
    class Enough(Exception):
        pass

    def none(*arguments, **options):
        del arguments, options
        raise Enough

    monkeypatch.setitem(run.__globals__, "train", none)
    with pytest.raises(Enough):
        run(config_with(**PRIVATE), tmp_path, say=quiet)
    (entry,) = json.loads((tmp_path / odometer.FILE).read_text())
    assert entry["plan"]["steps"] == 0 and entry["noise_multiplier"] > 0


def test_a_simulated_secret_follows_from_what_decides_the_run():
    def made(**more):
        return secrets.simulated(config_with(**SIMULATED | more)).reveal()

    assert made() == made(eval_every=6, compute__devices=1)
    assert len({made(), made(seed=1), made(rounds=7), made(client__rate=0.2)}) == 4


def test_a_count_that_is_gone_does_not_begin_anew(tmp_path, left):
    folder = shutil.copytree(left, tmp_path / "run")
    (folder / "odometer.json").unlink()
    shutil.rmtree(folder / "checkpoints")
    (folder / "metrics.csv").write_text("round\n2\n")
    before = (folder / secrets.FILE).read_bytes()
    with pytest.raises(ValueError, match="odometer.json .* counts what its rows gave"):
        run(config_with(**PRIVATE), folder, say=quiet)
    assert (folder / secrets.FILE).read_bytes() == before
