"""Layers in a traced function that have another form: which they are, and that form."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn
from jax.extend.core import primitives as of_jax

from fl_sketch.fast.forms import convolve, depthwise, product
from fl_sketch.fast.pooling import max_pool

Read = Callable[[Any], Any]  # a variable or a number of an equation -> its value
Axes = tuple[int, int]  # of rows and of columns

FLOATS = (jnp.float32, jnp.bfloat16, jnp.float16)
LARGEST = 11  # places of a kernel, high and wide: longer ones are gradients of kernels
MANY_WEIGHTS = (
    1 << 18
)  # of a kernel, from which a gradient is added up where it is used
WIDE_ROWS = 3  # axes of inputs from which a product's rows are places of examples


def is_convolution(eqn: JaxprEqn) -> bool:
    """Returns whether an equation is a convolution that `convolve` knows."""
    return _is_plain(eqn) and eqn.params["feature_group_count"] == 1


def is_depthwise(eqn: JaxprEqn) -> bool:
    """Returns whether an equation convolves each channel with a kernel of its own."""
    if not _is_plain(eqn):
        return False
    (x, kernel, _), get = avals(eqn), eqn.params
    order = get["dimension_numbers"]
    outputs, inputs, *_ = order.rhs_spec
    channels = x.shape[order.lhs_spec[1]]
    return (
        get["feature_group_count"] == channels == kernel.shape[outputs] > 1
        and kernel.shape[inputs] == 1
        and x.dtype == jnp.float32
    )


def _is_plain(eqn: JaxprEqn) -> bool:
    """Returns whether an equation is a convolution of images without dilation."""
    if eqn.primitive is not of_jax.conv_general_dilated_p:
        return False
    (x, kernel, out), get = avals(eqn), eqn.params
    order, pads, strides = get["dimension_numbers"], get["padding"], set()
    if x.ndim != 4 or not _are_floats(x, kernel, out) or 0 in (x.size, out.size):
        return False
    strides.update(get["window_strides"])
    windows = [kernel.shape[axis] for axis in order.rhs_spec[2:]]
    return (
        get["batch_group_count"] == len(strides) == 1
        and {*get["lhs_dilation"], *get["rhs_dilation"]} == {1}
        and get["out_sharding"] is None
        and max(windows) <= LARGEST
        and all(0 <= n < w for pad, w in zip(pads, windows, strict=True) for n in pad)
    )


def convolution(eqn: JaxprEqn, read: Read, *, pool: bool = False) -> jax.Array:
    """Returns an equation's convolution in the fast form, or the maxima of its windows.

    Axes are in the equation's order.
    """
    return _ordered(functools.partial(convolve, pool=pool), eqn, read)


def of_channels(eqn: JaxprEqn, read: Read) -> jax.Array:
    """Returns an equation's convolution of each channel in the fast form."""
    return _ordered(depthwise, eqn, read)


def _ordered(form: Callable, eqn: JaxprEqn, read: Read) -> jax.Array:
    """Returns a convolution by a form of NHWC order, in the order of an equation."""
    order, (x, kernel) = eqn.params["dimension_numbers"], map(read, eqn.invars)
    (batch, channels, *places), (outputs, inputs, *window) = order[:2]
    y = form(
        _moved(x, (batch, *places, channels)),
        _moved(kernel, (*window, inputs, outputs)),
        eqn.params["padding"],
        eqn.params["window_strides"][0],
        precision=eqn.params["precision"],
    )
    batch, channels, *places = order.out_spec
    given = (batch, *places, channels)
    return _moved(y, tuple(given.index(axis) for axis in range(4)))


def avals(eqn: JaxprEqn) -> list[Any]:
    """Returns the types of an equation's operands, then those of its results."""
    return [atom.aval for atom in (*eqn.invars, *eqn.outvars)]


def axes_of(eqn: JaxprEqn) -> Axes:
    """Returns the axes of the rows and the columns of a convolution's outputs."""
    *_, high, wide = eqn.params["dimension_numbers"].out_spec
    return high, wide


def pooled_axes(eqn: JaxprEqn) -> Axes | None:
    """Returns the two axes of windows of 2x2 if an equation is a pool of their maxima.

    Windows do not overlap, and an odd last row or column is left out.
    """
    if eqn.primitive is not of_jax.reduce_window_max_p:
        return None
    (x, y), get = avals(eqn), eqn.params
    window = tuple(get["window_dimensions"])
    axes = [axis for axis, size in enumerate(window) if size != 1]
    plain = (
        window == tuple(get["window_strides"])
        and not any(n for pad in get["padding"] for n in pad)
        and {*get["base_dilation"], *get["window_dilation"]} == {1}
        and _are_floats(x)
        and 0 not in (x.size, y.size)
    )
    if not plain or [window[axis] for axis in axes] != [2, 2]:
        return None
    high, wide = axes
    return high, wide


def pool(eqn: JaxprEqn, read: Read) -> jax.Array:
    """Returns an equation's maxima in the form whose derivative is no scatter."""
    return max_pool(read(eqn.invars[0]), pooled_axes(eqn) or ())


def is_dense(eqn: JaxprEqn) -> bool:
    """Returns whether an equation is a product of rows that is faster as `product`."""
    if eqn.primitive is not of_jax.dot_general_p:
        return False
    (x, kernel, out), get = avals(eqn), eqn.params
    sums, batches = get["dimension_numbers"]
    wide = x.ndim >= WIDE_ROWS or kernel.size >= MANY_WEIGHTS
    return (
        wide
        and kernel.ndim == 2
        and x.ndim > 1
        and x.dtype == kernel.dtype == out.dtype == jnp.float32
        and [*map(tuple, sums)] == [(x.ndim - 1,), (0,)]
        and not any(map(tuple, batches))
        and get["precision"] is None
        and get["out_sharding"] is None
    )


def dense(eqn: JaxprEqn, read: Read) -> jax.Array:
    """Returns an equation's product of rows in the fast form."""
    x, kernel = map(read, eqn.invars)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return product(rows, kernel).reshape(avals(eqn)[-1].shape)


def _are_floats(*avals: Any) -> bool:
    """Returns whether all types are the same, and floats that forms support."""
    return avals[0].dtype in FLOATS and len({aval.dtype for aval in avals}) == 1


def _moved(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return x if axes == tuple(range(x.ndim)) else lax.transpose(x, axes)
