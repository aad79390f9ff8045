"""Forms of layers that are fast on CPUs, for float32.

XLA for CPUs converts convolutions to the order of its kernels only at the start of a
program, not inside `lax.scan` or `lax.map`. Federated learning is all loops. There the
gradient of a kernel, as JAX writes it, takes tens of times as long. Products with
transposed factors are slow too. The functions here agree with the plain ones up to
rounding, in values and gradients. They are for the `cpu` branch of
`lax.platform_dependent`, and `fast.forms` is their only caller.
"""

from fl_sketch.fast.cpu.convolution import convolve as convolve
from fl_sketch.fast.cpu.dense import product as product
from fl_sketch.fast.cpu.depthwise import depthwise as depthwise
