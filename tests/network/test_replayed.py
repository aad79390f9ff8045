"""A round that is played again has the same noise for the same sum alone."""

import numpy as np
import pytest

from fl_sketch.network import frames
from fl_sketch.network.frames import Kind
from fl_sketch.network.site_sums import Masked
from tests.network.sites import INTEGERS, Hospitals, five, furthest, weights_in

NOISY = INTEGERS | {"privacy__noise_multiplier": 10.0, "privacy__smallest_cohort": 3}
FORMS = {
    "central": {"privacy__noise": "central", "privacy__smallest_cohort": 0},
    "distributed": {"privacy__noise": "distributed"},
    "integers": {},
    "integers, central": {"privacy__noise": "central", "privacy__smallest_cohort": 0},
}
LENGTH = {"algorithm": "fedavg", "rounds": 4, "eval_every": 4, "checkpoint_every": 2}


def private(folder, form, **changes):
    bits = 16 if "integers" in form else 0
    keys = NOISY | {"privacy__bits": bits} | LENGTH | FORMS[form]
    return Hospitals(folder, five(**keys | changes))


def read(data):
    return frames.read(data, 2**30)


class Stopped(BaseException):
    """The coordinator is killed."""


def listen(hospitals, until=99):
    """Returns the frames of a coordinator, which is killed in a round."""
    heard, receive = [], hospitals.send

    def send(data, seconds):
        heard.extend((client, read(frame)) for client, frame in data.items())
        if heard[-1][1].round >= until:
            raise Stopped
        return receive(data, seconds)

    hospitals.send = send
    return heard


def message_of(site, frame, clear):
    """Returns the message with which a site answers a frame, without its mask."""
    answer = read(site.receive(frames.write(frame)))
    if answer.kind == Kind.PART:
        return clear[-1].astype(np.float64)
    assert answer.kind == Kind.MESSAGE, answer.notes
    return np.frombuffer(answer.payload, "<f4")


@pytest.fixture
def clear(monkeypatch):
    """Returns the messages that sites mask."""
    found, begin = [], Masked.begin

    def watched(self, terms, client, numbers, *rest):
        found.append(numbers.view(np.int32) << 16 >> 16)
        return begin(self, terms, client, numbers, *rest)

    monkeypatch.setattr(Masked, "begin", watched)
    return found


@pytest.mark.parametrize("form", ["distributed", "integers"])
def test_another_question_in_a_round_gets_other_noise(form, clear, tmp_path):
    hospitals = private(tmp_path, form, rounds=1, eval_every=1)
    heard = listen(hospitals)
    hospitals.run(tmp_path / "run")
    own = [frame for client, frame in heard if client == 2]
    kinds = Kind.TERMS, Kind.MODEL
    terms, asked = (next(one for one in own if one.kind == kind) for kind in kinds)
    model = np.frombuffer(asked.payload, "<f4") + np.float32(1e-6)
    other, sent = asked._replace(payload=model.tobytes()), []
    for frame in (asked, other, asked, other):
        hospitals.start(2)
        hospitals.sites[2].receive(frames.write(terms))
        sent.append(message_of(hospitals.sites[2], frame, clear))
    np.testing.assert_array_equal(sent[0], sent[2])
    np.testing.assert_array_equal(sent[1], sent[3])
    assert np.std(sent[0] - sent[1]) > np.std(sent[0])


@pytest.mark.parametrize("form", ["central", "integers"])
def test_a_kill_changes_nothing_if_all_answer_again(form, tmp_path):
    whole = private(tmp_path / "whole", form)
    whole.run(tmp_path / "expected")
    killed = private(tmp_path / "killed", form)
    listen(killed, until=3)
    with pytest.raises(Stopped):
        killed.run(tmp_path / "run")
    del killed.send
    killed.run(tmp_path / "run")
    assert not killed.lines
    assert furthest(*map(weights_in, (tmp_path / "expected", tmp_path / "run"))) == 0


def models(heard, number):
    """Returns the model with which a round began."""
    found = [f for _, f in heard if f.kind == Kind.MODEL and f.round == number]
    return np.frombuffer(found[-1].payload, "<f4")


@pytest.mark.parametrize("form", ["integers", "integers, central"])
def test_a_round_is_released_once(form, tmp_path):
    """Round 2 is played, lost with the coordinator, and played without a site."""
    hospitals = private(tmp_path, form)
    first = listen(hospitals, until=3)
    with pytest.raises(Stopped):
        hospitals.run(tmp_path / "run")
    del hospitals.send
    hospitals.change = lambda one, up: None if one == 4 and read(up).round == 2 else up
    second = listen(hospitals)
    hospitals.run(tmp_path / "run")
    said = [line for line in hospitals.lines if "another sum" in line]
    assert said and said[0].startswith("round 3: ")
    np.testing.assert_array_equal(models(first, 2), models(second, 2))
    steps = [models(one, 3) - models(one, 2) for one in (first, second)]
    noise = np.std(steps[0])
    if "central" in form:  # noise alone, which is not that of before
        assert 0.5 * noise < np.std(steps[1]) < 2 * noise
        assert abs(np.corrcoef(*steps)[0, 1]) < 0.2
    else:
        assert not steps[1].any()
