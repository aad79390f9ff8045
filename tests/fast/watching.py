"""A function and its fast form: what was replaced, and that both agree."""

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch import fast
from fl_sketch.fast import layers
from tests.channels.rounds import quickly


class Watched:
    """The layers that were put in since it began, by name, in their order."""

    def __init__(self, monkeypatch):
        self.names = []
        for name in ("convolve", "depthwise", "max_pool", "product"):
            monkeypatch.setattr(layers, name, self._watched(name))

    def _watched(self, name):
        real = getattr(layers, name)

        def called(*arguments, **options):
            self.names.append(name + " pooled" * options.get("pool", False))
            return real(*arguments, **options)

        return called

    def of(self, function, *arguments):
        """Returns the names of the layers that a function's form puts in."""
        self.names.clear()
        jax.eval_shape(fast.form(function), *arguments)
        return list(self.names)


def floats(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def with_gradients(function, arguments):
    """Returns a number of all results of a function, and its gradient by the floats."""
    leaves, tree = jax.tree.flatten(arguments)
    by = [n for n, a in enumerate(leaves) if jnp.issubdtype(a.dtype, jnp.floating)]

    def value(moved):
        given = dict(enumerate(leaves)) | dict(zip(by, moved, strict=True))
        given = [given[n] for n in range(len(leaves))]
        results = jax.tree.leaves(function(*jax.tree.unflatten(tree, given)))
        waves = [jnp.sin(3 * y + 0.1 * i).sum() for i, y in enumerate(results)]
        return sum(waves, jnp.float32(0)), results

    (_, results), slopes = jax.value_and_grad(value, has_aux=True)(
        [leaves[n] for n in by]
    )
    return results, slopes


def assert_agree(function, *arguments, tolerance=1e-4):
    """Requires of a function's form the same values and gradients."""
    quick = quickly(
        lambda arguments: [
            with_gradients(f, arguments) for f in (fast.form(function), function)
        ]
    )
    ours, plain = quick(arguments)
    for result, exact in zip(*map(jax.tree.leaves, (ours, plain)), strict=True):
        assert result.dtype == exact.dtype and result.shape == exact.shape
        exact = np.asarray(exact, np.float64)
        scale = max(1, np.abs(exact).max(initial=0))
        np.testing.assert_allclose(
            np.asarray(result, np.float64), exact, atol=tolerance * scale
        )


def assert_untouched(function, *arguments):
    """Requires that a function's form is the function as it was traced."""
    texts = [
        str(jax.make_jaxpr(f)(*arguments)) for f in (fast.form(function), function)
    ]
    assert texts[0] == texts[1]
