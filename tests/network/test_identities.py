"""A coordinator that poses as other sites reads no message where keys are signed."""

import dataclasses
import json
import stat

import numpy as np
import pytest

from fl_sketch import network
from fl_sketch.network import formats, frames, identities
from fl_sketch.network.coordinator import TooFew
from fl_sketch.network.frames import Kind
from fl_sketch.network.refused import Refused
from fl_sketch.network.site_sums import Masked
from tests.network.parties import numbers, terms
from tests.network.sites import INTEGERS, Hospitals, five
from tests.refusals import refused
from tests.run.configs import table_in

AGREED, NAMES, RUN = terms(3), ["a", "b", "c"], "0" * 32
MESSAGES = numbers(AGREED, range(3))


@pytest.fixture
def folders(tmp_path):
    places = {name: tmp_path / name for name in NAMES}
    for place in places.values():
        place.mkdir()
    identities.write(places)
    return places


def identity(folders, number, names=NAMES, run=RUN):
    return identities.read(folders[NAMES[number]], run, names, number)


def summed(clients, messages, change=lambda client, roster: roster):
    """Plays a round, in which a server may change rosters; returns the sum."""
    server = network.Server(AGREED, messages)
    for number, client in clients.items():
        server.receive(number, client.keys())
    rosters = server.close()
    for number, client in clients.items():
        server.receive(number, client.shares(change(number, rosters[number])))
    relays = server.close()
    for number, client in clients.items():
        server.receive(number, client.numbers(relays[number], messages[number]))
    survivors = server.close()
    for number, client in clients.items():
        server.receive(number, client.answer(survivors[number]))
    server.close()
    return server.total


def test_a_server_that_poses_as_all_others_reads_a_message_unless_keys_are_signed(
    folders,
):
    zeros = np.zeros(AGREED.length, np.uint32)
    messages = {0: MESSAGES[0], 1: zeros, 2: zeros}
    posing = {number: network.Client(AGREED, number) for number in (1, 2)}
    total = summed({0: network.Client(AGREED, 0), **posing}, messages)
    np.testing.assert_array_equal(total, MESSAGES[0])
    posing = {number: network.Client(AGREED, number) for number in (1, 2)}
    victim = network.Client(AGREED, 0, identity=identity(folders, 0))
    with refused("public keys that client 1 signed"):
        summed({0: victim, **posing}, messages)


def test_clients_that_sign_have_the_sum(folders):
    clients = {
        number: network.Client(AGREED, number, identity=identity(folders, number))
        for number in range(3)
    }
    expected = sum(map(np.int64, MESSAGES.values())) % 2**AGREED.bits
    np.testing.assert_array_equal(summed(clients, MESSAGES), expected)


@pytest.mark.parametrize(
    ("agreed", "run"),
    [(terms(3, round=4), RUN), (terms(3, bits=15), RUN), (AGREED, "1" * 32)],
    ids=["round", "terms", "run"],
)
def test_a_signature_of_another_sum_is_refused(folders, agreed, run):
    """A server may know the keys of a client that dropped out of an earlier one."""
    clients = {0: network.Client(AGREED, 0, identity=identity(folders, 0))}
    clients |= {number: network.Client(AGREED, number) for number in (1, 2)}
    before = network.Client(agreed, 1, identity=identity(folders, 1, run=run))
    (old,) = formats.read_table(formats.KEYS, agreed, 1, before.keys(), 1, 1)

    def change(client, roster):
        first, _, last = formats.read_table(
            formats.ROSTER, AGREED, client, roster, 3, 3
        )
        return formats.write_table(
            formats.ROSTER, AGREED, client, [first, (1, *old), last]
        )

    with refused("public keys that client 1 signed"):
        summed(clients, MESSAGES, change)


def test_a_client_that_signs_reveals_no_key_of_a_mask(folders):
    """A server that tells clients of different drop-outs would learn all of them."""
    two = dataclasses.replace(AGREED, threshold=2)
    server = network.Server(two, MESSAGES)
    clients = {
        number: network.Client(two, number, identity=identity(folders, number))
        for number in range(3)
    }
    for number, client in clients.items():
        server.receive(number, client.keys())
    rosters = server.close()
    for number, client in clients.items():
        server.receive(number, client.shares(rosters[number]))
    relays = server.close()
    for number in (0, 1):  # the numbers of 2 do not come
        sent = clients[number].numbers(relays[number], MESSAGES[number])
        server.receive(number, sent)
    survivors = server.close()
    with refused("all clients that shared with client 0 to be survivors"):
        clients[0].answer(survivors[0])


@pytest.mark.parametrize(
    "names",
    [["a", "a", "b"], ["b", "a", "c"], ["a", "b", "d"], ["a"] * 3, [], ["b", "c"]],
)
def test_clients_are_different_sites_of_the_kits(folders, names):
    with pytest.raises(Refused, match="different sites of the kits, and 0 to be a"):
        identity(folders, 0, names)


@pytest.mark.parametrize("number", [-1, -3, 3])
def test_a_number_that_no_client_has_is_refused(folders, number):
    with pytest.raises(Refused, match="to be a"):
        identities.read(folders["a"], RUN, NAMES, number)


def test_a_site_masks_with_as_many_others_as_its_owner_says(folders):
    agreed = terms(4)
    sites = [Masked(folders["a"], 3 + (number == 0)) for number in range(4)]
    server = network.Server(agreed, range(4))
    for number, one in enumerate(sites):
        server.receive(number, one.begin(agreed, number, numbers(agreed, [0])[0]))
    rosters = server.close()
    for number in range(3):  # the shares of 3 do not come
        server.receive(number, sites[number].go_on(rosters[number])[1])
    relays = server.close()
    assert sites[1].go_on(relays[1])[0] == "numbers"
    with pytest.raises(Refused, match="at least 4 sites in a sum, got 3"):
        sites[0].go_on(relays[0])


@pytest.mark.slow
def test_a_site_lost_after_its_shares_costs_another_attempt(tmp_path):
    """Where keys are signed; the others are then asked with new keys."""
    changes = {"rounds": 2, "eval_every": 1, "privacy__smallest_cohort": 3}
    hospitals = Hospitals(tmp_path, five(**INTEGERS | changes), signed=True)
    lost = []

    def change(client, up):
        frame = frames.read(up, 2**30)
        if client == 4 and frame.kind == Kind.MESSAGE and not lost:
            lost.append(frame.round)
            return None
        return up

    hospitals.change = change
    hospitals.run(tmp_path / "network")
    assert lost == [0] and "no secure sum: 4 of 5 sites sent numbers" in hospitals.lines
    rows = table_in(tmp_path / "network")
    assert [float(row["answered"]) for row in rows] == [5, 10]


@pytest.mark.slow
def test_a_run_names_a_site_of_the_kits_for_each_client(tmp_path):
    hospitals = Hospitals(tmp_path, five(**INTEGERS, rounds=1), signed=True)
    hospitals.names = hospitals.names[:-1]
    with pytest.raises(TooFew):
        hospitals.run(tmp_path / "network")
    assert any("as many clients as the run names" in one for one in hospitals.lines)


def test_an_identity_is_for_its_owner_alone(folders):
    path = folders["a"] / identities.FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    said = {name: json.loads((folders[name] / path.name).read_text()) for name in NAMES}
    assert said["a"]["publics"] == said["b"]["publics"]
    assert len({one["private"] for one in said.values()}) == 3
    path.write_text("{}")
    with refused(str(path), "unchanged"):
        identity(folders, 0)
    path.unlink()
    with refused("identity.json", "made anew"):
        identity(folders, 0)
