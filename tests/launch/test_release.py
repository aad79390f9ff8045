"""python -m launch.release: four files of a run that may be published, or one line."""

import json
import shutil

import numpy as np
import pytest

from configs import private_safl
from fl_sketch.run import prepare, task
from fl_sketch.workdir import odometer, origin, release, secrets, weights
from tests.launching import launch

pytestmark = pytest.mark.slow

FILES = ["MODEL.md", "params.json", "params.safetensors", "privacy.json"]
PRIVATE = (
    "--config=configs/private_safl.py",
    "--config.rounds=4",
    "--config.eval_every=2",
    "--config.checkpoint_every=2",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = launch("launch.train", f"--workdir={folder}", *PRIVATE)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def finished(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def refused(workdir, out, *words):
    done = launch("launch.release", f"--workdir={workdir}", f"--out={out}", *words)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("form", release.FORMS)
def test_a_run_becomes_four_files_and_nothing_is_compiled(whole, tmp_path, form):
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    out = tmp_path / "new" / "out"
    words = (f"--workdir={whole}", f"--out={out}", f"--format={form}")
    done = launch("launch.release", *words, JAX_LOG_COMPILES="1")
    assert done.returncode == 0 and not done.stderr, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith(f"wrote params.{form}, params.json, privacy.json and MODEL")
    assert "650 parameters" in first
    assert second.startswith("privacy spent per client: epsilon = 8 at delta = 1e-05")
    names = sorted([*FILES[:2], f"params.{form}", FILES[3]])
    assert sorted(path.name for path in out.iterdir()) == names
    now = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    assert now == before
    again = refused(whole, out, f"--format={form}")
    assert (
        again == f"error: Expected out to be a new or an empty folder, got out={out}.\n"
    )


def test_equal_runs_make_equal_files(whole, tmp_path):
    for out in "first", "second":
        release.release(whole, tmp_path / out)
    for name in FILES:
        contents = [(tmp_path / out / name).read_bytes() for out in ("first", "second")]
        assert contents[0] == contents[1]


def test_a_run_that_is_bounded_and_has_no_noise_says_so():
    """Which is refused below, as other runs without noise are in test_train.py."""
    config = private_safl.get_config()
    config.privacy.target_epsilon = 0.0
    assert task.facts_of(prepare(config))["noise_multiplier"] == 0.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format=pickle",), "<safetensors|npz>"),
        (("--config=x",), "config"),
        (("more",), "Expected flags only"),
    ],
)
def test_wrong_flags_are_refused(whole, tmp_path, words, said):
    assert said in refused(whole, tmp_path / "out", *words)
    assert said not in refused(tmp_path / "none", tmp_path / "out")


def test_a_folder_with_anything_in_it_stays_as_it_is(whole, tmp_path, monkeypatch):
    (tmp_path / "there").write_text("mine")
    for out in (tmp_path, tmp_path / "there", ""):
        with pytest.raises(ValueError, match="Expected out"):
            release.release(whole, out)
    with pytest.raises(ValueError, match="format='pickle'"):
        release.release(whole, tmp_path / "out", "pickle")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    for name, out in {"empty": tmp_path / "empty", "here": "."}.items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / "here" if name == "here" else tmp_path)
        release.release(whole, out)
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == FILES


def newest(folder):
    return max((folder / "checkpoints").iterdir())


def edited(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def summing_up(**changes):
    return lambda run: edited(run / "summary.json", **changes)


def holding(name, text):
    return lambda run: (run / name).write_text(text)


def without(name):
    return lambda run: (run / name).unlink()


def counted_as_simulated(run):
    own = odometer.read(run)["run"]
    odometer.note(run, {"run": own._replace(randomness="simulated")})


def with_a_bit_flipped(run):
    path = newest(run)
    with np.load(path) as arrays:
        wanted = arrays[weights.PARAMS + "dense/kernel"].tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(wanted) + 100] ^= 1
    path.write_bytes(content)


def cut(run):
    newest(run).write_bytes(newest(run).read_bytes()[:1000])


def of_another_round(run):
    path = newest(run)
    with np.load(path) as arrays:
        saved = dict(arrays)
    np.savez(path, **saved | {release.ROUND: np.int32(2)})


SPOILED = [
    (without("summary.json"), "a finished run, got workdir="),
    (without("summary.json"), "which has not finished"),
    (holding("summary.json", "{"), "summary.json to be unchanged"),
    (holding("summary.json", "[1]"), "unchanged, got TypeError"),
    (holding("summary.json", '{"noise_multiplier": 1}'), "without randomness"),
    (without("config.json"), "to be the folder of a run"),
    (holding(origin.SIDECAR, "{"), "params.json to be unchanged"),
    (holding(origin.SIDECAR, "{}"), "without "),
    (counted_as_simulated, "counts, got randomness='system'"),
    (summing_up(randomness="simulated"), "randomness=system to publish"),
    (
        summing_up(randomness="simulated"),
        "a simulation: its noise follows from config.seed, so that it is not private",
    ),
    (summing_up(noise_multiplier=9.0), "got noise_multiplier=9.0"),
    (summing_up(noise_multiplier=0.0), "a private run, got noise_multiplier=0.0"),
    (summing_up(epsilon=float("inf")), "a finite epsilon"),
    (summing_up(epsilon=7.9), "Expected epsilon >= 8 in"),
    (summing_up(delta=1e-3), "got delta=0.001"),
    (summing_up(rounds=2), "got rounds=2"),
    (summing_up(d=651), "Expected 651 parameters"),
    (holding("sweep.csv", ""), "got a sweep's"),
    (holding("standings.md", ""), "got a comparison's"),
    (holding(secrets.FILE, "x" * 32), "with the secret of its noise (secret)"),
    (holding(secrets.PARTIAL, ""), "with the secret of its noise (.secret."),
    (without(odometer.FILE), "odometer.json to count this run once"),
    (holding(odometer.FILE, "{"), "odometer.json to be an unchanged"),
    (lambda run: newest(run).unlink(), "the newest checkpoint, got round 2"),
    (lambda run: shutil.rmtree(run / "checkpoints"), "checkpoint, got none"),
    (cut, "round_00000004.npz to be an unchanged checkpoint"),
    (with_a_bit_flipped, "Bad CRC-32"),
    (of_another_round, "after round 4 in"),
]


@pytest.mark.parametrize(("spoil", "words"), SPOILED, ids=[said for _, said in SPOILED])
def test_what_may_not_be_published_is_refused_in_one_line(
    finished, tmp_path, spoil, words
):
    spoil(finished)
    with pytest.raises(ValueError) as raised:
        release.release(finished, tmp_path / "out")
    assert words in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_what_else_was_made_of_the_data_is_said(finished, tmp_path):
    own = odometer.read(finished)["run"]
    odometer.note(finished, {"free": own._replace(public=True)})
    release.release(finished, tmp_path / "first")
    assert "all_runs" not in (tmp_path / "first/privacy.json").read_text()
    odometer.note(finished, {"before": own})
    release.release(finished, tmp_path / "second")
    both = json.loads((tmp_path / "second/privacy.json").read_text())["all_runs"]
    total = odometer.total({"run": own, "before": own})
    assert both == {"runs": 2, "epsilon": total.epsilon, "delta": 1e-5}
    assert total.epsilon > 10
    page = (tmp_path / "second/MODEL.md").read_text()
    assert "All 2 counted runs together spent" in page
    odometer.note(finished, {"toy": own._replace(randomness="simulated")})
    with pytest.raises(ValueError, match="Expected no simulated run"):
        release.release(finished, tmp_path / "third")


def test_public_data_are_said_to_be(finished, tmp_path):
    own = odometer.read(finished)["run"]
    odometer.note(finished, {"run": own._replace(public=True)})
    release.release(finished, tmp_path / "out")
    page = (tmp_path / "out/MODEL.md").read_text()
    assert "calls these data public" in page
