"""A sum shows if all of a roster stay, and nothing does if one of them leaves."""

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import x25519
from scipy import stats

from fl_sketch.network import secure_sum
from fl_sketch.network.secure_sum import Identity, Party, Sum
from tests.refusals import refused

pytestmark = pytest.mark.fast
NAMES = ["a", "b", "c", "d", "e"]
PRIVATES, PUBLICS = secure_sum.drawn(NAMES)
LENGTH = 3001


def sum_of(bits, attempt=0, length=LENGTH):
    return Sum("r" * 32, round=3, exchange=0, attempt=attempt, length=length, bits=bits)


def party(number, what):
    name = NAMES[number]
    return Party(what, number, Identity(name, PRIVATES[name], PUBLICS))


def messages(bits, sites=5):
    """Returns small, smooth messages, which no test takes for random numbers."""
    waves = 1 + np.sin(np.arange(LENGTH) / 50)
    return {
        n: (waves * (n + 1) * 2 ** (bits - 4)).astype(np.uint64).astype(np.uint32)
        for n in range(sites)
    }


def masked(what, sent):
    """Returns the parties, and what each sends for the roster of all of them."""
    parties = {n: party(n, what) for n in sent}
    roster = secure_sum.write_roster({n: one.key() for n, one in parties.items()})
    return parties, {
        n: one.masked(roster, NAMES, 3, sent[n]) for n, one in parties.items()
    }


@pytest.mark.parametrize("bits", [8, 12, 16, 27, 32])
def test_the_sum_is_that_of_the_messages(bits):
    what, sent = sum_of(bits), messages(bits)
    parties, hidden = masked(what, sent)
    assert {len(one) for one in hidden.values()} == {-(-LENGTH * bits // 8)}
    seeds = {n: one.seed() for n, one in parties.items()}
    expected = sum(one.astype(np.uint64) for one in sent.values()) % 2**bits
    assert (secure_sum.total(what, hidden, seeds) == expected).all()


def looks_random(values, bits):
    """Returns whether numbers pass chi-squares of their highest bits and of pairs."""
    high = np.asarray(values).astype(np.int64) >> (bits - 4)
    singles = np.bincount(high, minlength=16)
    pairs = np.bincount(16 * high[:-1:2] + high[1::2], minlength=256)
    return min(stats.chisquare(one).pvalue for one in (singles, pairs)) > 1e-4


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_without_one_seed_or_one_message_all_is_random(bits):
    what, sent = sum_of(bits), messages(bits)
    parties, hidden = masked(what, sent)
    seeds = {n: one.seed() for n, one in parties.items()}
    assert not looks_random(sent[4], bits)
    without_seed = seeds | {4: bytes(32)}
    assert looks_random(secure_sum.total(what, hidden, without_seed), bits)
    fewer = {n: hidden[n] for n in range(4)}, {n: seeds[n] for n in range(4)}
    assert looks_random(secure_sum.total(what, *fewer), bits)
    with refused("seed"):
        secure_sum.total(what, hidden, fewer[1])


def test_two_attempts_have_no_mask_in_common():
    sent, found = messages(16), []
    for attempt in range(2):
        what = sum_of(16, attempt)
        parties, hidden = masked(what, sent)
        one = secure_sum.total(what, {0: hidden[0]}, {0: parties[0].seed()})
        found.append(one.astype(np.int64))
    assert looks_random((found[0] - found[1]) % 2**16, 16)


def test_a_party_answers_for_one_roster_and_reveals_its_seed_once():
    what, sent = sum_of(16), messages(16)
    parties, _ = masked(what, sent)
    other = {n: party(n, what) for n in (1, 2, 3)}
    keys = {n: one.key() for n, one in other.items()} | {0: parties[0].key()}
    with refused("one roster"):
        parties[0].masked(secure_sum.write_roster(keys), NAMES, 3, sent[0])
    parties[1].seed()
    with refused("seed"):
        parties[1].seed()
    with refused("seed"):
        party(0, what).seed()


def roster_without(what):
    """Returns rosters that party 0 must refuse, and the keys of its own."""
    own = party(0, what)
    keys = {0: own.key()} | {n: party(n, what).key() for n in (1, 2)}
    pair = x25519.X25519PrivateKey.generate().public_key().public_bytes_raw()
    forged = pair + keys[1][32:]
    earlier = party(1, sum_of(what.bits, attempt=1)).key()
    whole = secure_sum.write_roster(keys)
    return own, {
        "a replaced key": secure_sum.write_roster(keys | {1: forged}),
        "another site's key": secure_sum.write_roster(keys | {1: keys[2]}),
        "a key of another attempt": secure_sum.write_roster(keys | {1: earlier}),
        "too few": secure_sum.write_roster({0: keys[0], 1: keys[1]}),
        "without itself": secure_sum.write_roster({n: keys[n] for n in (1, 2)}),
        "twice": whole + whole[:100],
        "a strange site": whole[:200] + (77).to_bytes(4, "little") + whole[204:],
        "cut": whole[:-1],
        "nothing": b"",
    }


WRONG = [*roster_without(sum_of(16))[1]]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_roster_is_refused(name):
    own, rosters = roster_without(sum_of(16))
    with refused("Expected"):
        own.masked(rosters[name], NAMES, 3, messages(16)[0])


def test_identities_are_written_for_their_owners_alone(tmp_path):
    folders = {name: tmp_path / name for name in NAMES}
    for place in folders.values():
        place.mkdir()
    secure_sum.write_identities(folders)
    found = [secure_sum.read_identity(place) for place in folders.values()]
    assert [one.name for one in found] == NAMES
    assert len({one.private for one in found}) == 5
    assert all(one.publics == found[0].publics for one in found)
    path = folders["a"] / secure_sum.FILE
    assert path.stat().st_mode & 0o077 == 0
    assert hashlib.sha256(found[0].private).hexdigest() not in repr(found[0])
    assert secure_sum.read_identity(tmp_path) is None
    path.write_text(path.read_text()[:-9])
    with refused(path):
        secure_sum.read_identity(folders["a"])
