"""Texts that a language model writes: tokens are drawn one after the other.

A model sees as many tokens as it was trained on. Of a longer text it sees the end,
after the token that begins all texts, as training cuts texts into pieces.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import validate
from fl_sketch.data.tokenizer import Tokenizer
from fl_sketch.run.trained import Trained

BLOCK = 64  # tokens of one call, so that every number of tokens has one program
HOTTEST = 1e6  # temperature


class _Text(NamedTuple):
    """The end of a text that a model sees: `tokens` [length], of which `count` are."""

    tokens: jax.Array
    count: jax.Array


def generate(
    trained: Trained,
    prompt: str = "",
    *,
    tokens: int = 200,
    temperature: float = 1.0,
    seed: int = 0,
) -> str:
    """Returns `prompt` with a language model's continuation.

    More tokens with the same seed begin with the same ones.

    Args:
      tokens: the number of characters or words to generate.
      temperature: what logits are divided by; 0: always the most probable token.

    Raises:
      ValueError, TypeError: in one line, for another model, or a prompt with characters
        that its vocabulary lacks.
    """
    table = trained.tokenizer
    if table is None or not trained.of_places:
        lacks = "no vocabulary" if trained.of_places else "one prediction for an input"
        msg = "Expected a language model with its vocabulary, got "
        raise ValueError(msg + f"{trained.about['model']} with {lacks}.")
    validate.at_least_one(tokens=tokens)
    validate.in_range(0, HOTTEST, temperature=temperature)
    before, number = table.tokens(prompt), np.arange(trained.outputs[-1])
    text = _seen(table, before, trained.shape[0])
    allowed = ~np.isin(number, [*table.special]) & (number < table.size)
    options = table.begin, jax.random.key(seed), allowed, jnp.float32(temperature)
    found = before.tolist()
    end = len(found) + tokens
    for start in range(0, tokens, BLOCK):
        text, drawn = _block(trained.apply, trained.variables, text, start, *options)
        found += np.asarray(drawn).tolist()
    return table.decode(found[:end])


@functools.partial(jax.jit, static_argnames=("apply", "begin"))
def _block(
    apply: Callable[..., jax.Array],
    variables,
    text: _Text,
    start,
    begin: tuple[int, ...],
    key,
    allowed,
    heat,
) -> tuple[_Text, jax.Array]:
    """Returns a text that is `BLOCK` tokens longer, and these tokens.

    Args:
      apply: `(variables, tokens [1, length]) -> logits [1, length, classes]`.
      start: the number of tokens that were drawn before.
      begin: the token that begins every text, if one does.
      allowed: bool [classes], the tokens that may be drawn.
      heat: the temperature.
    """

    def step(text: _Text, number):
        logits = apply(variables, text.tokens[None])[0, text.count - 1]
        logits = jnp.where(allowed, logits, -jnp.inf)
        logits -= logits.max()  # so that no temperature makes infinities of them
        own = jax.random.fold_in(key, number)
        drawn = jax.random.categorical(own, logits / jnp.where(heat > 0, heat, 1))
        token = jnp.where(heat > 0, drawn, logits.argmax()).astype(jnp.int32)
        return _with(text, begin, token), token

    return jax.lax.scan(step, text, start + jnp.arange(BLOCK))


def _seen(table: Tokenizer, before: np.ndarray, length: int) -> _Text:
    """Returns what a model sees of a text: the token that begins it, and its end."""
    first, room = table.begin, length - len(table.begin)
    seen = [*first, *before[max(len(before) - room, 0) :]]
    if not seen:
        msg = "Expected a prompt of one token at least, since no token begins a text "
        raise ValueError(msg + "of this model, got none.")
    row = np.full(length, table.pad, np.int32)
    row[: len(seen)] = seen
    return _Text(jnp.asarray(row), jnp.int32(len(seen)))


def _with(text: _Text, begin: tuple[int, ...], token: jax.Array) -> _Text:
    """Returns what a model sees of a text that is one token longer."""
    length, first = len(text.tokens), len(begin)
    if length == first:
        return text
    moved = jnp.roll(text.tokens, -1).at[:first].set(jnp.array(begin, jnp.int32))
    moved = moved.at[-1].set(token)
    longer = text.tokens.at[jnp.minimum(text.count, length - 1)].set(token)
    tokens = jnp.where(text.count == length, moved, longer)
    return _Text(tokens, jnp.minimum(text.count + 1, length))
