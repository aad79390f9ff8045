"""What a folder of `simulate` has at the end of a run, and after damage."""

import json
import shutil

import jax.numpy as jnp
import pytest

from fl_sketch import data
from fl_sketch.core import files
from fl_sketch.run import secret_roots
from fl_sketch.workdir import checkpoint, odometer
from tests.engine.regression import (
    CLIENTS,
    INPUTS,
    NOISY,
    OWNERS,
    POISSON,
    PRIVATE,
    TARGETS,
    killed,
    played,
    same,
)
from tests.refusals import refused

SHORT = {"algorithm": PRIVATE, "cohort": POISSON, "target_epsilon": 6.0}
SHORT |= {"rounds": 50, "every": 4, "checkpoint_every": 3}


def bytes_in(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def rounds_in(folder):
    return [int(row["round"]) for row in files.read_rows(folder / "metrics.csv")]


@pytest.fixture(scope="module", name="done")
def _done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("done")
    played(folder, **NOISY, key=secret_roots(0))
    return folder


@pytest.fixture(scope="module", name="short")
def _short(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short")
    return folder, played(folder, **SHORT)


@pytest.mark.slow
def test_the_last_row_of_a_run_that_its_target_ended_stays(short, tmp_path):
    folder, run = short
    last = run.history[-1]["round"]
    assert last % SHORT["every"] and last < SHORT["rounds"]
    again = played(folder, **SHORT)
    assert again.history == run.history and rounds_in(folder)[-1] == last
    shutil.copytree(folder, tmp_path / "killed")  # after the last checkpoint
    (tmp_path / "killed/summary.json").unlink()
    resumed = played(tmp_path / "killed", **SHORT)
    assert resumed.history == run.history
    one, other = (
        json.loads((place / "summary.json").read_text())["epsilon"]
        for place in (folder, tmp_path / "killed")
    )
    assert one == other == run.history[-1]["epsilon"]


@pytest.mark.parametrize("damage", ["gone", "all gone", "cut"])
def test_a_run_that_is_done_is_not_taken_back_to_an_earlier_round(
    done, tmp_path, damage
):
    """Its rounds would be released once more, with other noise."""
    folder = tmp_path / "run"
    shutil.copytree(done, folder)
    assert checkpoint.rounds(folder / "checkpoints") == [6, 7]
    newest = checkpoint.path_of(folder / "checkpoints", 7)
    if damage == "cut":
        newest.write_bytes(newest.read_bytes()[:200])
    elif damage == "gone":
        newest.unlink()
    else:
        shutil.rmtree(folder / "checkpoints")
    before = bytes_in(folder)
    with refused(newest):
        played(folder, **NOISY, key=secret_roots(0))
    assert bytes_in(folder) == before


def test_a_caller_that_changes_its_row_changes_no_file(tmp_path):
    run = played(tmp_path / "one", on_row=lambda row: row.clear())
    plain = played(tmp_path / "two")
    for one, other in zip(run.history, plain.history, strict=True):
        assert one | {"rounds_per_second": 0} == other | {"rounds_per_second": 0}


def looked(params=None):
    del params
    return {"half": jnp.float32(0.5), "count": 3, "flag": True, "word": "\"a, 'b'"}


def test_what_look_returned_has_its_type_in_a_run_that_goes_on(tmp_path):
    killed(tmp_path, 6, look=looked)
    run = played(tmp_path, look=looked)
    again = played(tmp_path, look=looked)
    for history in (run.history, again.history):
        for row in history:
            values = {name: row[name] for name in looked()}
            assert values == looked()
            assert [*map(type, values.values())] == [float, int, bool, str]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["word"] == looked()["word"]


@pytest.mark.slow
@pytest.mark.parametrize("value", ["a\nb", "1", "nan", "True", "", None, [1], 1j])
def test_a_value_that_a_file_would_not_give_back_is_one_line(value):
    with refused("look", "note="):
        played(None, look=lambda params: {"note": value}, rounds=2)


@pytest.mark.parametrize("name", ["a,b", "a\nb", "", 3, "mechanism_rejected"])
def test_a_name_that_is_no_column_is_one_line(name):
    with refused("look", "names"):
        played(None, look=lambda params: {name: 1}, rounds=2)


def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_gone_on_from(tmp_path):
    killed(tmp_path, 7)
    newest = checkpoint.path_of(tmp_path / "checkpoints", 6)
    newest.write_bytes(newest.read_bytes()[:200])
    with refused(newest):
        played(tmp_path)
    newest.unlink()
    assert same(played(tmp_path).state, played(tmp_path.with_name("whole")).state)


def test_a_checkpoint_that_could_not_be_written_is_a_warning(tmp_path, monkeypatch):
    def full(folder, number, *rest, **more):
        if number == 3:
            raise OSError(28, "No space left on device")
        return save(folder, number, *rest, **more)

    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.warns(UserWarning, match="of round 3 could not be written"):
        run = played(tmp_path)
    assert len(run.history) == 4


@pytest.mark.slow
def test_private_data_have_digests_by_a_key_and_public_ones_plain_ones(tmp_path):
    """A plain digest confirms guesses."""
    found = {}
    for name, change in {"one": NOISY, "two": NOISY, "three": {}, "four": {}}.items():
        played(tmp_path / name, **change)
        config = json.loads((tmp_path / name / "config.json").read_text())
        found[name] = config["identity"]["data"]
    assert found["one"] != found["two"] and found["three"] == found["four"]


@pytest.mark.slow
def test_runs_of_other_clients_have_an_epsilon_together_if_the_caller_says_so(tmp_path):
    """Who owns which example is not known elsewhere, and unlike here."""
    others = data.clients((INPUTS, TARGETS), OWNERS[::-1])
    for name in ("", "one"):
        place = tmp_path / f"named {name}"
        for folder, clients in {"a": CLIENTS, "b": others}.items():
            change = NOISY | {"rounds": 1, "clients": clients, "partition": name}
            played(place / folder, **change)
        entries = odometer.below(place)
        assert len(entries) == 2 and odometer.total({"a": entries["a/run"]})
        if name:
            assert odometer.total(entries).runs == 2
            continue
        with refused("same partition", "partition=", error=odometer.NoTotal):
            odometer.total(entries)


def test_a_name_of_the_partition_stays(tmp_path):
    killed(tmp_path, 2, **NOISY, partition="one")
    with refused("privacy plan of this one", tmp_path):
        played(tmp_path, **NOISY, partition="another")
