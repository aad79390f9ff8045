"""Dense layers whose gradients by the kernel are fast on CPUs."""

import flax.linen as nn
import jax
from jax import lax

FEW = 24  # rows up to which a sum of outer products is faster than a product


class Dense(nn.Module):
    """A dense layer with the parameters of `flax.linen.Dense`.

    With few rows the gradient of a kernel is as cheap as it is large. As a sum of
    outer products it is part of the loop that uses it, and need not be written. With
    many it is a product, of rows that are turned first. It is written by hand, so that
    `jax.jvp` is there for gradients alone, and not for the layer itself.

    Attributes:
      features: the number of outputs.
      kernel_init: an initializer of the kernel.
    """

    features: int
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the layer's output [..., features] of `x` [..., inputs]."""
        shape = x.shape[-1], self.features
        kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        y = _product(x.reshape(-1, x.shape[-1]), kernel)
        return y.reshape(*x.shape[:-1], self.features) + bias


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

        def turned(x, kernel):
            # By class first, and turned after: XLA for CPUs would take the turning into
            # the product, whose gradient would then add up along the first axes of both
            # factors, as its slower products do. The barrier keeps the two apart.
            by_class = lax.dot_general(kernel, x, (((1,), (1,)), ((), ())))
            return lax.optimization_barrier(by_class).T

        def plain(x, kernel):
            return x @ kernel.T

        return lax.platform_dependent(x, kernel, cpu=turned, default=plain) + bias


@jax.custom_vjp
def _product(x, kernel):
    return x @ kernel


def _forward(x, kernel):
    return x @ kernel, (x, kernel)


def _backward(saved, dy):
    x, kernel = saved

    def plain(x, dy):
        return x.T @ dy

    def outer(x, dy):
        first, *others = (x[row, :, None] * dy[row] for row in range(len(x)))
        return sum(others, first)

    def turned(x, dy):
        # Barriers keep the turning out of the product: with first axes to add up along,
        # XLA for CPUs has a slower one. What is turned is what moves fewer numbers.
        if len(x) * x.shape[1] <= dy.shape[1] * (len(x) + x.shape[1]):
            return lax.optimization_barrier(x.T) @ dy
        return lax.optimization_barrier(lax.optimization_barrier(dy.T) @ x).T

    on_cpu = outer if 0 < len(x) <= FEW else turned
    dkernel = lax.platform_dependent(x, dy, cpu=on_cpu, default=plain)
    return (dy @ kernel.T).astype(x.dtype), dkernel.astype(kernel.dtype)


_product.defvjp(_forward, _backward)
