"""Compressors: short messages that are not linear in the update, with exact bits.

A message is a few arrays, and `fields(d)` has the bits of each of their numbers on the
wire. Values are float32, an index among d takes ceil(log2 d) bits, and scales and seeds
are counted.

>>> import jax, jax.numpy as jnp
>>> from fl_sketch.sketch import compressors
>>> rough = compressors.then(compressors.top_k(2), compressors.scaled_sign())
>>> x = jnp.array([0.0, 4.0, 0.5, -2.0])
>>> rough.apply(jax.random.key(0), x)
Array([ 0.,  3.,  0., -3.], dtype=float32)
>>> rough.bits(4)  # two signs, a scale, two indices of two bits
38
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from fl_sketch.core import trees, validate
from fl_sketch.core.hashing import sample_without_replacement
from fl_sketch.core.keys import require_key
from fl_sketch.core.protocols import Compressor, Field


def top_k(k: int) -> Compressor:
    """Keeps the k numbers of largest magnitude, k <= d: k values and k indices.

    A contraction: `|x - x_hat|^2 <= (1 - k/d) |x|^2`. Biased. NaN counts as largest.
    """
    validate.at_least_one(k=k)

    def compress(key, x):
        del key
        index = lax.top_k(jnp.abs(x), k)[1]
        return x[index], index.astype(jnp.uint32)

    def fields(d):
        validate.at_most(d, "the length of the vector", k=k)
        return Field(k, 32, "float"), Field(k, (d - 1).bit_length(), "uint")

    return _compressor(compress, _placed, fields, contraction=True)


def random_k(k: int, *, unbiased: bool = True) -> Compressor:
    """Keeps k <= d random numbers, without replacement: k values and a 64-bit seed.

    The receiver draws the same indices from the seed. If `unbiased`, values are
    multiplied by d/k: E x_hat = x and `E|x_hat - x|^2 = (d/k - 1) |x|^2`. Otherwise it
    is a contraction, as error feedback needs.
    """
    validate.at_least_one(k=k)

    def indices(seed, d):
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return sample_without_replacement(key, k, d)

    def compress(key, x):
        seed = jax.random.bits(key, (2,), jnp.uint32)
        return x[indices(seed, x.size)] * (x.size / k if unbiased else 1), seed

    def expand(arrays, d):
        values, seed = arrays
        return _placed((values, indices(seed, d)), d)

    def fields(d):
        validate.at_most(d, "the length of the vector", k=k)
        return Field(k, 32, "float"), Field(2, 32, "uint")

    return _compressor(
        compress, expand, fields, unbiased=unbiased, contraction=not unbiased
    )


def sign() -> Compressor:
    """Sends one bit a number: x_hat is +1 where x >= 0, else -1 (signSGD).

    One bit cannot represent NaN, so a real receiver would not see it. `apply` keeps
    NaN, so that a simulation does not hide it.
    """
    return _compressor(
        lambda key, x: ((x < 0).astype(jnp.uint32),),
        lambda arrays, d: _signs(arrays[0]),
        lambda d: (Field(d, 1, "uint"),),
        lambda key, x: jnp.where(jnp.isnan(x), x, jnp.where(x < 0, -1.0, 1.0)),
    )


def scaled_sign() -> Compressor:
    """Sends the signs and the mean magnitude: `x_hat = mean|x| sign(x)` (EF-signSGD).

    A contraction: `|x - x_hat|^2 = (1 - |x|_1^2 / (d |x|_2^2)) |x|^2`.
    """
    return _compressor(
        lambda key, x: ((x < 0).astype(jnp.uint32), jnp.mean(jnp.abs(x))[None]),
        lambda arrays, d: _signs(arrays[0]) * arrays[1],
        lambda d: (Field(d, 1, "uint"), Field(1, 32, "float")),
        contraction=True,
    )


def qsgd(levels: int) -> Compressor:
    """Rounds `|x_i| / |x|_2` at random to a multiple of 1/levels: unbiased.

    A number takes a sign bit and ceil(log2(levels + 1)) bits for its level; the norm
    takes 32. (The paper's Elias code is shorter on average and has no fixed length.)
    `E|x_hat - x|^2 <= min(d/levels^2, sqrt(d)/levels) |x|^2`, which may be more than
    `|x|^2`. With error feedback, use `nearest`.

    Reference: Alistarh et al. (2017), section 3.1.
    """

    def level(key, ratio):
        return jnp.floor(ratio + jax.random.uniform(key, ratio.shape))

    return _rounded(levels, jnp.linalg.norm, level, unbiased=True)


def nearest(levels: int) -> Compressor:
    """Rounds `|x_i| / max|x|` to the nearest multiple of 1/levels.

    The bits are those of `qsgd`. A contraction: no number changes by more than itself,
    nor by more than `max|x| / (2 levels)`.
    """

    def largest(x):
        # XLA's maximum of long or of many vectors, on CPUs, skips what is NaN.
        return jnp.where(jnp.isnan(x).any(), jnp.nan, jnp.max(jnp.abs(x)))

    def level(key, ratio):
        del key
        return jnp.round(ratio)

    return _rounded(levels, largest, level, contraction=True)


def _rounded(levels: int, scale_of, level_of, **properties) -> Compressor:
    """Returns the compressor to signs, levels and a scale."""
    validate.at_least_one(levels=levels)
    width = levels.bit_length()
    validate.at_most(24, "a float32 is exact up to there", bits_of_levels=width)

    def compress(key, x):
        scale = scale_of(x)
        level = level_of(key, jnp.abs(x) / jnp.where(scale == 0, 1, scale) * levels)
        # Rounding may lift a ratio just above one.
        level = jnp.minimum(level, levels).astype(jnp.uint32)
        return level | (x < 0).astype(jnp.uint32) << width, scale[None]

    def expand(arrays, d):
        del d
        codes, scale = arrays
        level = (codes & ((1 << width) - 1)).astype(jnp.float32)
        return _signs(codes >> width) * level * (scale / levels)

    def fields(d):
        return Field(d, width + 1, "uint"), Field(1, 32, "float")

    return _compressor(compress, expand, fields, **properties)


def then(*stages: Compressor) -> Compressor:
    """Returns the compressor that compresses the values of each stage by the next.

    It is unbiased if all stages are, and a contraction if all are.

    >>> cocktail = then(random_k(48, unbiased=False), top_k(24), nearest(7))
    >>> cocktail.bits(64)  # 24 codes of 4 bits, a scale, 24 indices of 6, a seed
    336

    Raises:
      ValueError: when used, for a stage before the last that sends no float values.
    """
    return functools.reduce(_then, stages)


def _then(first: Compressor, second: Compressor) -> Compressor:
    def length(d):
        values = first.fields(d)[0]
        if values.kind != "float":
            msg = f"All stages but the last must send floats, not {values}."
            raise ValueError(msg)
        return values.count

    def compress(key, x):
        length(x.size)
        values, *rest = first.compress(jax.random.fold_in(key, 0), x)
        return *second.compress(jax.random.fold_in(key, 1), values), *rest

    def expand(arrays, d):
        split = len(second.fields(length(d)))
        values = second.expand(arrays[:split], length(d))
        return first.expand((values, *arrays[split:]), d)

    def apply(key, x):
        length(x.size)
        values, *rest = first.compress(jax.random.fold_in(key, 0), x)
        values = second.apply(jax.random.fold_in(key, 1), values)
        return first.expand((values, *rest), x.size)

    return _compressor(
        compress,
        expand,
        lambda d: (*second.fields(length(d)), *first.fields(d)[1:]),
        apply,
        unbiased=first.unbiased and second.unbiased,
        contraction=first.contraction and second.contraction,
    )


_CONTRACTION = (
    "of top_k, random_k(unbiased=False), scaled_sign and nearest. The errors of an "
    "unbiased sketch or another compressor may be longer than its input, and their sum "
    "would grow without end."
)
NO_FEEDBACK = f"Use error feedback around a contraction, made {_CONTRACTION}"


def require_contraction(who: str, compressor: Compressor) -> None:
    """Raises a ValueError unless the compressor of the algorithm `who` contracts."""
    if not compressor.contraction:
        msg = f"Use a contraction for {who}, made {_CONTRACTION}"
        raise ValueError(msg)


def _compressor(compress, expand, fields, apply=None, **properties) -> Compressor:
    """Returns a Compressor that checks its input and works in float32."""
    expand = jax.jit(expand, static_argnums=1)

    def checked(function):
        function = jax.jit(function)

        def on_vector(key, x):
            require_key(key)
            trees.require_floats(x)
            if jnp.ndim(x) != 1:
                msg = f"x must be one vector, not of shape {jnp.shape(x)}."
                raise ValueError(msg)
            fields(x.size)
            return function(key, x.astype(jnp.float32))

        return on_vector

    return Compressor(
        apply=checked(apply or (lambda key, x: expand(compress(key, x), x.size))),
        compress=checked(compress),
        expand=expand,
        fields=fields,
        **properties,
    )


def _placed(arrays, d) -> jax.Array:
    values, index = arrays
    return jnp.zeros(d, values.dtype).at[index].set(values, unique_indices=True)


def _signs(negative: jax.Array) -> jax.Array:
    return 1.0 - 2.0 * negative.astype(jnp.float32)
