"""Messages of integers leave a site under masks, and add up to the bit."""

import jax
import numpy as np
import pytest
from scipy import stats

from fl_sketch.network import formats, frames, job, packing
from fl_sketch.network.frames import Kind
from fl_sketch.network.refused import Refused
from fl_sketch.network.site import Site
from fl_sketch.network.site_sums import Masked
from fl_sketch.network.terms import terms_of
from fl_sketch.run import run
from fl_sketch.workdir import odometer, release
from tests.network.sites import (
    INTEGERS,
    METHODS,
    Hospitals,
    five,
    furthest,
    weights_in,
)
from tests.run.configs import quiet, read_json, table_in

FORMS = {
    "skellam": {},
    "discrete_gaussian": {"privacy__noise": "discrete_gaussian"},
    "central": {"privacy__noise": "central", "privacy__smallest_cohort": 0},
    "state": {"algorithm": "scaffold"},
    "followed": {"download": "messages"},
    "two exchanges": METHODS["heaprix"],
}


def hospitals_of(folder, **changes):
    short = {"rounds": 2, "eval_every": 1}
    return Hospitals(folder, five(**INTEGERS | short | changes))


def frame_of(data):
    return frames.read(data, 2**30)


def test_a_site_that_cannot_make_its_masks_sends_no_message(tmp_path, monkeypatch):
    """Else the next model would get its integers in the clear."""
    hospitals = hospitals_of(tmp_path)
    setup = job.of_coordinator(hospitals.config, hospitals.splits)
    terms = {**job.terms_of(setup, "a" * 32), "client": 0}
    talk = job.conversation_of(setup)
    one = Site(lambda said: job.join(hospitals.lent(0), said), hospitals.lines.append)

    def broken(*_):
        raise ValueError("Expected a whole file, got half of one.")

    monkeypatch.setattr("fl_sketch.network.site.Masked", broken)
    asked = frames.Frame(Kind.TERMS, 0, site=0, notes=terms)
    assert frame_of(one.receive(frames.write(asked))).kind == Kind.REFUSED
    payload = talk.model.pack(talk.of_model(zeros_of(talk)))
    notes = {"counts": [5.0, 5.0, 5.0], "sum": [5, 0]}
    model = frames.Frame(Kind.MODEL, 0, 0, 0, talk.digest, notes, payload)
    assert frame_of(one.receive(frames.write(model))).kind == Kind.REFUSED


def zeros_of(talk):
    """Returns a server of zeros."""
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), talk.server)


@pytest.mark.parametrize("form", ["skellam", "central"])
def test_a_site_without_noise_of_its_own_answers_one_set_of_clients_a_round(
    form, tmp_path
):
    """Else sums of two questions over other sites would differ by its message."""
    hospitals = hospitals_of(tmp_path, **FORMS[form])
    setup = job.of_coordinator(hospitals.config, hospitals.splits)
    talk, one = job.conversation_of(setup), hospitals.sites[0]
    terms = {**job.terms_of(setup, "a" * 32), "client": 0}
    one.receive(frames.write(frames.Frame(Kind.TERMS, 0, site=0, notes=terms)))
    payload, numbers = talk.model.pack(talk.of_model(zeros_of(talk))), []
    for denominator in (5.0, 4.0):
        notes = {"counts": [denominator, 5.0, 5.0], "sum": [5, 0]}
        model = frames.Frame(Kind.MODEL, 0, 0, 0, talk.digest, notes, payload)
        assert frame_of(one.receive(frames.write(model))).kind == Kind.PART
        numbers.append(one._masked._number)
    assert (numbers[0] == numbers[1]) == (form == "central")


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_private_run_with_masks_is_that_of_one_program_to_the_bit(form, tmp_path):
    hospitals = hospitals_of(tmp_path, **FORMS[form])
    summary = hospitals.run(tmp_path / "network")
    expected = run(hospitals.config, str(tmp_path / "train"), say=quiet)
    assert not hospitals.lines
    ours, theirs = (weights_in(tmp_path / one) for one in ("network", "train"))
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array)
    for key in ("bytes_up_total", "bytes_down_total", "epsilon"):
        assert summary[key] == expected[key]
    for folder, sums in {"network": "masked network", "train": "one program"}.items():
        own = odometer.read(tmp_path / folder)["run"]
        assert release._sums(tmp_path / folder, own) == sums
    sent = read_json(tmp_path / "network" / "network" / "bytes.json")
    assert sent["payload_up"] == summary["bytes_up_total"]
    assert sent["payload_down"] == summary["bytes_down_total"]


@pytest.mark.slow
def test_an_update_of_nan_adds_zero_below_its_mask(tmp_path):
    """A bound makes it zero before it is rounded: the sum is that of the others."""
    hospitals, clean = (
        hospitals_of(tmp_path / name, privacy__noise_multiplier=1e-3, rounds=1)
        for name in ("nan", "clean")
    )
    path = hospitals.lent(4).data
    arrays = dict(np.load(path))
    arrays["train_inputs"][:] = np.finfo(np.float32).max
    np.savez(path, **arrays)
    hospitals.start(4)
    for one in (hospitals, clean):
        one.run(one.folder / "network")
    given, found = (weights_in(one.folder / "network") for one in (clean, hospitals))
    assert float(table_in(hospitals.folder / "network")[-1]["answered"]) == 5
    assert all(np.isfinite(array).all() for array in found.values())
    assert 0 < furthest(found, given) < 1


def losing(hospitals, number, stage):
    """Loses what site 4 sends in a stage of the first sum, which is asked for once."""
    stages = dict.fromkeys(range(5), 0)

    def change(client, up):
        frame = frame_of(up)
        if frame.kind not in (Kind.PART, Kind.MESSAGE) or frame.round != number:
            return up
        stages[client] += 1
        return None if client == 4 and stages[client] == stage else up

    hospitals.change = change


STAGES = {"keys": (1, 4), "shares": (2, 4), "numbers": (3, 4), "answer": (4, 5)}


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_site_may_drop_out_in_every_stage(stage, tmp_path):
    hospitals = hospitals_of(tmp_path)
    lost, answered = STAGES[stage]
    losing(hospitals, 0, lost)
    hospitals.run(tmp_path / "network")
    rows = table_in(tmp_path / "network")
    assert [float(row["answered"]) for row in rows] == [answered, answered + 5]
    assert [float(row["withheld"]) for row in rows] == [0, 0]


@pytest.mark.slow
def test_a_sum_of_too_few_is_tried_again_with_new_keys(tmp_path):
    """Four of five are needed: two that are lost cost an attempt, and no epsilon."""
    hospitals = hospitals_of(tmp_path)
    lost, sent = [], []

    def change(client, up):
        frame = frame_of(up)
        if frame.kind == Kind.MESSAGE and frame.round == 0:
            sent.append((client, frame.payload))
            if client > 2 and len(lost) < 2:
                lost.append(client)
                return None
        return up

    hospitals.change = change
    hospitals.run(tmp_path / "network")
    assert any("is asked for again" in line for line in hospitals.lines)
    assert any("round 1: 3 sites answered, 4 must" in line for line in hospitals.lines)
    (first, again) = [data for who, data in sent if who == 0][:2]
    assert first != again  # other masks
    spent = read_json(tmp_path / "sites" / "site_0" / "state" / "odometer.json")
    assert [one["rounds"] for _, one in spent] == [2]


@pytest.mark.slow
def test_a_round_whose_answers_are_lost_releases_nothing(tmp_path):
    hospitals = hospitals_of(tmp_path)
    stages = dict.fromkeys(range(5), 0)

    def change(client, up):
        frame = frame_of(up)
        if frame.round == 0 and frame.kind in (Kind.PART, Kind.MESSAGE):
            stages[client] += 1
            return None if stages[client] == 4 and client > 1 else up
        return up

    hospitals.change = change
    hospitals.run(tmp_path / "network")
    rows = table_in(tmp_path / "network")
    assert [float(row["withheld"]) for row in rows] == [1, 0]
    assert [float(row["answered"]) for row in rows] == [0, 5]
    assert sum("no secure sum" in line for line in hospitals.lines) == 1


@pytest.mark.slow
@pytest.mark.parametrize("bits", [0, 16])
def test_a_round_without_clients_is_noise_alone(bits, tmp_path):
    few = {"cohort__sampling": "poisson", "cohort__size": 1, "rounds": 6}
    few |= {"privacy__noise": "central", "privacy__smallest_cohort": 0}
    few |= {"privacy__relation": "add_remove", "privacy__bits": bits}
    hospitals = hospitals_of(tmp_path, **few)
    hospitals.run(tmp_path / "network")
    rows = table_in(tmp_path / "network")
    answered = [float(row["answered"]) for row in rows]
    assert len(rows) == 6
    assert np.diff(answered).min() == 0
    losses = [float(row["test_loss"]) for row in rows]
    assert np.abs(np.diff(losses)).min() > 0


def test_a_site_answers_for_one_set_of_clients(tmp_path):
    """Also after it has started again. For the same set it answers again."""
    terms = terms_of(round=3, clients=5, length=4, bits=8)

    def answered(dropped=()):
        sites = {one: Masked(tmp_path / str(one)) for one in range(5)}
        return parties_play(terms, sites, dropped)

    for one in range(5):
        (tmp_path / str(one)).mkdir()
    assert (answered() == answered()).all()
    with pytest.raises(Refused, match="show the difference"):
        answered(dropped=[4])


@pytest.mark.parametrize("smallest, sites", [(6, 9), (2, 4)])
def test_a_site_refuses_sums_of_too_few_and_of_more_than_there_are(
    smallest, sites, tmp_path
):
    terms = terms_of(round=3, clients=5, length=4, bits=8)
    with pytest.raises(Refused, match="of at least . sites"):
        Masked(tmp_path, smallest, sites).begin(terms, 0, np.arange(4, dtype=np.uint32))


def test_a_site_tells_nothing_of_a_sum_in_which_too_few_are_left(tmp_path):
    terms = terms_of(round=3, clients=5, length=4, bits=8)
    for smallest in (4, 5):
        folders = [tmp_path / f"{smallest}_{one}" for one in range(5)]
        for folder in folders:
            folder.mkdir()
        sites = {one: Masked(folders[one], smallest) for one in range(5)}
        if smallest == 4:
            assert parties_play(terms, sites, [4]).size
            continue
        with pytest.raises(Refused, match="at least 5 sites in a sum, got 4"):
            parties_play(terms, sites, [4])


def test_an_owner_says_the_smallest_sum_and_a_run_how_many_sites_there_are(tmp_path):
    hospitals = hospitals_of(tmp_path, rounds=1, eval_every=1)
    hospitals.lend(4, smallest_sum=6)
    hospitals.run(tmp_path / "network")
    assert any("site 4: refuses" in one and "6 sites" in one for one in hospitals.lines)
    assert hospitals.sites[0]._part.sums == (2, 5, None)
    assert float(table_in(tmp_path / "network")[-1]["answered"]) == 4


def parties_play(terms, sites, dropped):
    """Returns the total of a sum of sites, of which some drop out before numbers."""
    from fl_sketch.network.secure_sum import Server

    server, numbers = Server(terms, sites), np.arange(4, dtype=np.uint32)
    for one, site in sites.items():
        server.receive(one, site.begin(terms, one, numbers))
    requests = server.close()
    for _ in range(3):
        for one, request in requests.items():
            stage, sent = sites[one].go_on(request)
            if stage == "numbers":
                if one in dropped:
                    continue
                sent = formats.write(formats.NUMBERS, terms, one, sent)
            server.receive(one, sent)
        requests = server.close()
    return server.total


class Listening(Hospitals):
    """Sites whose answers are kept."""

    heard: tuple = ()

    def send(self, data, seconds):
        answers = super().send(data, seconds)
        self.heard = (*self.heard, *map(frame_of, answers.values()))
        return answers


@pytest.mark.slow
def test_what_leaves_a_site_is_not_told_from_random_bits(tmp_path, monkeypatch):
    """The same test tells the numbers below the masks from random bits."""
    clear, begin = [], Masked.begin

    def watched(self, terms, client, numbers, asked):
        clear.append(packing.packed(numbers, terms.bits))
        return begin(self, terms, client, numbers, asked)

    monkeypatch.setattr(Masked, "begin", watched)
    hospitals = Listening(tmp_path, five(**INTEGERS | {"rounds": 2}))
    hospitals.run(tmp_path / "network")
    sent = [one.payload for one in hospitals.heard if one.kind == Kind.MESSAGE]
    assert len(sent) == len(clear) == 10
    assert uniform(b"".join(sent)) > 1e-5
    assert uniform(b"".join(clear)) < 1e-12


def uniform(data):
    """Returns the p-value of bytes that are drawn uniformly."""
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    return stats.chisquare(counts).pvalue
