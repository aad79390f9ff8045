"""A look at the first row of a run, for mistakes in what trains.

Under a sketch the server moves every entry, so that its parameters show nothing. A
client's local work does: an array whose update is all zeros does not train, because the
loss does not depend on it, or an optimizer leaves it out.
"""

import warnings
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


class FirstRow(Callback):
    """Warns of a loss that is not finite, and raises if a chosen part does not move.

    A model that trains as a whole may have arrays that it does not use. Of a private
    run nothing is looked at, since nothing may depend on its clients' data.
    """

    def __init__(self, experiment: Experiment, examples: Any):
        """Takes a run, and examples along a leading axis, to work on."""
        self._experiment, self._examples = experiment, examples

    def on_row(self, row, progress) -> None:
        """Raises `StandsStill`."""
        experiment, done = self._experiment, row["round"]
        if done > experiment.every or experiment.private:
            return
        if lost := progress.recorders[0].diverged:
            why = "examples may not be finite, or a rate is too large"
            warnings.warn(f"no finite loss in round {lost}: {why}", stacklevel=2)
        if not experiment.constants:
            return
        local = experiment.algorithm(experiment.hyperparameters, 0.0).local
        sizes = {"steps": experiment.local.steps, "batch": experiment.local.batch}
        if names := unmoved(local, progress.state.server, self._examples, **sizes):
            msg = (
                f"no update of {', '.join(names)} after round {done}: the loss does "
                "not depend on it, or an optimizer leaves it out"
            )
            raise StandsStill(msg)


def unmoved(
    local: Local, server: Server, examples: Any, *, steps: int, batch: int
) -> list[str]:
    """Returns the names of arrays that a client's work does not move.

    A vector counts only if no other array of its layer moves: the gradient of a bias
    may be nothing but rounding. An update with another structure than the parameters
    is not looked at.
    """
    count = len(jax.tree.leaves(examples)[0])
    places = np.linspace(0, count - 1, steps * batch).astype(int).reshape(steps, batch)
    batches = jax.tree.map(lambda leaf: np.asarray(leaf)[places], examples)

    @jitted
    def work(server, batches):
        keys, client = round_keys(jax.random.key(0), 0, 0), local.init(server.params)
        return local.run(server, client, batches, keys).update

    # Of two factors one may begin at zero, as lora's. The other moves in a second work.
    moved: dict[str, bool] = {}
    for _ in range(2):
        update = work(server, batches)
        if jax.tree.structure(update) != jax.tree.structure(server.params):
            return []
        for name, leaf in named_leaves(update):
            moved[name] = moved.get(name, False) or bool(jnp.any(leaf != 0))
        after = jax.tree.map(jnp.subtract, server.params, update)
        server = server._replace(params=after)
    vectors = {name for name, leaf in named_leaves(server.params) if leaf.ndim < 2}
    layers = {name.rpartition("/")[0] for name in moved if moved[name]}
    return [
        name or "params"
        for name in moved
        if not moved[name]
        and not (name in vectors and name.rpartition("/")[0] in layers)
    ]
