"""Dense layers whose gradients by the kernel are fast on CPUs."""

import flax.linen as nn
import jax
from jax import lax

FEW = 24  # rows up to which a sum of outer products is faster than a product


class Dense(nn.Module):
    """A dense layer with the parameters of `flax.linen.Dense`, for large kernels.

    With few examples the gradient of a kernel is as cheap as it is large. As a sum of
    outer products it is part of the loop that uses it, and need not be written.

    Attributes:
      features: the number of outputs.
    """

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the layer's output [batch, features] of `x` [batch, inputs]."""
        shape = x.shape[-1], self.features
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        few = x.ndim == 2 and 0 < len(x) <= FEW
        return (_product(x, kernel) if few else x @ kernel) + bias


class ByClass(nn.Module):
    """A dense layer from zero whose kernel is stored (classes, inputs).

    Products whose rows are a few numbers long are slow on CPUs, as the gradient of
    a kernel stored (inputs, classes) is.

    Attributes:
      classes: the number of outputs.
    """

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the layer's output [batch, classes] of `x` [batch, inputs]."""
        zeros = nn.initializers.zeros
        kernel = self.param("kernel", zeros, (self.classes, x.shape[-1]))
        bias = self.param("bias", zeros, (self.classes,))
        # By class first, and turned after: XLA for CPUs would take the turning into the
        # product, whose gradient would then add up along the first axes of both
        # factors, as its slower products do. The barrier keeps the two apart.
        by_class = lax.dot_general(kernel, x, (((1,), (x.ndim - 1,)), ((), ())))
        return lax.optimization_barrier(by_class).T + bias


@jax.custom_vjp
def _product(x, kernel):
    return x @ kernel


def _forward(x, kernel):
    return x @ kernel, (x, kernel)


def _backward(saved, dy):
    x, kernel = saved

    def outer(x, dy):
        return sum(x[number, :, None] * dy[number] for number in range(len(x)))

    def plain(x, dy):
        return x.T @ dy

    return dy @ kernel.T, lax.platform_dependent(x, dy, cpu=outer, default=plain)


_product.defvjp(_forward, _backward)
