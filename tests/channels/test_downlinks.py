"""What a server sends down can be had from as many bits as its downlink states."""

import functools
import math

import jax
import numpy as np
import pytest

from fl_sketch.core import trees, wire
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Round
from fl_sketch.sketch import compressors
from tests.channels.rounds import quickly, single_client
from tests.quadratics import CATALOGUE, COCKTAIL, PARAMS, TOP, D

ROUNDS = 6
# By what the server's message is made. All but the cocktail leave alone what they made,
# so that it can be seen from that whether it is theirs.
DOWN = {
    "sketched_sgd": compressors.top_k(4),
    "fetch_sgd": compressors.top_k(4),
    "onebit_adam": compressors.scaled_sign(),
    "ef_sign_sgd": compressors.scaled_sign(),
    "sign_sgd": compressors.sign(),
    "cd_adam": TOP,
    "cocktail_sgd": COCKTAIL,
}


@functools.cache
def sent_down(name):
    """Returns of each round: estimate, what is sent, its code, what that stands for."""
    algorithm = CATALOGUE[name]
    channel, transform = algorithm.uplink, algorithm.downlink.transform

    @quickly
    def one_round(number, state):
        keys = round_keys(jax.random.key(2), number, 0)
        update = jax.tree.map(lambda p: jax.random.normal(keys.own, p.shape), PARAMS)
        update = (update, update) if name == "onebit_adam" else update
        memory, known = channel.init(PARAMS), Round(number)
        estimate = single_client(channel, update, keys, memory, known).delivery.estimate
        sent, after = transform.update(estimate, state, PARAMS, key=keys.server)
        given = trees.ravel(sent)
        if name == "cocktail_sgd":
            given = trees.ravel(estimate) + trees.ravel(state.error)
        code = DOWN[name].compress(keys.server, given)
        received = DOWN[name].expand(code, D)
        return after, (estimate, trees.ravel(sent), code, received)

    state, rounds = transform.init(PARAMS), []
    for number in range(ROUNDS):
        state, found = one_round(np.int32(number), state)
        rounds.append(jax.tree.map(np.asarray, found))
    return rounds


def test_every_downlink_of_the_catalogue_has_a_row():
    assert {name for name, row in CATALOGUE.items() if row.downlink} == {*DOWN}


@pytest.mark.parametrize("name", DOWN)
def test_what_is_sent_down_can_be_had_from_the_bits_that_are_stated(name):
    downlink, compressor = CATALOGUE[name].downlink, DOWN[name]
    for number, (estimate, sent, code, received) in enumerate(sent_down(name)):
        if number < downlink.warmup:
            np.testing.assert_array_equal(sent, trees.ravel(estimate))
            continue
        data = wire.encode(compressor.fields(D), code)
        assert len(data) == math.ceil(downlink.bits(D) / 8)
        np.testing.assert_allclose(received, sent, rtol=1e-6)
        assert np.abs(sent).max() > 0
