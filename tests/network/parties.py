"""Rounds that are played message by message, with everything that was sent."""

import random
from typing import NamedTuple

import numpy as np
from scipy import stats

from fl_sketch import network
from fl_sketch.network.formats import STAGES


class Played(NamedTuple):
    """A round: its parties, and what they sent, by stage and client."""

    server: network.Server
    clients: dict[int, network.Client]
    up: dict[str, dict[int, bytes]]
    down: dict[str, dict[int, bytes]]


def terms(clients=5, length=9, bits=16, round=3, **options):
    small = network.terms_of(round=round, clients=clients, length=length, bits=bits)
    options = {"neighbours": small.neighbours, "threshold": small.threshold, **options}
    return network.Terms(round, clients, length, bits, **options)


def numbers(terms, ids, seed=0):
    """Returns random messages by client."""
    rng = np.random.default_rng(seed)
    top = 2**terms.bits
    return {
        i: rng.integers(0, top, terms.length, np.uint64).astype(np.uint32) for i in ids
    }


def ask(client, stage, request, message):
    if stage == "keys":
        return client.keys()
    if stage == "numbers":
        return client.numbers(request, message)
    return getattr(client, stage)(request)


def play(terms, messages, dropped=None, until="answer", seed=0):
    """Plays a round up to the end of a stage; its randomness is that of the seed."""
    source, dropped = random.Random(seed), dropped or {}
    server = network.Server(terms, messages, source.shuffle)
    clients = {i: network.Client(terms, i, source.randbytes) for i in messages}
    played = Played(server, clients, {}, {})
    requests = dict.fromkeys(messages, b"")
    for stage in STAGES[: STAGES.index(until) + 1]:
        sent = {
            i: ask(clients[i], stage, request, messages[i])
            for i, request in requests.items()
            if dropped.get(i) != stage
        }
        for i, data in sent.items():
            server.receive(i, data)
        requests = server.close()
        played.up[stage], played.down[stage] = sent, requests
    return played


def at(stage, terms, messages, seed=0):
    """Returns a round whose next stage is `stage`, and the requests of that stage."""
    if stage == "keys":
        source = random.Random(seed)
        server = network.Server(terms, messages, source.shuffle)
        clients = {i: network.Client(terms, i, source.randbytes) for i in messages}
        return Played(server, clients, {}, {}), dict.fromkeys(messages, b"")
    before = STAGES[STAGES.index(stage) - 1]
    played = play(terms, messages, until=before, seed=seed)
    return played, played.down[before]


def looks_random(values, bits):
    """Returns whether numbers of `bits` bits pass tests of uniformity and of order.

    The chi-square of their highest 4 bits, that of neighbouring pairs of these, and the
    serial correlation, each at the level of 0.001.
    """
    values = np.asarray(values).astype(np.int64)
    high = values >> max(bits - 4, 0)
    singles = np.bincount(high, minlength=16)
    pairs = np.bincount(16 * high[:-1:2] + high[1::2], minlength=256)
    if (values == values[0]).all():  # which has no correlation
        return False
    serial = stats.pearsonr(values[:-1], values[1:]).pvalue
    chances = stats.chisquare(singles).pvalue, stats.chisquare(pairs).pvalue, serial
    return min(chances) > 0.001
