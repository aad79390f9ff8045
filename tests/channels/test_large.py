"""Models of up to 2^31 - 1 numbers have messages and prices: by shapes alone."""

import jax
import jax.numpy as jnp
import pytest

from fl_sketch.core import trees, wire
from fl_sketch.core.keys import round_keys
from tests.channels import cases
from tests.channels.rounds import single_client

SIZES = (2**30, 2**31 - 1)
KEY = jax.random.key(0)


def like(d):
    return {"w": jax.ShapeDtypeStruct((d,), jnp.float32)}


@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("name", cases.COMPRESSORS)
def test_a_compressor_has_a_message_of_the_length_that_it_says(name, d):
    one = cases.COMPRESSORS[name].at(d)
    vector = jax.ShapeDtypeStruct((d,), jnp.float32)
    arrays = jax.eval_shape(one.compress, KEY, vector)
    fields = one.fields(d)
    assert [array.size for array in arrays] == [field.count for field in fields]
    assert jax.eval_shape(lambda a: one.expand(a, d), arrays).shape == (d,)
    bits = one.bits(d)
    assert isinstance(bits, int) and bits == sum(f.count * f.bits for f in fields)


@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("name", cases.CHANNELS)
def test_a_channel_has_a_round_and_a_price(name, d):
    row = cases.CHANNELS[name]
    channel, update = row.make(d), like(d)
    asked = (update, update) if row.pairs else update
    told = []

    def ended(params, asked):
        memory, keys = channel.init(params), round_keys(KEY, 0, 0)
        end = single_client(channel, asked, keys, memory)
        told.append(end.bits_up)
        return wire.traced_bytes(end.bits_up), end.delivery.estimate

    sent, estimate = jax.eval_shape(ended, update, asked)
    assert sent.shape == (2,) and sent.dtype == jnp.uint32
    if name != "sketched_message":  # whose estimate is the message
        assert estimate["w"].shape == (d,)
    if isinstance(told[0], int):
        assert wire.byte_count(wire.traced_bytes(told[0])) == -(-told[0] // 8)


def test_one_number_more_is_refused_by_its_count():
    with pytest.raises(ValueError, match=r"2147483648|2\^31|2147483647"):
        trees.require_floats(like(2**31))
    with pytest.raises(ValueError, match="2147483647"):
        trees.size(2**31)
