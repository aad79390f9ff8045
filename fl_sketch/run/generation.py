"""Texts that a language model writes: tokens are drawn one after the other."""

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.core import validate
from fl_sketch.run.trained import Trained

HOTTEST = 1e6  # temperature


def generate(
    trained: Trained,
    prompt: str = "",
    *,
    tokens: int = 200,
    temperature: float = 1.0,
    seed: int = 0,
) -> str:
    """Returns `prompt` with a language model's continuation.

    More tokens with the same seed begin with the same ones. A model sees as many tokens
    as it was trained on. Of a longer text it sees the end, after the token that begins
    all texts, as training cuts texts into pieces.

    Args:
      tokens: the number of characters or words to generate.
      temperature: what logits are divided by; 0: always the most probable token.
    """
    table, length = trained.tokenizer, trained.shape[0]
    if table is None or not trained.of_places:
        lacks = "no vocabulary" if trained.of_places else "one prediction for an input"
        msg = "Expected a language model with its vocabulary, got "
        raise ValueError(msg + f"{trained.about['model']} with {lacks}.")
    validate.at_least_one(tokens=tokens)
    validate.in_range(0, HOTTEST, temperature=temperature)
    number = np.arange(trained.outputs[-1])
    allowed = ~np.isin(number, [*table.special]) & (number < table.size)
    key, heat = jax.random.key(seed), jnp.float32(temperature)

    @jax.jit
    def drawn(variables, window, last, number):
        """Returns the token after the one at `last` of a window [length]."""
        logits = trained.apply(variables, window[None])[0, last]
        logits = jnp.where(allowed, logits, -jnp.inf)
        logits -= logits.max()  # so that no temperature makes infinities of them
        own = jax.random.fold_in(key, number)
        token = jax.random.categorical(own, logits / jnp.where(heat > 0, heat, 1))
        return jnp.where(heat > 0, token, logits.argmax())

    begin, text = [*table.begin], table.tokens(prompt).tolist()
    if not (begin or text):
        msg = "Expected a prompt of one token at least, since no token begins a text "
        raise ValueError(msg + "of this model, got none.")
    for number in range(tokens):
        seen = [*begin, *text[max(len(text) + len(begin) - length, 0) :]]
        window = np.full(length, table.pad, np.int32)
        window[: len(seen)] = seen
        text.append(int(drawn(trained.variables, window, len(seen) - 1, number)))
    return table.decode(text)
