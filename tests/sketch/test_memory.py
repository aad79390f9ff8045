"""No operator needs more than two vectors besides its input, and none its matrix."""

import jax
import jax.numpy as jnp
import pytest

from fl_sketch import sketch

D = 2**24
KEY = jax.random.key(0)
# One of each code; a dense matrix would take as many vectors as a message has numbers.
OPERATORS = {
    "five rows": sketch.count_sketch(D // 1000, rows=5),
    "independent": sketch.count_sketch(D // 100, hash="independent"),
    "sparse": sketch.sparse_embedding(D // 100, 4),
    "srht": sketch.srht(D // 100),
    "uniform_sampling": sketch.uniform_sampling(D // 100),
    "gaussian": sketch.gaussian(1000),
    "ams": sketch.ams(1000),
}


def allocated(function, *shapes):
    """Returns the bytes that XLA plans to allocate, its result included."""
    memory = jax.jit(function).lower(*shapes).compile().memory_analysis()
    return memory.temp_size_in_bytes + memory.output_size_in_bytes


@pytest.mark.parametrize("name", OPERATORS)
def test_two_vectors_and_a_few_messages_are_enough(name):
    op = OPERATORS[name]
    x, s = jax.ShapeDtypeStruct((D,), jnp.float32), jax.eval_shape(op.zeros)
    kernels = [(op.apply, (KEY, x))]
    for read in dict.fromkeys([op.transpose, op.estimate]):  # they may be the same
        kernels.append((lambda key, s, read=read: read(key, s, D), (KEY, s)))
    for kernel, arguments in kernels:
        limit = 4 * (2 * D + 4 * op.size() + 2**20)
        assert allocated(kernel, *arguments) <= limit
