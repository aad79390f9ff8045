"""What a site spent cannot be lowered: not by other terms, and not by a kill."""

import fcntl
import hashlib
import json
import os
import resource
import signal
import threading

import pytest

from fl_sketch.network import dealing, job, lines, site_file, spending
from fl_sketch.network.refused import Refused
from fl_sketch.workdir import odometer, secrets
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

    def rounds(self, run):
        return odometer.read(self.lent.folder)[run].plan.steps


@pytest.fixture
def owner(tmp_path):
    return Owner(tmp_path)


def question(number, text=b""):
    return hashlib.sha256(b"%d" % number + text).digest()


def test_a_run_that_comes_back_at_another_price_is_refused(owner):
    part = owner.joined(z=3.0)
    part.admit(0, 0, question(0))
    spent = owner.spent
    with pytest.raises(Refused, match="with which this run began"):
        owner.joined(z=50.0)
    assert owner.spent == spent
    owner.joined(z=3.0)


def test_data_are_not_public_because_a_coordinator_says_so(owner):
    owner.joined().admit(0, 0, question(0))
    spent = owner.spent
    part = owner.joined(OTHER, z=3.0, data__public=True)
    part.admit(0, 0, question(0))
    assert owner.spent > spent


def test_noise_that_a_coordinator_knows_is_refused_below_a_limit(owner):
    with pytest.raises(Refused, match="randomness=system"):
        owner.joined(privacy__randomness="seed")


def test_a_kill_before_an_answer_is_noted_loses_no_round(owner, monkeypatch):
    part = owner.joined()
    part.admit(0, 0, question(0))

    def dies(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(lines, "add", dies)
    with pytest.raises(KeyboardInterrupt):
        part.admit(1, 0, question(1))
    assert owner.rounds(ONE) == 2


def test_another_question_in_a_round_is_another_round_and_the_same_is_none(owner):
    """Also after the site has started again, and if the first one comes back."""
    part = owner.joined()
    assert part.admit(0, 0, question(0)) and part.admit(0, 1, question(0, b"mean"))
    assert owner.rounds(ONE) == 1
    other = question(0, b"other"), question(0, b"other mean")
    for _ in range(2):
        assert not part.admit(0, 0, other[0]) and not part.admit(0, 1, other[1])
        assert part.admit(0, 0, question(0))
        assert owner.rounds(ONE) == 2
        part = owner.joined()


def test_two_runs_at_once_keep_the_limit_of_both(owner):
    """Each of them alone would reach it."""
    parts, stopped = {run: owner.joined(run, z=2.0) for run in (ONE, OTHER)}, set()
    for number in range(6):
        for run, part in parts.items():
            try:
                part.admit(number, 0, question(number))
            except Refused as error:
                assert "by the site's own limits" in str(error)
                stopped.add(run)
    assert stopped and owner.spent <= 10
    assert 0 < owner.rounds(OTHER) < 6


def test_one_answer_is_counted_at_a_time(owner):
    part = owner.joined()
    thread = threading.Thread(target=part.admit, args=(0, 0, question(0)))
    with spending.locked(owner.lent.folder):
        thread.start()
        thread.join(0.3)
        assert thread.is_alive() and not odometer.read(owner.lent.folder)
    thread.join(60)
    assert owner.rounds(ONE) == 1


def test_a_run_that_counts_examples_is_refused_whatever_the_coordinator_checked(owner):
    """Its limit would be in another unit, and local noise the same when asked again."""
    own = {"algorithm": "private_sketching", "privacy__unit": "example"}
    own |= {"privacy__bound": "none", "client__batches": "subsets"}
    config = five(**PRIVATE | own | {"privacy__noise_multiplier": 3.0})
    with pytest.raises(Refused, match="Expected privacy.unit='client' for sites"):
        job.require_accepted(owner.lent, config)


def test_a_run_that_has_begun_needs_its_secret(owner):
    """With another, the same question would get other noise and cost nothing."""
    part = owner.joined()
    part.admit(0, 0, question(0))
    (secret,) = owner.lent.folder.rglob(secrets.FILE)
    secret.unlink()
    with pytest.raises(Refused, match="Expected the secret of this run"):
        owner.joined()
    owner.joined(run=OTHER)


def test_a_run_is_of_one_process_of_a_site(owner):
    """A second one would not know what the first answered."""
    owner.joined()
    (place,) = owner.lent.folder.rglob("lock")
    with open(place) as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(job._held(place.parent))  # as the end of the first does
    job._held.cache_clear()
    with open(place, "a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="Expected one process of this site"):
            owner.joined()
    owner.joined()


@pytest.mark.parametrize("threshold", [1e-37, 1e37])
def test_a_threshold_that_leaves_float32_is_refused(owner, threshold):
    config = five(**PRIVATE | {"privacy__noise_multiplier": 3.0})
    config.privacy.threshold = threshold
    with pytest.raises(Refused, match="Expected 1e-20 <= privacy.threshold <= 1e20"):
        job.require_accepted(owner.lent, config)


def test_a_line_that_a_full_disk_cuts_does_not_swallow_the_next(tmp_path):
    path = tmp_path / "answered"
    lines.add(path, "price", "aa")
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 3, hard))
        with pytest.raises(OSError):
            lines.add(path, "3.0", "bb" * 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    lines.add(path, "3.0", "cc")
    assert lines.read(path) == [["price", "aa"], ["3.0", "cc"]]
