"""Models of 2^31 - 1 numbers have messages: by shapes alone."""

import jax
import jax.numpy as jnp
import pytest

from fl_sketch.core import trees
from tests.channels import cases

D = 2**31 - 1
KEY = jax.random.key(0)


@pytest.mark.parametrize("name", cases.COMPRESSORS)
def test_a_compressor_has_a_message_of_the_length_that_it_says(name):
    one = cases.COMPRESSORS[name].at(D)
    arrays = jax.eval_shape(one.compress, KEY, jax.ShapeDtypeStruct((D,), jnp.float32))
    fields = one.fields(D)
    assert [array.size for array in arrays] == [field.count for field in fields]
    assert jax.eval_shape(lambda a: one.expand(a, D), arrays).shape == (D,)
    assert one.bits(D) == sum(field.count * field.bits for field in fields)


def test_one_number_more_is_refused():
    like = {"w": jax.ShapeDtypeStruct((D + 1,), jnp.float32)}
    for refuse in (trees.require_floats, trees.size):
        with pytest.raises(ValueError, match=str(D)):
            refuse(like)
