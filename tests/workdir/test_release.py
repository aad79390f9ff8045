"""A release has the model and its promise, and nothing of any client."""

import hashlib
import json
import re
import shutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from fl_sketch import algorithms, data, engine
from fl_sketch.config import parse
from fl_sketch.core import protocols, secret
from fl_sketch.core.hashing import SHUFFLED_UP_TO
from fl_sketch.data import npz, tokenizer
from fl_sketch.data.examples import Examples
from fl_sketch.engine import recorder
from fl_sketch.models import params_io
from fl_sketch.privacy import clipping, mechanism
from fl_sketch.privacy.guarantee import rounded_up
from fl_sketch.run import load_params, run, secret_roots, simulate
from fl_sketch.workdir import odometer, release, secrets, weights
from tests.run.configs import config_with, quiet, read_json, refused, table_in

pytestmark = pytest.mark.slow

FILES = ["MODEL.md", "params.json", "params.safetensors", "privacy.json"]
SECRET = hashlib.sha256(b"planted").digest()
CLIENTS = 40
CONFIG = {
    "algorithm": "ef21",  # with something of every client in the checkpoint
    "compressor__compression": 2.0,
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
def one(tmp_path_factory):
    return plant(tmp_path_factory.mktemp("one"))


def plant(folder):
    data, own, before = folder / "data", folder / "run", folder / "before"
    data.mkdir()
    npz.save(data / "planted.npz", examples(1, 400), examples(2, 100))
    config, reports = config_with(**CONFIG), []
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
        patch.setattr(secret, "fresh", lambda: secret.Secret(SECRET))
        run(config, own, str(data), say=quiet)
    return Planted(own, before, data, config, patterns(config, own, reports))


def patterns(config, folder, reports):
    """Returns what to look for, by what it says of clients."""
    train = examples(1, 400)
    shares = parse.partition_of(config.data, train.targets, 0)
    with np.load(max((folder / "checkpoints").iterdir())) as arrays:
        saved = dict(arrays)
    names = ("up", "down", "last", "answered")
    who = [saved[f"extra/ledger/{name}"] for name in names]
    who += [part for report in reports for part in (report.clients, report.answered)]
    banks = [leaf for name, leaf in saved.items() if name.startswith("state/clients/")]
    table = [*table_in(folder, "simulator.csv"), read_json(folder / "simulator.json")]
    hidden = [x for row in table for name, x in row.items() if name != "round"]
    losses = [report.diagnostics["loss"].tobytes() for report in reports]
    return {
        "the secret": [SECRET, SECRET.hex().encode(), SECRET[:8], SECRET[-8:]],
        "the data of a client": pairs(train.inputs[shares.of(0)]),
        "losses and bytes": [*(p for x in hidden for p in as_text(x)), *losses],
        "who took part": [array.tobytes() for array in who],
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


def found(wanted, folder):
    """Returns the patterns that occur in any file below a folder."""
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return [one for one in wanted if any(one in text for text in contents)]


def test_nothing_of_any_client_is_in_a_release(one, tmp_path):
    out = tmp_path / "out"
    release.release(one.folder, out)
    assert sorted(path.name for path in out.iterdir()) == FILES
    shared = tmp_path / "shared"  # the files of the run that may be published
    shared.mkdir()
    for name in ("metrics.csv", "summary.json", "params.json", "params.safetensors"):
        shutil.copy(one.folder / name, shared)
    wanted = one.patterns
    for said, hidden in wanted.items():
        assert len(hidden) >= 4, said
        assert not found(hidden, out) and not found(hidden, shared), said
    assert not found([str(one.folder).encode(), b"tmp"], out)
    # What was not to be found would have been: it is where it comes from.
    assert SECRET in found(wanted["the secret"], one.before)
    for where, said in (
        (one.data, "the data of a client"),
        (one.folder, "memories of clients"),
    ):
        assert {*found(wanted[said], where)} == {*wanted[said]}
    measured = found(wanted["losses and bytes"], one.folder)
    texts = [one for one in wanted["losses and bytes"] if re.fullmatch(rb"[\d.]+", one)]
    assert len(texts) > 4 and {*texts} <= {*measured}
    assert len({*measured} - {*texts}) > 2  # losses that wait for a row
    assert len(found(wanted["who took part"], one.folder)) >= 4


def test_the_model_is_that_of_the_last_checkpoint_and_the_page_loads_it(one, tmp_path):
    out, test = tmp_path / "out", examples(2, 100)
    lines = release.release(one.folder, out)
    assert "650" in lines[0] and "epsilon = 8 " in lines[1]
    theirs = flatten_dict(load_params(one.folder), sep="/")
    ours = params_io.load(out / "params.safetensors")
    assert {k: (v.dtype, v.tobytes()) for k, v in ours.items()} == {
        k: (v.dtype, v.tobytes()) for k, v in theirs.items()
    }
    names, page = {"inputs": test.inputs}, (out / "MODEL.md").read_text()
    code = [part.split("\n```")[0] for part in page.split("```python\n")[1:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(out)
        exec("\n".join(code), names)
    assert names["params"]["dense/kernel"].shape == (10, 64)
    accuracy = (names["predictions"].argmax(1) == test.targets).mean()
    summary = read_json(one.folder / "summary.json")
    assert accuracy == pytest.approx(summary["test_accuracy"], abs=1e-6)
    release.release(one.folder, tmp_path / "again")
    for name in FILES:
        assert (out / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    with refused("out"):
        release.release(one.folder, out)


def test_the_promise_stands_in_numbers_and_in_words(one, tmp_path):
    release.release(one.folder, tmp_path / "out")
    promise = read_json(tmp_path / "out/privacy.json")
    summary = read_json(one.folder / "summary.json")
    same = ("epsilon", "delta", "noise_multiplier", "relation", "randomness")
    expected = {name: summary[name] for name in (*same, "bound", "noise", "threshold")}
    expected |= {"sampling": "poisson", "sampling_rate": 0.5, "rounds": 6, "bits": None}
    expected |= {
        "unit": "client",
        "releases": 1,
        "public_data": False,
        "sums": "one program",
    }
    assert promise.items() >= expected.items() and "all_runs" not in promise
    assert promise["not_protected"] == [*release.UNPROTECTED, release.LAST_BITS]
    page = (tmp_path / "out/MODEL.md").read_text()
    for words in (
        "`logistic`", "`planted`", "650 parameters", "(8, 0.001)-differentially",
        "had not taken part", *promise["not_protected"], release.TRUST["central"],
        release.HIDDEN["client"], "clip, 1.0.", "rate 0.5.",
    ):  # fmt: skip
        assert words in page, words
    (z,) = re.findall(r"at least ([\d.]+) times the bound", page)
    assert 0 <= promise["noise_multiplier"] - float(z) < 1e-3  # it never says more


def words_of(one, entry, **summary):
    """Returns privacy.json and the page of a run with another entry in the ledger."""
    whole = read_json(one.folder / "summary.json") | summary
    about = read_json(one.folder / "params.json")
    promise = release.promise_of(whole, about, entry) | {"sums": "masked network"}
    public = release.public_of(about, private=True)
    return promise, release.page_of(promise, public, {}, 650)


def test_a_shuffle_is_named_where_it_decides_what_the_accountant_takes_as_secret(one):
    own = odometer.read(one.folder)["run"]
    few, many = CLIENTS, SHUFFLED_UP_TO + 1
    for sampling, population, unit, named in (
        ("poisson", few, "client", False),
        ("fixed", many, "client", True),
        ("everyone", many, "client", False),
        ("fixed", few, "example", True),
        ("everyone", few, "example", False),
    ):
        size = population if sampling == "everyone" else 20
        plan = own.plan._replace(sampling=sampling, population=population, sample=size)
        if sampling != "poisson":
            plan = plan._replace(relation="replace_one", cut=0.0)
        kind = "rdp" if sampling == "fixed" else "pld"
        entry = own._replace(plan=plan, unit=unit, accountant=kind)
        for noise in ("central", "skellam"):
            promise, page = words_of(one, entry, noise=noise, smallest_cohort=17)
            said = [line for line in promise["not_protected"] if "shuffle" in line]
            assert len(said) == named, (sampling, population, unit)
            assert (release.HIDDEN[unit] in page) == (sampling != "everyone")
            shares = noise != "central"
            knows = "who knows which clients" in page
            assert knows == (shares and sampling != "everyone")
            assert (f"{size - 17} may have dropped out" in page) == shares
        if named:  # without a secret shuffle everyone is in
            everyone = plan._replace(sampling="everyone", sample=population)
            known = entry._replace(plan=everyone, accountant="pld").spent()
            assert said[0].endswith(f"epsilon is at most {rounded_up(known)}")


def test_what_else_was_made_of_the_data_is_said(one, tmp_path):
    folder = shutil.copytree(one.folder, tmp_path / "run")
    own = odometer.read(folder)["run"]
    odometer.note(folder, {"before": own, "free": own._replace(public=True)})
    release.release(folder, tmp_path / "out")
    both = read_json(tmp_path / "out/privacy.json")["all_runs"]
    total = odometer.total({"run": own, "before": own})
    assert both == {"runs": 2, "epsilon": total.epsilon, "delta": 1e-3}
    assert "All 2 counted runs" in (tmp_path / "out/MODEL.md").read_text()
    odometer.note(folder, {"toy": own._replace(randomness="simulated")})
    with refused("simulated"):
        release.release(folder, tmp_path / "more")


def edited(path, **changes):
    path.write_text(json.dumps(read_json(path) | changes))


def noted(run, **changes):
    odometer.write(run, {"run": odometer.read(run)["run"]._replace(**changes)})


def flipped(path):
    path.write_bytes(path.read_bytes()[:-1] + b"\0")


SPOILED = {
    "not finished": lambda run: (run / "summary.json").unlink(),
    "damaged summary": lambda run: (run / "summary.json").write_text("{"),
    "another summary": lambda run: (run / "summary.json").write_text("{}"),
    "no config": lambda run: (run / "config.json").unlink(),
    "damaged about": lambda run: (run / "params.json").write_text("{}"),
    "simulated": lambda run: noted(run, randomness="simulated"),
    "no noise": lambda run: noted(run, noise_multiplier=0.0),
    "no delta": lambda run: noted(run, delta=1e-300),
    "a secret": lambda run: (run / secrets.FILE).write_text("x"),
    "half a secret": lambda run: (run / secrets.PARTIAL).write_text(""),
    "not counted": lambda run: (run / odometer.FILE).unlink(),
    "damaged ledger": lambda run: (run / odometer.FILE).write_text("{"),
    "a bit": lambda run: flipped(run / weights.FILE),
    "another round": lambda run: edited(run / "params.json", round=2),
    "other rounds": lambda run: edited(run / "summary.json", rounds=2),
}


@pytest.mark.parametrize("what", SPOILED)
def test_what_may_not_be_published_is_refused_in_one_line(one, tmp_path, what):
    folder = shutil.copytree(one.folder, tmp_path / "run")
    SPOILED[what](folder)
    with refused():
        release.release(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_leaves_the_folder_unless_private_texts_decided_it(one):
    table = tokenizer.Table("words", ("to", "be"))
    about = read_json(one.folder / "params.json") | {"init_from": "/home/me/first"}
    about |= {"model": "/home/me/own.py:net", "dataset": "npz//home/me/data"}
    texts = {"length": 9, "vocabulary": 5, "vocabulary_file": "/home/me/words.txt"}
    for own in (table, table._replace(found=True)):
        given = about | {"inputs": texts | {"tokenizer": own.to_json()}}
        public = release.public_of(given, private=False)
        assert "/home" not in json.dumps(public)
        assert public["inputs"]["vocabulary_file"] == "words.txt"
    with refused("vocabulary"):
        release.public_of(given, private=True)
    made = about | {"dataset": "synthetic/9"}
    assert release.public_of(made, private=True)["dataset"] == "synthetic/9"


@pytest.mark.parametrize("own", [False, True])
def test_a_run_of_python_says_what_it_knows_and_no_more(own, tmp_path):
    def loss(params, batch):
        return jnp.mean((batch[0] @ params["w"] - batch[1]) ** 2)

    guard = mechanism.central(
        clipping.normalise(0.5), noise_multiplier=2.0, denominator=10
    )
    if own:
        guard = guard._replace(
            description=protocols.Mechanism._field_defaults["description"]
        )
    inputs = np.random.default_rng(0).normal(size=(400, 3)).astype("float32")
    method = algorithms.fedavg(loss, client_rate=0.1)._replace(mechanism=guard)
    simulate(
        method,
        {"w": np.zeros(3, "float32")},
        data.clients((inputs, inputs.sum(1)), np.arange(400) % 40),
        key=secret_roots(0),
        rounds=2,
        cohort=engine.poisson(40, 10),
        workdir=str(tmp_path / "run"),
    )
    release.release(tmp_path / "run", tmp_path / "out")
    promise = read_json(tmp_path / "out/privacy.json")
    assert promise["noise"] == ("one's own" if own else "central")
    page = (tmp_path / "out/MODEL.md").read_text()
    assert "write here what users need" in page and "load_trained" not in page
    assert read_json(tmp_path / "out/params.json")["arrays"] == {"w": [3]}


def test_of_two_releases_at_once_one_appears_whole(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(OSError, match="full"), release._appearing(out):
        raise OSError(28, "full")
    with pytest.raises(OSError, match="not empty"), release._appearing(out) as late:
        (late / "a").write_text("late")
        with release._appearing(out) as first:
            (first / "a").write_text("first")
    assert (out / "a").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
