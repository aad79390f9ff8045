"""Every command starts once and does its work, or says in one line what is wrong."""

import json
import pathlib

import numpy as np
import pytest

from fl_sketch.core import files
from fl_sketch.data import datasets
from fl_sketch.run import generate, load_trained, predict, run
from fl_sketch.sweep import comparison
from launch import __main__ as index
from launch import clone, config_file
from tests.data import fake_raw
from tests.launching import ROOT, launch
from tests.refusals import refused
from tests.run.configs import config_with, quiet
from tests.run.test_texts import CHARACTERS

slow = pytest.mark.slow
SHORT = ("--config.rounds=4", "--config.eval_every=2", "--config.model.name=logistic")
CONFIG = "--config=configs/default.py"


def printed(*words):
    """Returns the lines that a command prints, which must end well."""
    done = launch(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of a run, by its command."""
    folder = tmp_path_factory.mktemp("run")
    keep = "--config.checkpoint_keep=0"
    lines = printed("launch.train", CONFIG, f"--workdir={folder}", *SHORT, keep)
    assert [line.split()[0] for line in lines if line[:8].strip().isdigit()]
    assert (folder / "summary.json").exists()
    return folder


@slow
def test_the_index_has_every_command_once():
    lines = printed("launch")
    listed = [line.split()[2] for line in lines if "python -m" in line]
    found = pathlib.Path(index.__file__).parent.glob("*.py")
    mains = {f"launch.{f.stem}" for f in found if "command.run(" in f.read_text()}
    assert sorted(listed) == sorted(mains)


@slow
def test_a_plan_and_a_calibration_are_printed():
    (line, *_) = printed("launch.plan", CONFIG)
    assert line.startswith("safl: mlp of 55210 parameters on digits")
    flags = ("--epsilon=2", "--clients=1000", "--cohort=50", "--rounds=200")
    head, *rows = printed("launch.calibrate", *flags)
    assert "epsilon" in head and rows


@slow
def test_a_sweep_leaves_its_table_and_its_picture(tmp_path):
    over = "--over=server.rate=0.0001,0.01", "--over=seed=0,1"
    printed("launch.sweep", CONFIG, f"--workdir={tmp_path}", *SHORT, *over)
    rows = files.read_rows(tmp_path / "sweep.csv")
    assert [row["point"] + row["round"] for row in rows] == [
        point + number for number in "24" for point in "0123"
    ]
    summary = json.loads((tmp_path / "sweep.json").read_text())
    assert summary["over"] == {"server.rate": [0.0001, 0.01], "seed": [0, 1]}


METHOD = """
import optax
from configs import default
from fl_sketch import channels
from fl_sketch.algorithms import catalog
from fl_sketch.core.protocols import Algorithm
from fl_sketch.sketch import compressors
from fl_sketch.sweep.comparison import Comparison, Method
from fl_sketch.transforms import local


def heavy_server(loss, *, client_rate, server, k=20):
    heavy = channels.error_feedback(channels.compressed(compressors.top_k(k)))
    return Algorithm(local.sgd_steps(loss, optax.sgd(client_rate)), heavy, server)


catalog.register(catalog.Method("heavy_server", heavy_server))


def get_comparison():
    two = {"mine": Method({"algorithm": "heavy_server"}), "SAFL": Method({})}
    return Comparison(default.get_config(), two, seeds=(0, 1))
"""


@slow
def test_a_comparison_has_a_method_that_its_file_registers(tmp_path):
    path, folder = tmp_path / "own.py", tmp_path / "out"
    path.write_text(METHOD)
    settings = ("--set=rounds=2", "--set=model.name=logistic")
    printed("launch.compare", f"--config={path}", f"--workdir={folder}", *settings)
    rows = {row["method"]: row for row in files.read_rows(folder / "standings.csv")}
    assert {*rows} == {"mine", "SAFL"} and (folder / "comparison.png").exists()


@slow
def test_a_run_is_drawn_and_has_spectra(place, tmp_path):
    flags = (f"--workdir={place}", f"--out={tmp_path}/p.svg", "--x=up")
    printed("launch.plot", *flags)
    assert place.name in (tmp_path / "p.svg").read_text()
    few = ("--examples=100", "--probes=2", "--steps=5")
    assert len(printed("launch.spectrum", f"--workdir={place}", *few)) >= 3


@slow
def test_a_model_predicts_the_images_of_a_file(place, tmp_path):
    images = datasets.load("digits").test.inputs[:4]
    np.savez(tmp_path / "images.npz", inputs=images, more=np.zeros(2))
    file = f"--file={tmp_path / 'images.npz'}"
    lines = printed("launch.predict", f"--workdir={place}", file, "--top=0")
    for line, row in zip(lines, predict(load_trained(place), images), strict=True):
        words = line.split()
        classes = [int(word) for word in words[1::2]]
        assert sorted(classes) == list(range(10))
        np.testing.assert_allclose([*map(float, words[2::2])], row[classes], atol=1e-4)
        assert (np.diff(row[classes]) <= 0).all()


@slow
def test_a_language_model_writes(tmp_path):
    fake_raw.write(tmp_path / "raw")
    lengths = {"rounds": 2, "eval_every": 2, "compute__devices": 1}
    bard = tmp_path / "bard"
    run(config_with(**lengths | CHARACTERS), bard, str(tmp_path / "raw"), say=quiet)
    words = ("--prompt=It has", "--tokens=30", "--temperature=0.2", "--seed=7")
    found = "\n".join(printed("launch.generate", f"--workdir={bard}", *words))
    options = {"tokens": 30, "temperature": 0.2, "seed": 7}
    assert found == generate(load_trained(bard), "It has", **options)


WRONG = [
    (("launch.quickstart", "--config.round=3"), "rounds"),
    (("launch.train", CONFIG, "--workdir=IN/new", "--config.client.rate=-1"), "rate"),
    (("launch.train", CONFIG, "--workdir=IN/new", "--config.rounds=ten"), "rounds"),
    (("launch.train", "--config=IN/bad.py", "--workdir=IN/new"), "bad.py, line 2"),
    (("launch.plan", CONFIG, "--config.rounds=0"), "rounds"),
    (("launch.sweep", CONFIG, "--workdir=IN/new", "--over=client.rate=-1"), "rate"),
    (("launch.compare", "--config=README.md", "--workdir=IN/new"), "README.md"),
    (("launch.attack", CONFIG, "--workdir=IN/new", "--smoothness=-1"), "smoothness"),
    (("launch.plot", "--workdir=IN", "--out=IN/p.png"), "metrics.csv"),
    (("launch.spectrum", "--workdir=IN/new"), "workdir"),
    (("launch.calibrate", "--epsilon=0", "--clients=9", "--cohort=5", "--rounds=1"),
     "epsilon"),
    (("launch.predict", "--text=a"), "workdir"),
    (("launch.generate", "--workdir=IN/new"), "run"),
]  # fmt: skip


@slow
@pytest.mark.parametrize(("words", "name"), WRONG, ids=range(len(WRONG)))
def test_it_is_one_line_and_exit_code_2(tmp_path, words, name):
    (tmp_path / "bad.py").write_text("def get_config():\n    return 1 / 0\n")
    done = launch(*(word.replace("IN", str(tmp_path)) for word in words))
    assert done.returncode == 2, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "error" in line.lower())
    assert line.startswith("error: ") and name in line
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new/config.json").exists()


@slow
def test_a_platform_that_is_not_here_is_one_line(tmp_path):
    flags = (CONFIG, f"--workdir={tmp_path / 'new'}")
    done = launch("launch.train", *flags, JAX_PLATFORMS="cuda")
    assert done.returncode == 2 and "JAX_PLATFORMS=cuda" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ("def get_configs():\n    pass\n", ""),
        ("def get_config(:\n", ""),
        ("\0", ""),
        ("def get_config():\n    pass\n", ":abc"),
    ],
    ids=range(4),
)
def test_what_is_no_config_file_is_refused(tmp_path, text, argument):
    path = tmp_path / "own.py"
    path.write_text(text)
    with refused("own.py"):
        config_file.require([f"--config={path}{argument}"])


@pytest.mark.parametrize(
    "config",
    [
        "configs/none.py",
        "README.md",
        "configs/default.py",
        "configs/compare_private_safl.py:iid",
        "configs/compare_fedsketch.py:idd",
    ],
)
def test_what_is_no_comparison_is_refused(config):
    with refused(error=(ValueError, FileNotFoundError)):
        comparison.load(config)


@pytest.mark.parametrize("form", ["--config={}", "--config {}"])
def test_a_config_of_the_clone_is_found_from_any_folder(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    argv = ["train", *form.format("configs/compare_das.py:few").split(), "--x=configs"]
    *_, found, last = clone.with_configs(argv)
    assert found.endswith(str(ROOT / "configs/compare_das.py:few")) and last == argv[-1]
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/compare_das.py").touch()  # one's own comes first
    own = form.replace(" ", "=").format("configs/compare_das.py:few")
    assert clone.with_configs(argv) == ["train", own, "--x=configs"]
