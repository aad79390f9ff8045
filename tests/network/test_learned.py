"""What the server and colluding clients learn: the sum of the others."""

import numpy as np
import pytest

from fl_sketch.network import formats, keys, masks, packing, shamir
from fl_sketch.network.formats import KEY, SEED
from tests.network.parties import at, looks_random, numbers, play, terms
from tests.refusals import refused

pytestmark = pytest.mark.fast
LENGTH = 4000


def skewed(agreed, ids, seed=0):
    """Returns small, smooth messages, which no test takes for random numbers."""
    waves = np.sin(np.arange(agreed.length) / 50)
    rng = np.random.default_rng(seed)
    waved = {
        i: (1000 + 900 * waves * rng.random()).astype(np.int64) % 2**agreed.bits
        for i in ids
    }
    return {i: message.astype(np.uint32) for i, message in waved.items()}


def sent(agreed, data):
    """Returns the numbers of a masked message, in words that wrap."""
    content = data[formats.HEADER.size :]
    found = packing.unpacked(content, agreed.length, agreed.bits)
    return found.astype(agreed.word)


def without_pairs(agreed, played, client, others):
    """Returns a masked message without the masks that others have with its client."""
    found = sent(agreed, played.up["numbers"][client])
    own = played.clients[client]
    for other in others:
        key = own._masks.agree(own._public[other], keys.MASK)
        masks.add_pair(found, key, agreed.round, other, client)
    return found


def without_seed(agreed, found, seed):
    found = found.copy()
    masks.add(found, seed, agreed.round, sign=-1)
    return found & agreed.word.type(2**agreed.bits - 1)


@pytest.mark.parametrize("bits", [8, 12, 16, 27, 32])
def test_a_masked_message_passes_for_random_and_a_clear_one_does_not(bits):
    agreed = terms(5, LENGTH, bits)
    messages = skewed(agreed, range(5))
    played = play(agreed, messages, until="numbers")
    for client, data in played.up["numbers"].items():
        assert looks_random(sent(agreed, data), bits)
        assert not looks_random(messages[client], bits)


def test_colluders_see_no_more_than_the_sum_of_the_others():
    """Two clients stay honest; the server knows all else, and their seeds."""
    agreed = terms(6, LENGTH, 16)
    messages = skewed(agreed, range(6))
    played = play(agreed, messages, until="numbers")
    seeds = {i: played.clients[i]._seed for i in (0, 1)}
    seen = {}
    for client in (0, 1):
        found = without_pairs(agreed, played, client, (2, 3, 4, 5))
        seen[client] = without_seed(agreed, found, seeds[client])
        assert looks_random(seen[client], 16)
    np.testing.assert_array_equal(seen[0] + seen[1], messages[0] + messages[1])
    found = without_pairs(agreed, played, 0, (1, 2, 3, 4, 5))  # if client 1 colludes
    assert (without_seed(agreed, found, seeds[0]) == messages[0]).all()


def test_a_message_that_comes_late_stays_hidden_by_its_seed():
    """Its client counts as dropped out, so that the key for its masks is known."""
    agreed = terms(5, LENGTH, 16)
    messages = skewed(agreed, range(5))
    played, requests = at("numbers", agreed, messages)
    data = {i: played.clients[i].numbers(requests[i], messages[i]) for i in range(5)}
    late = data.pop(0)
    for client, numbers_of_it in data.items():
        played.server.receive(client, numbers_of_it)
    survivors = played.server.close()
    assert 0 not in survivors
    with refused("client 0"):
        played.server.receive(0, late)
    for client, request in survivors.items():
        played.server.receive(client, played.clients[client].answer(request))
    played.server.close()
    total = sum(messages[i] for i in range(1, 5)) % 2**16
    np.testing.assert_array_equal(played.server.total, total)
    played.up["numbers"] = {0: late}
    assert looks_random(without_pairs(agreed, played, 0, (1, 2, 3, 4)), 16)


def shares_of(agreed, played, client, asked):
    """Returns a client's share of each owner, and what it is a share of."""
    alive = {i for (i,) in asked}
    kind, group = formats.SURVIVORS, agreed.group
    request = formats.write_table(kind, agreed, client, asked)
    answer = played.clients[client].answer(request)
    kind = formats.ANSWER
    entries = formats.read_table(kind, agreed, client, answer, 1, group)
    return {owner: (SEED if owner in alive else KEY, share) for owner, share in entries}


def test_a_client_that_is_asked_twice_answers_once():
    agreed = terms(5)
    played, requests = at("answer", agreed, numbers(agreed, range(5)))
    assert played.clients[2].answer(requests[2])
    without_0 = [(i,) for i in (1, 2, 3, 4)]
    for request in (
        requests[2],
        formats.write_table(formats.SURVIVORS, agreed, 2, without_0),
    ):
        with refused("once"):
            played.clients[2].answer(request)


def test_a_server_that_tells_clients_different_survivors_has_never_both_secrets():
    """The seed and the key of client 0, from any split of those who are asked."""
    agreed, ids = terms(6), range(6)
    for told_alive in range(6):
        played = play(agreed, numbers(agreed, ids), until="numbers")
        of_seed, of_key = {}, {}
        for client in range(1, 6):
            alive = client <= told_alive
            asked = [(i,) for i in ids if i or alive]
            of, share = shares_of(agreed, played, client, asked)[0]
            (of_seed if of == SEED else of_key)[client] = share
        secrets = played.clients[0]
        known = [len(of_seed) >= agreed.threshold, len(of_key) >= agreed.threshold]
        assert not all(known)
        assert len(of_seed) == told_alive and len(of_key) == 5 - told_alive
        if known[0]:
            assert shamir.combine(of_seed) == secrets._seed
        else:
            assert not of_seed or recovered(of_seed) != secrets._seed


def recovered(shares):
    try:
        return shamir.combine(shares)
    except ValueError:
        return None


def test_a_client_forgets_what_it_holds_when_it_has_answered():
    agreed = terms(5)
    played = play(agreed, numbers(agreed, range(5)))
    for client in played.clients.values():
        kept = repr(vars(client))
        assert not client._held and not client._seed
        assert "KeyPair" not in kept


def test_two_rounds_have_no_key_seed_or_mask_in_common():
    first, second = (terms(4, LENGTH, 16, round=i) for i in (0, 1))
    messages = numbers(first, range(4))
    one = play(first, messages, until="numbers", seed=0)
    two = play(second, messages, until="numbers", seed=1)
    for client in range(4):
        a, b = one.clients[client], two.clients[client]
        assert a._masks.public != b._masks.public and a._seed != b._seed
        pair = [sent(first, p.up["numbers"][client]) for p in (one, two)]
        assert looks_random(pair[0] - pair[1], 16)
    again = play(second, messages, until="numbers", seed=0)  # the same secrets
    pair = [sent(first, p.up["numbers"][0]) for p in (one, again)]
    assert one.clients[0]._seed == again.clients[0]._seed
    assert looks_random(pair[0] - pair[1], 16)
