"""ChaCha12 as a jax generator, with 256-bit keys, for secret randomness.

jax's own generator has 64-bit keys and is not a cipher. An attacker who knows most of a
noisy sum can try all keys. Private runs draw noise, cohorts and batches from keys of
this generator. Everything else uses jax's generator, which is faster.

>>> import jax
>>> from fl_sketch.core import chacha
>>> key = chacha.key_of(bytes(32))
>>> jax.random.bits(key, (3,))
Array([1788540059, 1408849159,  315498369], dtype=uint32)

A block is the function of RFC 8439, section 2.3, with 12 rounds for 20: 16 words of a
constant, the key, a counter and a nonce. (The best published attack reaches 7 rounds.)
The first word of the nonce is the purpose of a block, so a key and the keys that are
derived from it never share bits.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import random as jax_random

from fl_sketch.core.keys import roots_of
from fl_sketch.core.protocols import Key, Roots
from fl_sketch.core.trees import varying_like

KEY_BYTES = 32
WORDS = 16  # of a block
ROUNDS = 12
TILE = 4096  # blocks made at a time: their state stays in a core's cache
FEW = 256  # blocks up to which quick compilation matters more than speed
CONSTANT = np.frombuffer(b"expand 32-byte k", "<u4")
BITS, SPLIT, FOLD = 0, 1, 2  # what blocks are for
# The columns of a state, and its diagonals, of which the quarter rounds are made.
QUARTERS = (
    *((i, 4 + i, 8 + i, 12 + i) for i in range(4)),
    *((i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)),
)


def key_of(secret: bytes) -> jax.Array:
    """Returns the typed key of 32 bytes from the operating system or from a hash."""
    return from_words(jnp.asarray(words_of(secret)))


def words_of(secret: bytes) -> np.ndarray:
    """Returns the words of the key of 32 bytes, uint32 [8]."""
    if len(secret) != KEY_BYTES:
        msg = f"Expected a secret of {KEY_BYTES} bytes, got {len(secret)}."
        raise ValueError(msg)
    return np.frombuffer(secret, "<u4").astype(np.uint32)


def from_words(words: jax.Array) -> jax.Array:
    """Returns the typed key of `words`, uint32 [8], as `words_of` makes them."""
    return jax.random.wrap_key_data(words, impl=IMPLEMENTATION)


def roots_with(seed: jax.typing.ArrayLike, words: jax.Array) -> Roots:
    """Returns the roots of a private run.

    Args:
      seed: the seed of the public root, a key of jax's own generator.
      words: the words of the secret root, uint32 [8].
    """
    return Roots(jax.random.key(seed), from_words(words))


def is_secret(key: Key | Roots) -> bool:
    """Returns whether the noise, cohorts and batches of a run can be secret.

    The secret root must be a key of this generator, as from `secret_roots`, and
    must differ from the public root. Keys of jax's own generators have few bits and
    come from seeds that others can guess.
    """
    public, secret = roots_of(key)
    if jax.random.key_impl(secret) != IMPLEMENTATION:
        return False
    public, secret = map(jax.random.key_data, (public, secret))
    return not np.array_equal(public, secret)


def blocks(
    key: jax.Array,
    counter: jax.Array,
    nonce: tuple[int, int, int],
    *,
    rounds: int = ROUNDS,
) -> jax.Array:
    """Returns the 16 words of every block, uint32 [16, counters].

    Args:
      key: the words of a key, uint32 [8].
      counter: one word for each block.
      nonce: the same three words for all blocks.
      rounds: an even number of them.
    """
    words = (CONSTANT, key, counter, np.array(nonce, np.uint32))
    start = _start(*(varying_like(jnp.asarray(part), key, counter) for part in words))
    return (_few if counter.size <= FEW else _many)(start, rounds)


def _start(constant, key, counter, nonce) -> jax.Array:
    """Returns the states before the first round, uint32 [16, counters]."""

    def across(words):
        return jnp.broadcast_to(words[:, None], (len(words), len(counter)))

    return jnp.concatenate(
        [across(constant), across(key), counter[None], across(nonce)]
    )


# Without jit, every call outside of a program would trace and lower its loop again.
_traced_once = functools.partial(jax.jit, static_argnums=1, inline=True)


@_traced_once
def _many(start: jax.Array, rounds: int) -> jax.Array:
    mixed = lax.fori_loop(0, rounds // 2, lambda _, state: _double(state), tuple(start))
    return jnp.stack(mixed) + start


@_traced_once
def _few(start: jax.Array, rounds: int) -> jax.Array:
    """Returns few blocks, with a quarter of the code, which XLA copies to every draw.

    It computes the four quarter rounds together, on rows of four words. For diagonals
    it rotates the rows. For many blocks this takes twice as long as `_double`.
    """
    rows = start.reshape(4, 4, *start.shape[1:])
    mixed = lax.fori_loop(
        0,
        rounds // 2,
        lambda _, state: _turned(_quarter(*_turned(_quarter(*state), 1)), -1),
        tuple(rows),
    )
    return jnp.concatenate(mixed) + start


def _double(state):
    words = list(state)
    for places in QUARTERS:
        mixed = _quarter(*(words[place] for place in places))
        for place, word in zip(places, mixed, strict=True):
            words[place] = word
    return tuple(words)


def _quarter(a, b, c, d):
    for right, left in ((16, 12), (8, 7)):
        a = a + b
        d = _rotated(d ^ a, right)
        c = c + d
        b = _rotated(b ^ c, left)
    return a, b, c, d


def _turned(rows, left: int):
    """Returns the rows of a state rotated, so that its diagonals become columns."""
    a, b, c, d = rows
    return a, jnp.roll(b, -left, 0), jnp.roll(c, -2, 0), jnp.roll(d, left, 0)


def _rotated(word, left: int):
    return word << left | word >> (32 - left)


def _stream(key: jax.Array, count: int, purpose: int) -> jax.Array:
    """Returns the first blocks of a key, uint32 [tiles, 16, blocks of a tile]."""
    places = jnp.arange(min(count, TILE), dtype=jnp.uint32)

    def made(first):
        return blocks(key, first + places, (purpose, 0, 0))

    if count <= TILE:  # a loop of one is code all the same
        return made(jnp.uint32(0))[None]
    tiles = jnp.arange(-(-count // TILE), dtype=jnp.uint32) * jnp.uint32(TILE)
    return lax.map(made, tiles)


def _random_bits(key, bit_width: int, shape) -> jax.Array:
    if bit_width not in (8, 16, 32):
        msg = f"Expected random words of 8, 16 or 32 bits, got {bit_width}."
        raise ValueError(msg)
    count = math.prod(shape)
    words = _stream(key, max(1, -(-count // WORDS)), BITS).ravel()[:count]
    return words.reshape(shape).astype(f"uint{bit_width}")


def _split(key, shape) -> jax.Array:
    count = math.prod(shape)
    made = jnp.moveaxis(_stream(key, max(1, count), SPLIT)[:, :8], 1, 2)
    return made.reshape(-1, 8)[:count].reshape(*shape, 8)


def _fold_in(key, data) -> jax.Array:
    counter = jnp.asarray(data).astype(jnp.uint32)[None]
    return blocks(key, counter, (FOLD, 0, 0))[:8, 0]


def _seed(seed) -> jax.Array:
    return jnp.zeros(8, jnp.uint32).at[0].set(seed.astype(jnp.uint32))


IMPLEMENTATION = jax_random.define_prng_impl(
    key_shape=(8,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chacha12",
    tag="cc12",
)
