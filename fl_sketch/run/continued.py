"""A run that continues from the state of an earlier one, as a callback."""

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core.keys import roots_of
from fl_sketch.core.protocols import Key, Roots
from fl_sketch.engine import ledger, programs
from fl_sketch.engine.experiment import Experiment
from fl_sketch.engine.loop import Callback, Progress, RunState, terms_of
from fl_sketch.engine.prices import Prices
from fl_sketch.engine.round import State


class Continued(Callback):
    """Continues an earlier run, whose state it leaves as it is.

    Raises a ValueError for the state of another algorithm, model or population, of
    another key, or of rounds that were accounted for otherwise.
    """

    def __init__(
        self, experiment: Experiment, key: Key | Roots, state: RunState, target: float
    ):
        """Takes the run, and the state and the target epsilon to which it continues."""
        self._experiment, self._before = experiment, state
        done, last = int(state.server.round), experiment.last
        if last <= done:
            msg = (
                f"Expected a privacy budget for more than {done} rounds, got "
                f"target_epsilon={target}, which is spent."
            )
            raise ValueError(msg)
        public = np.asarray(jax.random.key_data(roots_of(key).public))
        if not np.array_equal(public, state.public):
            msg = "Expected key to be that of the earlier rounds of state, got another."
            raise ValueError(msg)
        terms = terms_of(experiment)
        if terms is not None and terms != state.terms and done:
            msg = (
                "Expected state to be of rounds with the same mechanism, cohorts and "
                "relation, got other ones: one privacy plan counts all rounds."
            )
            raise ValueError(msg)

    def on_start(self, progress: Progress) -> Progress:
        """Returns the end of the earlier run, whose bytes are kept."""
        before, population = self._before, self._experiment.clients.population
        state = State(before.server, before.clients)
        expected, got = (
            [
                (jax.tree_util.keystr(path), leaf.shape, leaf.dtype)
                for path, leaf in jax.tree.leaves_with_path(tree)
            ]
            for tree in (progress.state, state)
        )
        if expected != got or len(before.ledger.up) != population:
            msg = (
                "Expected state to be that of a run of this algorithm with parameters "
                f"of these shapes and {population} clients, got another."
            )
            raise ValueError(msg)
        progress.recorders[0].ledger = ledger_of(self._experiment.prices, before)
        state = jax.tree.map(
            lambda leaf, own: jax.device_put(jnp.copy(leaf), own.sharding),
            state,
            progress.state,
        )
        lineage = progress.lineage
        if before.lineage:  # a state that was changed since then has other noise
            digest = programs.digest_of_arrays((before.server, before.clients))
            changed = () if digest == before.digest else (digest,)
            lineage = (*before.lineage, *changed)
        return progress._replace(state=state, lineage=lineage)


def ledger_of(price: Prices, before: RunState) -> ledger.Ledger:
    """Returns the ledger with which a run continues.

    A client that replays the server's steps downloads what it missed, including
    messages of rounds before this call. A client that did not replay them lacks the
    server's moments. It counts as new if it now does.
    """
    book = jax.tree.map(np.copy, before.ledger)
    if price.followed and not before.prices.followed:
        book.last[:], book.received[:] = -1, 0
    if price.followed and price.follow != before.prices.follow:
        msg = (
            "Expected messages of as many bytes as in the rounds before, since who "
            f"follows fetches what it missed, got {price.follow.missed} instead of "
            f"{before.prices.follow.missed} a round: download='model' needs none."
        )
        raise ValueError(msg)
    return book
