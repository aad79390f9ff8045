"""Models of Flax NNX and of Equinox as modules of Flax Linen.

A config may name a function FILE.py:NAME that makes a model of any of the three. One of
NNX takes `rngs`, one of Equinox takes `key`; both get the number of classes first.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
from flax.core import FrozenDict


class OfNnx(nn.Module):
    """A model of NNX, in training mode where `train` is true.

    Its Dropout draws from the stream of a client's step, and the statistics of its
    BatchNorm are those of a model that keeps statistics. `nnx.bridge.to_linen` has no
    training mode, wants a key for Dropout at the start, and does not take back the
    arrays of layers in a list from a file.

    Attributes:
      make: `(classes, rngs=, **options) -> model`.
    """

    make: Callable[..., Any]
    classes: int
    options: Mapping[str, Any] = FrozenDict({})

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool = False) -> jax.Array:
        """Returns the outputs for a batch of `inputs`."""
        from flax import nnx  # takes a second to import

        initial, draws = self.is_initializing(), train and self.has_rng("dropout")
        first = self.make_rng("params") if initial else jax.random.key(0)
        dropout = self.make_rng("dropout") if draws else jax.random.key(0)
        rngs = nnx.Rngs(first, params=first, dropout=dropout)
        model = self.make(self.classes, rngs=rngs, **self.options)
        if not isinstance(model, nnx.Module):
            msg = f"Expected a function of rngs to return nnx.Module, got {model!r}."
            raise TypeError(msg)
        nnx.update(model, _parameters(self, nnx.state(model, nnx.Param)))
        kept = nnx.state(model, nnx.BatchStat)
        variables = [
            self.variable("batch_stats", _dotted(path), lambda leaf=leaf: leaf)
            for path, leaf in jax.tree.leaves_with_path(kept)
        ]
        values = [variable.value for variable in variables]
        nnx.update(model, jax.tree.unflatten(jax.tree.structure(kept), values))
        model.train() if train else model.eval()
        outputs = model(inputs)  # pyright: ignore[reportCallIssue]
        if self.is_mutable_collection("batch_stats") and not initial:
            after = jax.tree.leaves(nnx.state(model, nnx.BatchStat))
            for variable, value in zip(variables, after, strict=True):
                variable.value = value
        return outputs


class OfEquinox(nn.Module):
    """A model of Equinox, which takes one example; its float arrays are trained.

    If it takes a `key`, each example of a training batch gets one.

    Attributes:
      make: `(classes, key=, **options) -> model`.
    """

    make: Callable[..., Any]
    classes: int
    options: Mapping[str, Any] = FrozenDict({})

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool = False) -> jax.Array:
        """Returns the outputs for a batch of `inputs`."""
        import equinox as eqx

        initial = self.is_initializing()
        first = self.make_rng("params") if initial else jax.random.key(0)
        model = self.make(self.classes, key=first, **self.options)
        if not isinstance(model, eqx.Module):
            msg = f"Expected a function of key to return eqx.Module, got {model!r}."
            raise TypeError(msg)
        floats, rest = eqx.partition(model, eqx.is_inexact_array)
        model = eqx.combine(_parameters(self, floats), rest)
        model = eqx.nn.inference_mode(model, value=not train)
        if not (train and "key" in inspect.signature(type(model).__call__).parameters):
            return jax.vmap(model)(inputs)
        keys = jax.random.split(self.make_rng("dropout"), len(inputs))
        return jax.vmap(lambda one, key: model(one, key=key))(inputs, keys)


def _parameters(module: nn.Module, tree: Any) -> Any:
    """Returns a tree with the parameters of `module` that have the names of its leaves.

    They start as the leaves.
    """
    arrays = [
        module.param(_dotted(path), lambda _, leaf=leaf: leaf)
        for path, leaf in jax.tree.leaves_with_path(tree)
    ]
    return jax.tree.unflatten(jax.tree.structure(tree), arrays)


def _dotted(path: Any) -> str:
    """Returns the name of a leaf in one word: Linen's names have no slashes."""
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    return name.removesuffix(".value")


def as_linen(make: Callable[..., Any], classes: int, options: Mapping[str, Any]) -> Any:
    """Returns the module of `make`, as one of Linen if it is another."""
    is_class = inspect.isclass(make)  # whose own signature nnx hides
    takes = inspect.signature(make.__init__ if is_class else make).parameters
    if "rngs" in takes:
        return OfNnx(make, classes, FrozenDict(options))
    if "key" in takes:
        return OfEquinox(make, classes, FrozenDict(options))
    return make(classes, **options)
