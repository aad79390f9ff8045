"""Keys of a run: unlike for unlike uses, and the secret ones follow from the secret."""

import jax
import jax.numpy as jnp
import pytest

from fl_sketch.core import chacha, keys
from fl_sketch.core.keys import Purpose
from fl_sketch.core.protocols import Roots

pytestmark = pytest.mark.fast
ROOT, OTHER = jax.random.key(3), jax.random.key(4)


def words(tree):
    return [tuple(jax.random.key_data(key).tolist()) for key in jax.tree.leaves(tree)]


def test_no_two_uses_of_a_run_share_a_key():
    drawn = [keys.cohort_key(ROOT, t) for t in range(3)]
    drawn += [keys.apart(ROOT, purpose) for purpose in Purpose]
    for t in range(3):
        common = keys.of_round(ROOT, t)
        drawn += [common.shared, common.server]
        drawn += [keys.round_keys(ROOT, t, c).own for c in range(2)]
        drawn += [keys.batch_key(ROOT, t, c) for c in range(2)]
    made = words(drawn)
    assert len(set(made)) == len(made)


def test_no_round_has_the_key_of_the_first_weights():
    """A root folded with a round's number is never the root folded with INITIAL."""
    initial = keys.apart(ROOT, Purpose.INITIAL)
    taken = {words(keys.apart(initial, purpose))[0] for purpose in Purpose}
    near = range(Purpose.INITIAL - 2, Purpose.INITIAL + 3)
    made = [keys.for_purpose(ROOT, t, Purpose.SHARED) for t in near]
    assert not taken & {*words(made)}
    assert len({*words(made)}) == len(near)


@pytest.mark.parametrize("number", [0, Purpose.INITIAL])
def test_what_clients_know_follows_from_the_public_root_alone(number):
    one, other = Roots(ROOT, OTHER), Roots(ROOT, jax.random.key(5))
    assert words(keys.sketch_keys(one, 3)) == words(keys.sketch_keys(other, 3))
    mine, theirs = (keys.round_keys(roots, number, 1) for roots in (one, other))
    assert words(mine.shared) == words(theirs.shared)
    for secret in ("own", "server"):
        assert words(getattr(mine, secret)) != words(getattr(theirs, secret))
    for make in (keys.cohort_key, lambda root, t: keys.batch_key(root, t, 0)):
        assert words(make(one, number)) != words(make(other, number))
        assert words(make(one, number)) == words(make(OTHER, number))


def test_roots_do_not_show_their_secret():
    roots = chacha.roots_with(0, jnp.arange(1000, 1008, dtype=jnp.uint32))
    assert repr(roots) == "Roots(public, secret)" == f"{roots}"
