"""A release has the model and its promise, and nothing of any client."""

import functools
import hashlib
import re
import shutil
from typing import NamedTuple

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from fl_sketch.config import parse
from fl_sketch.core import files
from fl_sketch.data import npz
from fl_sketch.data.examples import Examples
from fl_sketch.engine import recorder
from fl_sketch.models import params_io
from fl_sketch.run import load_params, run
from fl_sketch.workdir import (
    release,
    released_model,
    rows,
    secrets,
)
from fl_sketch.workdir.release import LAST_BITS, UNPROTECTED
from tests.run.configs import config_with, quiet, read_json, table_in

pytestmark = pytest.mark.slow

SECRET = hashlib.sha256(b"planted").digest()
CLIENTS = 40
CONFIG = {
    "compute__devices": 1,
    "data__name": "npz/planted",
    "data__classes": 10,
    "data__clients": CLIENTS,
    "cohort__sampling": "poisson",
    "cohort__size": 20,
    "rounds": 6,
    "eval_every": 3,
    "checkpoint_every": 2,  # in which some losses wait for their row
    "checkpoint_keep": 0,
    "server__optimizer": "sgd",
    "server__rate": 0.1,
    "privacy__randomness": "system",
    "privacy__bound": "clip",
    "privacy__target_epsilon": 8.0,
    "privacy__delta": 1e-3,
}
KEEPING = {  # algorithms with something of every client in the checkpoint
    "ef21": {"algorithm": "ef21", "compressor__compression": 2.0},
    "sketched_sgd": {"algorithm": "sketched_sgd", "sketch__rows": 3},
}


class Planted(NamedTuple):
    """A finished run, and what nobody may find in its release."""

    folder: object  # of the run
    before: object  # the folder as it was before the secret was forgotten
    data: object
    config: object
    patterns: dict[str, list[bytes]]


def examples(seed, count):
    """Returns examples whose floats occur nowhere else, of classes to be learnt."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, 10, count).astype(np.int32)
    middles = np.random.default_rng(0).normal(size=(10, 8, 8, 1))
    inputs = middles[targets] + rng.normal(size=(count, 8, 8, 1))
    return Examples(inputs.astype(np.float32), targets)


@pytest.fixture(scope="module")
def planted_in(tmp_path_factory):
    return functools.cache(lambda name: plant(tmp_path_factory.mktemp(name), name))


@pytest.fixture(params=KEEPING)
def planted(request, planted_in):
    return planted_in(request.param)


@pytest.fixture
def one(planted_in):
    return planted_in("ef21")


def plant(folder, name):
    data, own, before = folder / "data", folder / "run", folder / "before"
    data.mkdir()
    npz.save(data / "planted.npz", examples(1, 400), examples(2, 100))
    config, reports = config_with(**CONFIG | KEEPING[name]), []
    record, forget = recorder.record, secrets.forget

    def recorded(book, prices, number, report):
        reports.append(jax.tree.map(np.copy, report))
        return record(book, prices, number, report)

    def kept(run):
        shutil.copytree(run, before)
        forget(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "record", recorded)
        patch.setattr(secrets, "forget", kept)
        patch.setattr(secrets, "fresh", lambda: secrets.Secret(SECRET))
        run(config, own, str(data), say=quiet)
    return Planted(own, before, data, config, patterns(config, own, reports))


def patterns(config, folder, reports):
    """Returns what to look for, by what it says of clients."""
    train = examples(1, 400)
    shares = parse.partition_of(config.data, train.targets, 0)
    with np.load(newest(folder)) as arrays:
        saved = dict(arrays)
    names = ("up", "down", "last", "answered")
    books = (saved[f"extra/ledger/{name}"] for name in names)
    banks = [leaf for name, leaf in saved.items() if name.startswith("state/clients/")]
    losses = [report.diagnostics["loss"] for report in reports]
    table = [*table_in(folder), read_json(folder / "summary.json")]
    hidden = [x for row in table for name, x in row.items()
              if name.startswith(rows.MARK)]  # fmt: skip
    measured = [pattern for number in hidden for pattern in as_text(number)]
    return {
        "the secret": [SECRET, SECRET.hex().encode(), SECRET[:8], SECRET[-8:]],
        "the data of a client": pairs(train.inputs[shares.of(0)]),
        "losses and bytes": [*measured, *(loss.tobytes() for loss in losses)],
        "who took part": [
            *(book.tobytes() for book in books),
            *(report.clients.tobytes() for report in reports),
            *(report.answered.tobytes() for report in reports),
        ],
        "memories of clients": [pair for bank in banks for pair in pairs(bank)],
    }


def as_text(number):
    """Returns the forms of a number that is too long to be found by chance."""
    digits, value = str(number), float(number)
    if sum(map(str.isdigit, digits.rstrip("0."))) < 6:
        return []
    binary = [np.float32(value).tobytes(), np.float64(value).tobytes()]
    if digits.isdigit():
        binary = [np.int64(value).tobytes(), np.float64(value).tobytes()]
    return [digits[:8].encode(), *binary]


def pairs(array, most=300):
    """Returns the bytes of some pairs of neighbours, of which neither is zero."""
    numbers = np.asarray(array, np.float32).reshape(len(array), -1)
    both = np.stack([numbers[:, :-1], numbers[:, 1:]], -1).reshape(-1, 2)
    both = both[(both != 0).all(1)]
    return [pair.tobytes() for pair in both[:: 1 + len(both) // most]]


def newest(folder):
    return max((folder / "checkpoints").iterdir())


def found(wanted, folder):
    """Returns the patterns that occur in any file below a folder."""
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return [one for one in wanted if any(one in text for text in contents)]


@pytest.mark.parametrize("form", release.FORMS)
def test_nothing_of_any_client_is_in_a_release(planted, tmp_path, form):
    out = tmp_path / "out"
    release.release(planted.folder, out, form)
    names = sorted(["MODEL.md", f"params.{form}", "params.json", "privacy.json"])
    assert sorted(path.name for path in out.iterdir()) == names
    for said, wanted in planted.patterns.items():
        assert len(wanted) >= 4, said
        assert not found(wanted, out), said
    assert not found([str(planted.folder).encode(), b"tmp"], out)
    # What was not to be found would have been: it is where it comes from.
    wanted = planted.patterns
    assert SECRET in found(wanted["the secret"], planted.before)
    for where, said in (
        (planted.data, "the data of a client"),
        (planted.folder, "memories of clients"),
    ):
        assert set(found(wanted[said], where)) == set(wanted[said])
    measured = found(wanted["losses and bytes"], planted.folder)
    texts = [one for one in wanted["losses and bytes"] if re.fullmatch(rb"[\d.]+", one)]
    assert len(texts) > 4 and {*texts} <= {*measured}
    assert len({*measured} - {*texts}) > 2  # losses that wait for a row
    assert len(found(wanted["who took part"], planted.folder)) >= 4
    # And every single pattern, in a file of the release.
    name = out / f"params.{form}"
    name.write_bytes(name.read_bytes() + b"".join(sum(wanted.values(), [])))
    for said, every in wanted.items():
        assert found(every, out) == every, said


@pytest.mark.parametrize("form", release.FORMS)
def test_parameters_are_those_of_the_last_checkpoint_to_the_bit(one, tmp_path, form):
    out = tmp_path / "out"
    lines = release.release(one.folder, out, form)
    assert "650" in lines[0] and "epsilon = 8 " in lines[1]
    ours = params_io.load(out / f"params.{form}")
    theirs = flatten_dict(load_params(one.folder), sep="/")
    assert ours.keys() == theirs.keys()
    for name, leaf in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (leaf.dtype, leaf.shape)
        assert ours[name].tobytes() == leaf.tobytes()


def test_the_promise_stands_in_numbers_and_in_words(planted, tmp_path):
    release.release(planted.folder, tmp_path / "out")
    promise = read_json(tmp_path / "out/privacy.json")
    summary = read_json(planted.folder / "summary.json")
    expected = {
        "unit": "client",
        "relation": "add_remove",
        "sampling": "poisson",
        "sampling_rate": 0.5,
        "rounds": 6,
        "releases_a_round": summary["exchanges"],
        "noise_multiplier": summary["noise_multiplier"],
        "noise": "central",
        "bits": None,  # of floats
        "bound": "clip",
        "threshold": 1.0,
        "epsilon": summary["epsilon"],
        "delta": 1e-3,
        "accountant": "pld",
        "randomness": "system",
        "public_data": False,
        "sums": "one program",
        "noise_from": "a secret of the operating system",
    }
    assert promise.items() >= expected.items() and "all_runs" not in promise
    assert promise["not_protected"] == [*UNPROTECTED, LAST_BITS]
    now = promise["versions"]["of_the_release"]
    assert set(now) == {"fl_sketch", "jax", "numpy", "dp-accounting"}
    assert promise["versions"]["of_the_run"]["jax"] == summary["versions"]["jax"]
    page = (tmp_path / "out/MODEL.md").read_text()
    assert len(page.splitlines()) < 70
    for words in (
        "`logistic`", "`planted`", "float32", "650 parameters",
        "(8, 0.001)-differentially private per client", "at most e^8 (about 298",
        "plus 0.001", "had not taken part", "be trusted", *promise["not_protected"],
        "does not learn which clients took part in which round, or the noise",
        "- Unit: client, at delta = 0.001.", "- Sampling: poisson, rate 0.5.",
        "- Neighbours: with or without one client (add_remove).",
        "- Sums: simulated in one program, which saw every client's message.",
        "- Noise: central: ", "not the seed of the config",
    ):  # fmt: skip
        assert words in page, words
    assert "used for other runs" not in page
    (z,) = re.findall(r"at least ([\d.]+) times the bound", page)
    assert 0 <= promise["noise_multiplier"] - float(z) < 1e-3  # it never says more


def test_files_that_cannot_be_written_or_read_back_leave_none(
    one, tmp_path, monkeypatch
):
    def full(path, text):
        if path.name == "MODEL.md":
            raise OSError(28, "No space left on device")
        path.write_text(text)

    def forgetful(path, text):
        path.write_text(text[:-2])

    for number, broken in enumerate((full, forgetful)):
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_text", broken)
            with pytest.raises(OSError, match="No space|other bytes"):
                release.release(one.folder, tmp_path / str(number))
        assert not list(tmp_path.iterdir())


def test_examples_are_promised_what_was_counted_for_them(tmp_path):
    config = config_with(
        compute__devices=1,
        algorithm="private_sketching",
        data__clients=200,
        cohort__sampling="everyone",
        client__batch=2,
        client__batches="subsets",
        rounds=2,
        eval_every=2,
        privacy__randomness="system",
        privacy__unit="example",
        privacy__relation="replace_one",
        privacy__noise_multiplier=4.0,
    )
    run(config, tmp_path / "run", say=quiet)
    release.release(tmp_path / "run", tmp_path / "out")
    promise = read_json(tmp_path / "out/privacy.json")
    assert promise["sampling_rate"] == 2 / 7 and promise["releases_a_round"] == 5
    assert promise["noise"] == "local" and promise["bound"] == "clip"
    assert promise["not_protected"][-2:] == list(release.OF_EXAMPLES)
    page = (tmp_path / "out/MODEL.md").read_text()
    assert "- Sampling: fixed batches of a client's examples, rate 0.2857." in page
    assert "private per example. " in page and "counted 10 such sums" in page
    assert "if this example of a client had been any other" in page
    assert "Every example's gradient was bounded" in page and "no other party" in page
    assert "0 to 16, divided by 16" in page and "divided by 255" not in page


@pytest.mark.parametrize(
    ("dataset", "dtype", "words"),
    [
        ("mnist", "uint8", "from 0 to 255"),
        ("digits", "float32", "divided by 16"),
        ("npz/own", "float32", "as in the training data"),
    ],
)
def test_the_page_says_the_scale_of_the_inputs(dataset, dtype, words):
    about = {"model": "logistic", "size": "", "loss": "cross_entropy", "outputs": 2}
    about |= {"algorithm": "safl", "dataset": dataset, "inputs": {"dtype": dtype}}
    params = {"dense/bias": np.zeros(2), "dense/kernel": np.zeros((2, 4))}
    assert words in released_model.facts(about, params)["inputs"]


def test_the_page_says_what_the_model_foretells_and_was_given(tmp_path):
    known = tmp_path / "known.npz"
    np.savez(known, **{"dense/bias": np.zeros(1), "dense/kernel": np.zeros((1, 5))})
    x = np.random.default_rng(0).normal(size=(90, 5)).astype(np.float32)
    table = {f"{part}_inputs": x for part in ("train", "test", "validation")}
    table |= {f"{part}_targets": x[:, 0] for part in ("train", "test", "validation")}
    np.savez(tmp_path / "table.npz", **table)
    keys = {"model__loss": "squared", "data__standardise": "0.3/0.25"}
    keys |= {"data__name": "npz/table", "model__init_from": str(known)}
    keys |= {"data__classes": 0, "data__clients": 30, "cohort__size": 15}
    run(config_with(**CONFIG | keys), tmp_path / "run", str(tmp_path), say=print)
    release.release(tmp_path / "run", tmp_path / "out")
    page = (tmp_path / "out/MODEL.md").read_text()
    for words in (
        "6 parameters and 1 number,", "divide by 0.25", "validation data",
        "what the first model, known.npz, was trained on", "added to their sums. ",
    ):  # fmt: skip
        assert words in page, words


def test_of_two_releases_at_once_one_appears_whole(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(OSError, match="not empty"), release._appearing(out) as late:
        (late / "a").write_text("late")
        with release._appearing(out) as first:
            (first / "a").write_text("first")
    assert (out / "a").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
