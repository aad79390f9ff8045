"""Every message that is not the expected one is refused in one line."""

import random

import numpy as np
import pytest

from fl_sketch import network
from fl_sketch.network import formats
from fl_sketch.network.formats import HEADER, STAGES
from tests.network.parties import ask, at, numbers, play, terms
from tests.refusals import refused

pytestmark = pytest.mark.fast
AGREED, IDS = terms(5), (3, 4, 6, 8, 9)
MESSAGES = numbers(AGREED, IDS)


def rewritten(kind, data, change, client=None):
    """Returns a table with changed entries."""
    about = HEADER.unpack_from(data)[4] if client is None else client
    entries = list(kind.entry.iter_unpack(data[HEADER.size :]))
    return formats.write_table(kind, AGREED, about, change(entries))


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_takes_a_message_once_whole_and_from_who_sent_it(stage):
    played, requests = at(stage, AGREED, MESSAGES)
    good = ask(played.clients[3], stage, requests[3], MESSAGES[3])
    other = ask(played.clients[4], stage, requests[4], MESSAGES[4])
    bad = [b"", good[:10], good[: HEADER.size], good[:-1], good + b"\0", other]
    bad += [random.Random(1).randbytes(len(good)), bytes(len(good))]
    bad += [good[:place] + b"\xff" + good[place + 1 :] for place in range(HEADER.size)]
    for data in bad:
        with refused("client 3"):
            played.server.receive(3, data)
    with refused("client 7"):
        played.server.receive(7, good)
    played.server.receive(3, good)
    with refused("twice", "client 3"):
        played.server.receive(3, good)
    played.server.receive(4, other)
    for client in IDS[2:]:
        data = ask(played.clients[client], stage, requests[client], MESSAGES[client])
        played.server.receive(client, data)
    assert played.server.close().keys() == ({*IDS} if stage != "answer" else set())
    with refused():
        played.server.receive(3, good)


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_client_takes_a_request_once_whole_and_its_own(stage):
    played, requests = at(stage, AGREED, MESSAGES)
    good, client = requests[3], played.clients[3]
    bad = [b"", good[:10], good[: HEADER.size], good[:-1], good + b"\0", requests[4]]
    bad += [random.Random(1).randbytes(len(good)), bytes(len(good))]
    bad += [good[:place] + b"\xff" + good[place + 1 :] for place in range(HEADER.size)]
    for data in bad:
        with refused("client 3"):
            ask(client, stage, data, MESSAGES[3])
    for wrong in set(STAGES) - {stage}:
        with refused("order", "client 3"):
            ask(client, wrong, good, MESSAGES[3])
    assert ask(client, stage, good, MESSAGES[3])
    with refused("once", "client 3"):
        ask(client, stage, good, MESSAGES[3])


@pytest.mark.parametrize("stage", STAGES)
def test_messages_of_another_round_or_of_other_terms_are_refused(stage):
    for other in (terms(5, round=4), terms(5, threshold=5), terms(5, bits=15)):
        played, requests = at(stage, AGREED, MESSAGES)
        foreign = numbers(other, IDS)
        theirs, asked = at(stage, other, foreign)
        reply = ask(theirs.clients[3], stage, asked[3], foreign[3])
        with refused("round"):
            played.server.receive(3, reply)
        if stage != "keys":
            with refused("round"):
                ask(played.clients[3], stage, asked[3], MESSAGES[3])


def test_a_huge_claim_takes_no_memory():
    """A table is read only if its length is one that terms allow."""
    played, requests = at("answer", AGREED, MESSAGES)
    many = formats.write_table(
        formats.SURVIVORS, AGREED, 3, [(i,) for i in range(10**5)]
    )
    with refused("3 to 5" if AGREED.threshold == 3 else "4 to 5", "client 3"):
        played.clients[3].answer(many)


def test_keys_that_are_taken_or_of_no_use_are_refused():
    played, _ = at("keys", AGREED, MESSAGES)
    own = played.clients[3].keys()
    played.server.receive(3, own)
    other = played.clients[4].keys()
    taken = rewritten(formats.KEYS, own, lambda entries: entries, client=4)
    same = rewritten(formats.KEYS, other, lambda e: [(*e[0][:1] * 2, e[0][2])])
    weak = rewritten(formats.KEYS, other, lambda e: [(e[0][0], bytes(32), e[0][2])])
    for data in (taken, same, weak):
        with refused("client 4"):
            played.server.receive(4, data)
    played.server.receive(4, other)


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: entries[1:],  # without the client's own keys
        lambda entries: entries[:3],  # below the threshold
        lambda entries: [*entries[:4], (9, *entries[0][1:])],  # keys twice
        lambda entries: entries[::-1],
        lambda entries: [*entries[:4], entries[3]],
        lambda entries: [(3, *entries[1][1:]), *entries[1:]],  # others' keys
    ],
)
def test_a_roster_that_is_not_of_different_clients_and_keys_is_refused(change):
    played, requests = at("shares", AGREED, MESSAGES)
    with refused("client 3"):
        played.clients[3].shares(rewritten(formats.ROSTER, requests[3], change))


def test_shares_for_others_than_the_group_are_refused():
    played, requests = at("shares", AGREED, MESSAGES)
    good = played.clients[3].shares(requests[3])
    for change in (
        lambda entries: entries[1:],
        lambda entries: [*entries[:4], (10, *entries[4][1:])],
    ):
        with refused("client 3"):
            played.server.receive(3, rewritten(formats.SHARES, good, change))


def test_shares_that_were_sealed_for_another_are_refused():
    """A server that swaps two of them, or hands a client's own back as another's."""
    played, requests = at("numbers", AGREED, MESSAGES)

    def swapped(entries):
        (one, text), (two, other) = entries[1:3]
        return [entries[0], (one, other), (two, text), *entries[3:]]

    for_another = rewritten(formats.RELAY, requests[4], lambda e: e, client=3)
    for data in (rewritten(formats.RELAY, requests[3], swapped), for_another):
        with refused("client 3", "sealed"):
            played.clients[3].numbers(data, MESSAGES[3])


def test_a_relay_of_unknown_or_too_few_clients_is_refused():
    played, requests = at("numbers", AGREED, MESSAGES)
    for change in (
        lambda entries: entries[:3],
        lambda entries: entries[1:],
        lambda entries: [*entries[:4], (10, entries[4][1])],
    ):
        with refused("client 3"):
            data = rewritten(formats.RELAY, requests[3], change)
            played.clients[3].numbers(data, MESSAGES[3])


@pytest.mark.parametrize("ids", [(4, 6, 8, 9), (3, 4, 6), (3, 4, 6, 8, 10)])
def test_survivors_are_enough_that_shared_and_the_client_is_one(ids):
    played, _ = at("answer", AGREED, MESSAGES)
    asked = [(i,) for i in ids]
    with refused("client 3"):
        data = formats.write_table(formats.SURVIVORS, AGREED, 3, asked)
        played.clients[3].answer(data)


def test_a_share_that_is_anothers_is_refused_and_the_sum_goes_on_without_it():
    played, requests = at("answer", AGREED, MESSAGES)
    answers = {i: played.clients[i].answer(requests[i]) for i in IDS}
    stolen = rewritten(formats.ANSWER, answers[4], lambda entries: entries, client=3)
    swapped = rewritten(
        formats.ANSWER,
        answers[3],
        lambda e: [(e[0][0], e[1][1]), (e[1][0], e[0][1]), *e[2:]],
    )
    others = rewritten(formats.ANSWER, answers[3], lambda e: [*e[:4], (10, e[4][1])])
    for data in (stolen, swapped, others):
        with refused("client 3"):
            played.server.receive(3, data)
    for client in IDS[1:]:
        played.server.receive(client, answers[client])
    played.server.close()
    total = sum(map(np.int64, MESSAGES.values())) % 2**AGREED.bits
    np.testing.assert_array_equal(played.server.total, total)


def test_a_server_has_no_total_before_the_end_and_no_stage_after_it():
    played, _ = at("answer", AGREED, MESSAGES)
    with refused("answer"):
        _ = played.server.total
    done = play(AGREED, MESSAGES)
    with refused("no more"):
        done.server.close()
    with refused("no more"):
        done.server.receive(3, done.up["answer"][3])


@pytest.mark.parametrize("ids", [(1, 2, 3), (1, 2, 3, 4, -1), (1, 2, 3, 4, 2**32)])
def test_a_cohort_is_as_large_as_the_terms_say_and_has_numbers(ids):
    with refused(5 if len(ids) == 3 else ids[-1]):
        network.Server(AGREED, ids)
    if len(ids) == 5:
        with refused(ids[-1]):
            network.Client(AGREED, ids[-1])
