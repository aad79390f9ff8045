"""Whether all that should train does.

Under a sketch the server moves every number, so that its parameters show nothing. A
client's local work does: an array whose update is zero in every number does not train,
because the loss does not depend on it, or an optimizer leaves it out. Work is done
twice, the second time from where the first ended: where one of two factors begins at
zero, as lora's, the other moves in the second.

Vectors count together with the other arrays of their layer. The gradient of a bias may
be nothing but rounding, as that of keys in attention.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core.constants import jitted
from fl_sketch.core.keys import round_keys
from fl_sketch.core.protocols import Local, Server, Tree
from fl_sketch.core.trees import named_leaves
from fl_sketch.transforms import lora


class StandsStill(RuntimeError):
    """Something should train, and does not move."""


def require_moving(standing: list[str], done: int) -> None:
    """Raises if any part does not change.

    Args:
      standing: the names of those that do.
      done: the number of rounds done.
    """
    if standing:
        msg = (
            f"Expected all that trains to move, got no update of {', '.join(standing)} "
            f"after round {done}: the loss does not depend on it, or an optimizer "
            "leaves it out."
        )
        raise StandsStill(msg)


def of_work(
    local: Local, examples: Any, *, steps: int, batch: int
) -> Callable[[Server], list[str]]:
    """Returns `(server) -> names` of what a client's work does not move.

    Of work whose update is no tree like the parameters, nothing is said.

    Args:
      examples: arrays with a leading axis, of which `steps` batches are taken.
    """

    def moved(server, batches):
        keys, client = round_keys(jax.random.key(0), 0, 0), local.init(server.params)
        update = local.run(server, client, batches, keys).update
        if jax.tree.structure(update) != jax.tree.structure(server.params):
            return server, None
        after = jax.tree.map(jnp.subtract, server.params, update)
        flags = jax.tree.map(lambda leaf: jnp.any(leaf != 0), update)
        return server._replace(params=after), flags

    work, batches = jitted(moved), _batches(examples, steps, batch)

    def standing(server: Server) -> list[str]:
        server, first = work(server, batches)
        if first is None:
            return []
        second = work(server, batches)[1]
        flags = jax.device_get(jax.tree.map(jnp.logical_or, first, second))
        return _standing(server.params, flags)

    return standing


def _batches(examples: Any, steps: int, batch: int) -> Any:
    """Returns batches of examples from all over the arrays."""
    count = len(jax.tree.leaves(examples)[0])
    places = np.linspace(0, count - 1, steps * batch).astype(int).reshape(steps, batch)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[places], examples)


def _standing(params: Tree, flags: Tree) -> list[str]:
    """Returns the names of matrices that do not move, and of layers without any."""
    matrices: dict[str, bool] = {}
    layers: dict[str, bool] = {}
    for (name, leaf), flag in zip(
        named_leaves(params), jax.tree.leaves(flags), strict=True
    ):
        layer, is_matrix = name.rpartition("/")[0], lora.is_matrix(name, leaf.shape)
        if is_matrix:
            matrices[name] = bool(flag)
        # A layer with a matrix is judged by that.
        layers[layer] = layers.get(layer, False) or is_matrix or bool(flag)
    parts = matrices | layers
    return [name or "params" for name, moves in parts.items() if not moves]
