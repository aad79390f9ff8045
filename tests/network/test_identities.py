"""A coordinator that poses as other sites reads no message where keys are signed."""

import json
import stat

import numpy as np
import pytest

from fl_sketch import network
from fl_sketch.network import formats, identities
from fl_sketch.network.refused import Refused
from tests.network.parties import numbers, terms
from tests.refusals import refused

pytestmark = pytest.mark.fast
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


@pytest.mark.parametrize(
    "names",
    [["a", "a", "b"], ["b", "a", "c"], ["a", "b", "d"], ["a"] * 3, [], ["b", "c"]],
)
def test_clients_are_different_sites_of_the_kits(folders, names):
    with pytest.raises(Refused, match="different sites of the kits, and 0 to be a"):
        identity(folders, 0, names)


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
