"""A warning about arrays of the model that move although no client trains them.

An optimizer that skips some arrays, or a loss that does not read them, freezes them
only if each array is sent separately. A sketch mixes all arrays. Its estimate, noise,
and signs change every number of the model.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from fl_sketch.core import trees
from fl_sketch.core.protocols import Tree
from fl_sketch.engine.round import State

Look = Callable[[int, State], None]  # of the number of rounds done, and the state
SHOWN = 3  # names in a warning


def watching(
    untouched: Sequence[str], begun: State, say: Callable[[str], None], look: Look
) -> Look:
    """Returns a `look` that also says once, after the first rounds, what has moved.

    Args:
      untouched: names of the arrays that no client's data reach.
      begun: the state before these rounds, which they use up.
      say: gets the line.
      look: is called as before.
    """
    if not untouched:
        return look
    before = [jax.tree.map(jnp.copy, _arrays(untouched, begun.server.params))]

    def looking(done: int, state: State) -> None:
        if before:
            first, now = before.pop(), _arrays(untouched, state.server.params)
            differ = {name: (first[name] != now[name]).any() for name in untouched}
            moved = [name for name in untouched if differ[name]]
            if moved:
                say(_line(moved))
        look(done, state)

    return looking


def _arrays(names: Sequence[str], model: Tree) -> dict[str, jax.Array]:
    arrays = dict(trees.named_leaves(trees.trained(model)))
    return {name: arrays[name] for name in names}


def _line(names: Sequence[str]) -> str:
    """Returns a line about arrays that have moved."""
    shown = ", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN)
    count = f"{len(names)} arrays" if len(names) > 1 else "1 array"
    return (
        f"The rounds move {count} of the model that no client's data reach ({shown}). "
        "A mask in the clients' optimizer, or a loss that does not read an array, does "
        "not freeze it under a sketch, noise or signs: what is to stay as it is must "
        "not be among the parameters."
    )
