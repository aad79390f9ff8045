"""Products of dense layers whose gradients are fast on CPUs."""

import jax
from jax import lax

FEW = 24  # rows up to which a sum of outer products is faster than a product


@jax.custom_vjp
def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Returns `x @ kernel` of rows `x`.

    With few rows the gradient by the kernel is a sum of outer products. That is part of
    the loop that uses the gradient, so it is not written to memory. With many rows it
    is a product of transposed rows.
    """
    return x @ kernel


def _forward(x, kernel):
    return x @ kernel, (x, kernel)


def _backward(residuals, dy):
    x, kernel = residuals
    if 0 < len(x) <= FEW:
        first, *rest = (x[row, :, None] * dy[row] for row in range(len(x)))
        dkernel = sum(rest, first)
    # Barriers keep the transposes out of the products: XLA for CPUs is slow with sums
    # over the first axes of both factors. The smaller matrices are transposed.
    elif len(x) * x.shape[1] <= dy.shape[1] * (len(x) + x.shape[1]):
        dkernel = lax.optimization_barrier(x.T) @ dy
    else:
        dkernel = lax.optimization_barrier(lax.optimization_barrier(dy.T) @ x).T
    return (dy @ kernel.T).astype(x.dtype), dkernel.astype(kernel.dtype)


product.defvjp(_forward, _backward)
