"""What protects is drawn from a secret of its own, kept as long as it is needed."""

import os
import shutil
import stat

import jax
import numpy as np
import pytest

from fl_sketch.core import chacha, secret, trees
from fl_sketch.core.keys import roots_of, round_keys, sketch_keys
from fl_sketch.core.mappings import flat
from fl_sketch.data import examples
from fl_sketch.engine.loop import initial
from fl_sketch.engine.rounds import compile_rounds
from fl_sketch.run import prepare, run, secret_roots
from fl_sketch.sweep import grid, points
from fl_sketch.sweep.dry_run import program_of
from fl_sketch.sweep.sweep import run_program
from fl_sketch.workdir import odometer, secrets
from fl_sketch.workdir.folder import TIMES
from tests.run.configs import (
    Killed,
    begun,
    config_with,
    killed_at,
    moving,
    quiet,
    refused,
    table_in,
    untimed,
)

pytestmark = pytest.mark.slow

PRIVATE = {
    "algorithm": "dp_normfedavg",
    "server__optimizer": "sgd",
    "server__rate": 1.0,
    "data__clients": 20,
    "data__classes": 10,
    "cohort__sampling": "everyone",
    "cohort__size": 20,
    "privacy__target_epsilon": 2.0,
    "rounds": 6,
    "eval_every": 2,
    "checkpoint_every": 2,
}
# Calls of fsync, by which a run is killed before it has done more.
KILLED_AT = (0, 3, 7, 5, 9, 6, 12, 8, 10, 4)
OWN, PLANTED = secret.Secret(bytes(range(1, 33))), secret.Secret(bytes(32))


def first_step(**changes):
    """Returns (the first released mean, z) of a run."""
    setup = prepare(config_with(**PRIVATE | changes))
    experiment, roots = setup.experiment, setup.roots()
    state = initial(experiment, roots).state
    before = trees.ravel(jax.tree.map(np.asarray, state.server.params))
    state, _ = compile_rounds(experiment, state, roots)(state, 0, 1)
    step = (before - trees.ravel(state.server.params)) / 0.1
    return np.asarray(step), experiment.guarantee.noise_multiplier


def test_two_runs_that_differ_in_rounds_do_not_share_their_noise():
    """Everyone takes part, so both sums are the same but for noise of z1 and z2."""
    one, z1 = first_step()
    two, z2 = first_step(rounds=50)
    alone = np.linalg.norm(one)  # what one release is off by, nearly all of it noise
    without = (z2 * one - z1 * two) / (z2 - z1)  # the sum, if noise was shared
    assert np.linalg.norm(without) > alone
    assert np.linalg.norm(one / z1 - two / z2) > 0.5 * alone / z1


def test_a_simulated_secret_follows_from_what_decides_the_run():
    def made(**more):
        return secrets.simulated(flat(config_with(**PRIVATE | more))).reveal()

    alike = ({"eval_every": 6}, {"compute__devices": 1}, {"compute__chunk": 4},
             {"data__partition_seed": -1})  # fmt: skip
    unlike = ({"seed": 1}, {"rounds": 7}, {"client__rate": 0.2},
              {"compute__dtype": "bfloat16"}, {"compute__model_devices": 2},
              {"data__partition_seed": 3})  # fmt: skip
    assert {made(**more) for more in alike} == {made()}
    assert len({made(), *(made(**more) for more in unlike)}) == 1 + len(unlike)


def data(key):
    return np.asarray(jax.random.key_data(key)).tobytes()


@pytest.mark.parametrize("how", points.MAPS)
def test_points_of_a_sweep_do_not_share_their_noise(how):
    """With C = 1 and C = 2, normalised messages and noise double alike."""
    config = config_with(**PRIVATE | {"rounds": 1})
    axes = grid.read_axes(config, ["privacy.threshold=1,2"])
    (group,) = grid.programs(config, axes)
    before = trees.ravel(jax.device_get(begun(config).server.params))
    steps = [
        before - trees.ravel(jax.device_get(one.params))
        for one in run_program(program_of(group, None), how)
    ]
    rest = np.linalg.norm(2 * steps[0] - steps[1])
    assert rest > 0.5 * np.linalg.norm(steps[1])


def test_nothing_that_clients_are_told_leads_to_a_key_that_protects():
    roots, one = secret_roots(0), jax.random.key(3)
    told = {data(key) for key in sketch_keys(roots, 5)}
    assert told == {data(round_keys(roots, t, 0).shared) for t in range(5)}
    assert roots_of(one) == (one, one)  # of a run that protects no one
    assert not chacha.is_secret(prepare(config_with(rounds=2)).roots())


def test_examples_of_private_runs_are_split_by_a_seed_of_their_own():
    def partition(changes, **more):
        setup = prepare(config_with(**changes | more))
        return setup.partition(setup.config.seed)[0].indices.tolist()

    public = {"data__clients": 20}
    assert partition(PRIVATE) == partition(PRIVATE, seed=1) == partition(public, seed=0)
    assert partition(PRIVATE, data__partition_seed=1) == partition(public, seed=1)
    assert partition(public, seed=1) != partition(public, seed=0)
    assert partition(public, seed=1, data__partition_seed=0) == partition(
        public, seed=0
    )


def ended(folder):
    """Returns both tables without times, and the model."""
    hidden = table_in(folder, "simulator.csv")
    hidden = [{k: v for k, v in row.items() if k not in TIMES} for row in hidden]
    return untimed(folder), hidden, (folder / "params.safetensors").read_bytes()


def everything(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_ten_kills_resume_to_the_byte_and_the_ledger_never_counts_less(tmp_path):
    """Each at another moment: before or after some file is renamed or flushed."""
    config, flush = config_with(**PRIVATE), os.fsync
    whole, folder = tmp_path / "whole", tmp_path / "run"
    folder.mkdir()
    secrets.keep(folder, PLANTED)  # which somebody had left, and is not used
    events, released = [], []

    def dying_at(last):
        count = iter(range(1000))

        def event(*arguments):
            if next(count) == last:
                raise Killed
            return flush(*arguments)

        return event

    def counting(*arguments):
        events.append(arguments)
        return flush(*arguments)

    def note(number):
        released.append(number)
        assert odometer.read(folder)["run"].plan.steps >= max(released)

    def fresh():  # another process makes another; the one in the folder is used
        begun = (folder / odometer.FILE).exists()
        return secret.Secret(os.urandom(32)) if begun else OWN

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(secret, "fresh", fresh)
        with patched.context() as patch:
            patch.setattr(os, "fsync", counting)
            run(config, whole, say=quiet)
        moving(patched, note)
        for last in KILLED_AT:
            with patched.context() as patch, pytest.raises(Killed):
                patch.setattr(os, "fsync", dying_at(last))
                run(config, folder, say=quiet)
            if (path := folder / secrets.FILE).exists():
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
        run(config, folder, say=quiet)
    assert len(events) > max(KILLED_AT) and max(released) == 6
    assert ended(folder) == ended(whole)
    for name in sorted(p.name for p in (whole / "checkpoints").iterdir()):
        assert arrays_in(folder / "checkpoints" / name) == arrays_in(
            whole / "checkpoints" / name
        )
    plain = examples.digests(prepare(config).splits).values()
    for place in (folder, whole):
        assert not (place / secrets.FILE).exists()
        remains = everything(place)
        for wanted in (OWN.reveal(), OWN.reveal().hex().encode()):
            assert wanted not in remains
        for digest in plain:  # of private data, by which guesses could be checked
            assert digest.encode() not in remains


def arrays_in(path):
    """Returns the arrays of a checkpoint, but for whose it is: keys of data differ."""
    with np.load(path) as arrays:
        return {n: arrays[n].tobytes() for n in arrays if n != "extra/identity"}


def test_a_run_whose_secret_or_count_is_damaged_or_gone_is_not_played_again(tmp_path):
    config, path = config_with(**PRIVATE), tmp_path / secrets.FILE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secret, "fresh", lambda: OWN)
        killed_at(2, config, tmp_path)
    raw = path.read_bytes()
    (own,) = odometer.read(tmp_path).values()

    def stays_out(*words):
        with refused(*words):
            run(config, tmp_path, say=quiet)

    for damaged in (bytes(len(raw)), bytes([raw[0] ^ 1, *raw[1:]])):
        path.write_bytes(damaged)
        stays_out(path)
    # The checkpoint knows it, too.
    check = secret.Secret(damaged[:32]).check
    odometer.write(tmp_path, {"run": own._replace(secret=check)})
    stays_out("round_0000000", "secret")
    odometer.write(tmp_path, {"run": own})
    path.unlink()
    stays_out("secret", tmp_path)
    secrets.keep(tmp_path, OWN)
    (tmp_path / odometer.FILE).unlink()
    shutil.rmtree(tmp_path / "checkpoints")
    stays_out(odometer.FILE, tmp_path)
    assert path.read_bytes() == OWN.reveal()


def test_a_secret_that_others_may_use_or_have_made_is_refused(tmp_path):
    path = tmp_path / secrets.FILE
    secrets.keep(tmp_path, OWN)
    assert secrets.kept(tmp_path).reveal() == OWN.reveal()
    for mode in (0o640, 0o604):
        path.chmod(mode)
        with refused(path, stat.filemode(stat.S_IFREG | mode)):
            secrets.kept(tmp_path)
    path.write_bytes(b"short")
    path.chmod(0o600)
    with refused(path, "32 bytes", "5"):
        secrets.kept(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with refused(path):
        secrets.kept(tmp_path)
    path.unlink()
    (tmp_path / secrets.PARTIAL).symlink_to(tmp_path / "target")
    secrets.keep(tmp_path, secret.fresh())
    assert not (tmp_path / "target").exists() and path.stat().st_size == 32


def test_a_secret_is_shown_nowhere():
    own = secret.fresh()
    assert own.reveal().hex() not in f"{own} {own!r} {[own]}"
    assert own.check not in own.reveal().hex() and own.check != secret.fresh().check
