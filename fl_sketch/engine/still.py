"""Finds arrays that should train and do not move.

Under a sketch the server moves every number, so that its parameters show nothing. A
client's local work does: an array whose update is zero in every number does not train,
because the loss does not depend on it, or an optimizer leaves it out.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core.constants import jitted
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Local, Server
from fl_sketch.core.trees import named_leaves
from fl_sketch.engine.experiment import Experiment
from fl_sketch.engine.loop import Callback


class StandsStill(RuntimeError):
    """Something should train, and does not move."""


class RequireMoving(Callback):
    """Ends a run at its first row if a client's work leaves out what should train.

    A model that trains as a whole may have arrays that it does not use, and nothing of
    a private run may depend on its clients' data. These are not looked at.
    """

    def __init__(self, experiment: Experiment, examples: Any):
        """Takes a run, and examples along a leading axis, to work on."""
        self._experiment, self._examples = experiment, examples

    def on_row(self, row, progress) -> None:
        """Raises `StandsStill`."""
        experiment, done = self._experiment, row["round"]
        if done > experiment.every or not experiment.constants or experiment.private:
            return
        local = experiment.algorithm(experiment.hyperparameters, 0.0).local
        own = experiment.local
        sizes = {"steps": own.steps, "batch": own.batch}
        if names := standing(local, progress.state.server, self._examples, **sizes):
            msg = (
                f"no update of {', '.join(names)} after round {done}: the loss does "
                "not depend on it, or an optimizer leaves it out"
            )
            raise StandsStill(msg)


def standing(
    local: Local, server: Server, examples: Any, *, steps: int, batch: int
) -> list[str]:
    """Returns the names of arrays that a client's work does not move.

    A vector counts only if no other array of its layer moves: the gradient of a bias
    may be nothing but rounding. Of work whose update is no tree like the parameters,
    nothing is said.
    """
    count = len(jax.tree.leaves(examples)[0])
    places = np.linspace(0, count - 1, steps * batch).astype(int).reshape(steps, batch)
    batches = jax.tree.map(lambda leaf: np.asarray(leaf)[places], examples)

    @jitted
    def moved(server, batches):
        keys, client = round_keys(jax.random.key(0), 0, 0), local.init(server.params)
        update = local.run(server, client, batches, keys).update
        if jax.tree.structure(update) != jax.tree.structure(server.params):
            return server, None
        after = jax.tree.map(jnp.subtract, server.params, update)
        flags = jax.tree.map(lambda leaf: jnp.any(leaf != 0), update)
        return server._replace(params=after), flags

    # Where one of two factors begins at zero, as lora's, the other moves in a second
    # piece of work.
    server, first = moved(server, batches)
    if first is None:
        return []
    flags = jax.tree.map(jnp.logical_or, first, moved(server, batches)[1])
    named = [*named_leaves(jax.device_get(flags))]
    vectors = {name for name, leaf in named_leaves(server.params) if leaf.ndim < 2}
    layers = {name.rpartition("/")[0] for name, flag in named if flag}
    return [
        name or "params"
        for name, flag in named
        if not flag and not (name in vectors and name.rpartition("/")[0] in layers)
    ]
