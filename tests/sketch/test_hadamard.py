"""Both ways to a Walsh-Hadamard transform give the matrix's product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from fl_sketch.sketch import hadamard

pytestmark = pytest.mark.fast

ways = pytest.mark.parametrize(
    "transform",
    [
        hadamard.walsh_hadamard,
        hadamard.walsh_hadamard_by_butterflies,
        hadamard.walsh_hadamard_by_matmuls,
    ],
)


@ways
@pytest.mark.parametrize("n", [1, 2, 8, 64, 128, 256, 512, 2048])
def test_it_is_the_product_with_the_matrix(transform, n):
    x = np.random.default_rng(n).normal(size=n).astype(np.float32)
    expected = scipy.linalg.hadamard(n).astype(np.float64) @ x
    np.testing.assert_allclose(
        jax.jit(transform)(jnp.asarray(x)), expected, atol=1e-5 * n
    )


@ways
def test_twice_is_n_times_the_vector_at_length(transform):
    n = 2**17
    x = jax.random.normal(jax.random.key(0), (n,))
    back = jax.jit(lambda x: transform(transform(x)) / n)(x)
    np.testing.assert_allclose(back, x, atol=1e-4)
