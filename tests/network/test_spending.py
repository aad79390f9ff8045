"""What a site spent cannot be lowered: not by other terms, and not by a kill."""

import json

import pytest

from fl_sketch.network import dealing, frames, job, site_file
from fl_sketch.network.frames import Frame, Kind
from fl_sketch.network.refused import Refused
from fl_sketch.workdir import odometer
from tests.network.sites import five

pytestmark = pytest.mark.slow

PRIVATE = {
    "model__name": "logistic",
    "privacy__bound": "clip",
    "privacy__relation": "replace_one",
    "privacy__noise": "distributed",
}
ONE, OTHER = "a" * 32, "b" * 32


class Owner:
    """A site's owner, who allows epsilon 10 in all."""

    def __init__(self, folder):
        self.splits = dealing.deal(five(**PRIVATE), None, folder)
        place = dealing.file_of(folder, 0)
        limits = {"epsilon_in_all": 10.0, "delta": 1e-5}
        site_file.write(place, {"data": dealing.DATA, **limits})
        self.lent = site_file.read(place)

    def joined(self, run=ONE, z=3.0, **changes):
        config = five(**PRIVATE | {"privacy__noise_multiplier": z} | changes)
        setup = job.of_coordinator(config, self.splits)
        terms = {**job.terms_of(setup, run), "client": 0}
        return job.join(self.lent, json.loads(json.dumps(terms)))

    @property
    def spent(self):
        return odometer.total(odometer.read(self.lent.folder)).epsilon


@pytest.fixture
def owner(tmp_path):
    return Owner(tmp_path)


def question(number):
    return frames.write(Frame(Kind.MODEL, number))


def test_a_run_that_comes_back_at_another_price_is_refused(owner):
    part = owner.joined(z=3.0)
    part.admit(0, question(0))
    spent = owner.spent
    with pytest.raises(Refused, match="with which this run began"):
        owner.joined(z=50.0)
    assert owner.spent == spent
    owner.joined(z=3.0)


def test_data_are_not_public_because_a_coordinator_says_so(owner):
    owner.joined().admit(0, question(0))
    spent = owner.spent
    part = owner.joined(OTHER, z=3.0, data__public=True)
    part.admit(0, question(0))
    assert owner.spent > spent


def test_noise_that_a_coordinator_knows_is_refused_below_a_limit(owner):
    with pytest.raises(Refused, match="randomness=system"):
        owner.joined(privacy__randomness="seed")


def test_a_kill_before_the_odometer_is_written_loses_no_round(owner, monkeypatch):
    part, note = owner.joined(), odometer.note
    part.admit(0, question(0))

    def dies(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(odometer, "note", dies)
    with pytest.raises(KeyboardInterrupt):
        part.admit(1, question(1))
    monkeypatch.setattr(odometer, "note", note)
    owner.joined()
    ((_, entry),) = odometer.read(owner.lent.folder).items()
    assert entry.plan.steps == 2
