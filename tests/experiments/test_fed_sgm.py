"""What Fed-SGM's noise shows an attacker who does not know the sketch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import fed_sgm
from experiments.verdicts import RESULTS
from fl_sketch.algorithms import catalog
from fl_sketch.privacy import accounting

pytestmark = pytest.mark.fast


def test_the_file_is_what_the_accountant_says():
    assert (RESULTS / "fed_sgm/epsilons.csv").read_text() == fed_sgm.page()


@pytest.mark.parametrize("z", [0.5, 0.8])
def test_an_attack_shows_less_than_the_accountant_grants(z):
    most = accounting.epsilon(fed_sgm.PLAN, z, delta=fed_sgm.DELTA)
    assert 0 < fed_sgm.shown(z) < most


@pytest.mark.parametrize("operator", ["count_sketch", "srht"])
def test_a_secret_sketch_leaves_a_number_as_it_was(operator):
    """R'R has ones on its diagonal, and R' does not lengthen the noise of a number."""
    op, alone, key = catalog.OPERATORS[operator](16, 1), jnp.eye(64)[0], jax.random.key
    for draw in range(5):
        sent = op.apply(key(draw), alone)
        back = op.transpose(key(draw), sent, 64)
        np.testing.assert_allclose([back[0], sent.ravel() @ sent.ravel()], 1, atol=1e-6)
