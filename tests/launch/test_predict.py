"""launch.predict and launch.generate print what a folder's model says, or one line."""

import os

import numpy as np
import pytest

from fl_sketch.data import datasets
from fl_sketch.run import generate, load_trained, predict, run
from fl_sketch.workdir import release
from tests.data import fake_raw
from tests.launching import launch
from tests.run.configs import NOISY, config_with, quiet
from tests.run.test_texts import CHARACTERS, WORDS

pytestmark = pytest.mark.slow

LENGTHS = {"rounds": 2, "eval_every": 2, "compute__devices": 1}
PRIVATE = NOISY | {
    "privacy__noise_multiplier": 2.0,
    "privacy__randomness": "system",
    "cohort__size": 10,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders: of a language model, of a classifier of texts, of a release."""
    folder, data = (tmp_path_factory.mktemp(name) for name in ("runs", "raw"))
    fake_raw.write(data)
    for name, keys in {"bard": CHARACTERS, "words": WORDS}.items():
        config = config_with(**LENGTHS | keys)
        run(config, folder / name, str(data), say=quiet)
    run(config_with(**LENGTHS | PRIVATE), folder / "digits", say=quiet)
    release.release(folder / "digits", folder / "released")
    return folder


def printed(*words):
    done = launch(*words)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_a_text_has_its_classes_by_name_the_most_probable_first(trained, tmp_path):
    model, text = load_trained(trained / "words"), "sentence 3 of train"
    chances = predict(model, [text])[0]
    names = ("negative", "positive")
    first = int(chances.argmax())
    said = f"1  {names[first]} {chances[first]:.4f}"
    workdir = f"--workdir={trained / 'words'}"
    found = printed("launch.predict", workdir, f"--text={text}", "--top=1")
    assert found == said + "\n"
    (tmp_path / "lines.txt").write_text(f"a film\n{text}\n")
    found = printed("launch.predict", workdir, f"--file={tmp_path / 'lines.txt'}")
    texts = "--text=a film", f"--text={text}"
    assert printed("launch.predict", workdir, *texts) == found
    assert len(found.splitlines()) == 2
    assert found.splitlines()[1].startswith(said.replace("1", "2", 1))
    assert all(name in line for line in found.splitlines() for name in names)


def test_images_of_a_release_have_their_classes_by_number(trained, tmp_path):
    images = datasets.load("digits").test.inputs[:4]
    np.savez(tmp_path / "images.npz", inputs=images, more=np.zeros(2))
    place = trained / "released"
    file = f"--file={tmp_path / 'images.npz'}"
    found = printed("launch.predict", f"--release={place}", file, "--top=0")
    chances = predict(load_trained(place), images)
    for number, (line, row) in enumerate(
        zip(found.splitlines(), chances, strict=True), start=1
    ):
        words = line.split()
        assert int(words[0]) == number and len(words) == 21
        classes = [int(word) for word in words[1::2]]
        assert sorted(classes) == list(range(10))
        np.testing.assert_allclose([*map(float, words[2::2])], row[classes], atol=1e-4)
        assert (np.diff(row[classes]) <= 0).all()


def test_a_language_model_writes(trained):
    workdir = f"--workdir={trained / 'bard'}"
    found = printed("launch.generate", workdir, "--prompt=It has", "--tokens=30")
    model = load_trained(trained / "bard")
    assert found == generate(model, "It has", tokens=30) + "\n"
    words = ("--prompt=It has", "--tokens=30", "--temperature=0.2", "--seed=7")
    other = printed("launch.generate", workdir, *words)
    expected = generate(model, "It has", tokens=30, temperature=0.2, seed=7)
    assert other == expected + "\n" != found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "--text=a"], "--workdir or --release, got neither"),
        (["predict", "--workdir=A", "--release=A", "--text=a"], "and --release"),
        (["predict", "--workdir=words"], "--text or --file, got neither"),
        (["predict", "--workdir=words", "--text=a", "--file=b"], "text and file"),
        (["predict", "--workdir=words", "--file=none.txt"], "file=none.txt"),
        (["predict", "--workdir=digits", "--text=a"], "got texts"),
        (["predict", "--workdir=digits", "--file=x.jpg"], "file=x.jpg"),
        (["predict", "--workdir=bard", "--text=a"], "generate is for it"),
        (["predict", "--workdir=nowhere", "--text=a"], "a finished run"),
        (["generate", "--workdir=words"], "a language model"),
        (["generate", "--workdir=bard", "--prompt=#"], "['#']"),
        (["generate", "--workdir=bard", "--tokens=0"], "tokens=0"),
        (["generate", "--workdir=bard", "--temperature=-1"], "temperature=-1.0"),
    ],
    ids=range(13),
)
def test_what_cannot_be_asked_is_one_line(trained, words, said):
    name, *flags = words
    placed = [word.replace("dir=", f"dir={trained}{os.sep}") for word in flags]
    done = launch(f"launch.{name}", *placed)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert said in done.stderr
