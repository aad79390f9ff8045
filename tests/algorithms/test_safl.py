"""SAFL and iterative sketching: to the letter, as FedOpt, and clipped."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fl_sketch import algorithms, channels, sketch, transforms
from fl_sketch.algorithms import catalog
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Keys
from tests.channels.rounds import single_client
from tests.oracles.rounds import local_sgd, matrix
from tests.quadratics import ALGORITHMS, PARAMS, RATE, D, flat, loss, optima
from tests.simulation import KEY, simulate

SERVERS = {  # handed on as they are, so two say it of all
    "paper_amsgrad": transforms.paper_amsgrad(0.05),
    "cosine": optax.adam(optax.cosine_decay_schedule(0.05, 20, alpha=0.02)),
}


@pytest.mark.parametrize("name", SERVERS)
def test_the_identity_is_fedopt(name):
    """To 1e-6 over 20 rounds, clipping included where nothing is long."""
    options = {"client_rate": RATE, "server": SERVERS[name]}
    ours = algorithms.safl(loss, sketch=sketch.identity(), client_clip=1e3, **options)
    theirs = algorithms.fedopt(loss, **options)
    ours, theirs = (simulate(each, rounds=20)[0].server for each in (ours, theirs))
    chex.assert_trees_all_close(ours.params, theirs.params, rtol=1e-6, atol=1e-6)


def test_iterative_sketching_follows_the_papers_lines():
    clients, rounds, op, rate = 6, 6, sketch.ams(8), 0.5
    targets, w = np.asarray(optima(clients), np.float64), np.zeros(D)
    for t in range(rounds):
        r = matrix(op, round_keys(KEY, t, 0).shared)
        changes = [-local_sgd(w, o) for o in targets]  # line 15
        mean = rate * np.mean([r @ c for c in changes], axis=0)  # lines 16, 19
        w = w + r.T @ mean  # line 9
    algorithm = ALGORITHMS["iterative_sketching"]
    state, _ = simulate(algorithm, rounds=rounds, clients=clients)
    np.testing.assert_allclose(flat(state.server.params), w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "server", "line"),
    [
        (sketch.srht(8), optax.adam(0.1), "server that takes Halves"),
        (sketch.srht(8), optax.sgd(0.1), "server that takes Halves"),
        (sketch.fixed_key(sketch.srht(8), KEY), SERVERS["paper_amsgrad"], "new key"),
    ],
)
def test_halves_need_fresh_keys_and_a_server_that_takes_them(op, server, line):
    with pytest.raises(ValueError, match=line):
        algorithms.safl(
            loss, sketch=op, client_rate=RATE, server=server, moments="halves"
        )


@pytest.mark.parametrize("op", [sketch.identity(), sketch.srht(1)])
def test_a_sketch_that_cannot_be_halved_is_refused(op):
    with pytest.raises(ValueError, match="can be halved, got one of .* whose halves"):
        channels.halves(op).init(PARAMS)


def through(channel, update):
    """Returns the end of a round of one client."""
    return single_client(channel, update, Keys(*[jax.random.key(0)] * 3))


@pytest.mark.parametrize("limit", [0.0, 0.5, jnp.float32(0.5), 9.0])
def test_a_clipped_update_is_as_long_as_it_may_be_and_points_the_same_way(limit):
    update = jax.tree.map(lambda leaf: leaf + 0.5, PARAMS)  # of norm 2

    def clipped(limit):
        return through(channels.clipped(channels.exact(), limit), update)

    # A limit that is traced is a point of a sweep.
    end = (jax.jit(clipped) if isinstance(limit, jax.Array) else clipped)(limit)
    sent = end.delivery
    expected = 2.0 if limit in (0, 9) else 0.5
    assert float(jnp.linalg.norm(flat(sent.estimate))) == pytest.approx(expected)
    np.testing.assert_allclose(flat(sent.own) / expected, flat(update) / 2, rtol=1e-6)
    assert end.bits_up == 32 * 16


def test_the_cosine_ends_at_its_floor():
    rate = catalog.build_schedule("cosine", 0.1, floor=1e-5, rounds=50)
    middle = 1e-5 + (0.1 - 1e-5) / 2
    np.testing.assert_allclose(
        [rate(t) for t in (0, 25, 50, 80)], [0.1, middle, 1e-5, 1e-5], rtol=1e-4
    )
    assert catalog.build_schedule("constant", 0.1, floor=0.0, rounds=50) == 0.1
