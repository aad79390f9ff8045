"""Models of which a part trains: the loss of that part, its start, and the whole.

Only the trained part is a parameter: messages, moments, noise and files only contain
it. The rest is a constant of the loss (`core.constants`), stored once on each device
for any number of clients. An optimizer that skips arrays is not enough: the estimate
from a sketch changes them too, and messages are as long as before.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from fl_sketch.core.constants import Constant
from fl_sketch.core.protocols import Key, Tree
from fl_sketch.core.trees import Stateful, named_leaves
from fl_sketch.models.params_io import BARE
from fl_sketch.transforms import lora
from fl_sketch.transforms.trains import Chosen, chosen

PARAMS, STATE = "params/", "state/"  # begin the names of a model with statistics


class Parts(NamedTuple):
    """A model of which a part trains.

    Attributes:
      model: the model, or its shapes.
      chosen: what trains of it.
      frozen: the arrays that do not train by their names, statistics among them, and
        what `lora.merged` needs besides.
    """

    model: Tree
    chosen: Chosen
    frozen: Constant

    def start(self, model: Tree, key: Key) -> Tree:
        """Returns the trained part of a `model`, as nested dictionaries."""
        leaves = named(model)
        arrays = {name: leaves[name] for name in self.chosen.wholly}
        for number, (name, rank) in enumerate(self.chosen.ranks.items()):
            own, shape = jax.random.fold_in(key, number), leaves[name].shape
            arrays |= lora.factors(own, name, shape, rank)
        return nested(arrays)

    def whole(self, trained: Tree) -> Tree:
        """Returns the model with what trains in its place."""
        arrays = lora.merged(named(trained), self.frozen.value)
        leaves = [arrays[name] for name in named(self.model)]
        return jax.tree.unflatten(jax.tree.structure(self.model), leaves)


def only(
    loss: Callable[..., Any], params: Tree, trains: str, *, key: Key | None = None
) -> tuple[Callable[..., Any], Tree, Callable[[Tree], Tree]]:
    """Returns the loss of what trains, the start of it, and `(trained) -> model`.

    >>> params = {"dense1": jnp.ones((3, 2)), "dense2": jnp.ones(2)}
    >>> def loss(params, batch):
    ...     return jnp.mean(batch @ params["dense1"] @ params["dense2"])
    >>> of_head, start, whole = only(loss, params, "head")
    >>> start, float(of_head(start, jnp.ones((1, 3))))
    ({'dense2': Array([1., 1.], dtype=float32)}, 6.0)
    >>> jax.tree.map(jnp.shape, whole(start))
    {'dense1': (3, 2), 'dense2': (2,)}

    Args:
      loss: `(params, batch)` or `(params, batch, key)` to a scalar. If `params` are
        `Stateful`, their statistics do not change, and the loss should use them as in
        evaluation. The statistics that it returns are ignored.
      params: a tree of arrays, of any library. Those that do not train may have any
        type.
      trains: as `client.trains` in `configs/default.py`, with paths in `params` as
        names.
      key: the key of lora's first factors; None: that of seed 0.
    """
    if trains == "all":
        return loss, params, lambda trained: trained
    arrays = {name: jnp.asarray(leaf) for name, leaf in named(params).items()}
    parts = split(params, trains, arrays)

    @functools.wraps(loss)
    def of_part(trained, *rest, **more):
        value = loss(parts.whole(trained), *rest, **more)
        return value[0] if isinstance(params, Stateful) else value

    key = jax.random.key(0) if key is None else key
    return of_part, parts.start(params, key), parts.whole


def split(model: Tree, trains: str, arrays: Mapping[str, Any]) -> Parts:
    """Returns the parts of a model, or of its shapes.

    Of the `arrays`, by their names, those are needed that do not train.
    """
    stateful, leaves = isinstance(model, Stateful), named(model)
    shapes = {
        name.removeprefix(PARAMS) if stateful else name: jnp.shape(leaf)
        for name, leaf in leaves.items()
        if not (stateful and name.startswith(STATE))
        and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    }
    found = chosen(trains, shapes)
    if stateful:
        wholly = tuple(PARAMS + name for name in found.wholly)
        ranks = {PARAMS + name: rank for name, rank in found.ranks.items()}
        found = found._replace(wholly=wholly, ranks=ranks)
    still = [name for name in leaves if name not in found.wholly]
    for name in still:
        if name not in arrays:
            msg = (
                f"Expected weights to begin with (init_from) for {name}, which does "
                f"not train with trains={trains!r}, got none: it would stay random."
            )
            raise ValueError(msg)
    frozen, scale = {name: arrays[name] for name in still}, np.float32(found.scale)
    frozen |= {f"{name}/{lora.SCALE}": scale for name in found.ranks}
    return Parts(model, found, Constant(frozen))


def named(tree: Tree) -> dict[str, Any]:
    """Returns the leaves of a tree by their names; a bare array is called `BARE`."""
    return {name or BARE: leaf for name, leaf in named_leaves(tree)}


def nested(arrays: Mapping[str, Any]) -> Tree:
    """Returns arrays in nested dictionaries by the parts of their names."""
    if set(arrays) == {BARE}:
        return arrays[BARE]
    return traverse_util.unflatten_dict(dict(arrays), sep="/")
