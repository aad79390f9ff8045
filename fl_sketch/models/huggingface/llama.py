"""Llama: a decoder, which SmolLM2 is too, with logits of the next token or a head.

References: Touvron et al. (2023); Su et al. (2021) on rotations; Ainslie et al. (2023)
on heads that share keys. Names and numbers are those of `transformers`.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fl_sketch.core.pretrained import Folder, padding
from fl_sketch.models.huggingface.arrays import DENSE, Entry, Form, table
from fl_sketch.models.huggingface.attention import attend
from fl_sketch.models.transformers import SPREAD, require_tokens

_ATTENTION, _MLP = "layers.{}.self_attn", "layers.{}.mlp"
ENTRIES = (
    Entry("embed_tokens.weight", "tokens/embedding"),
    Entry("layers.{}.input_layernorm.weight", "block{}/norm1/scale"),
    Entry(f"{_ATTENTION}.q_proj.weight", "block{}/query/kernel", DENSE),
    Entry(f"{_ATTENTION}.k_proj.weight", "block{}/key/kernel", DENSE),
    Entry(f"{_ATTENTION}.v_proj.weight", "block{}/value/kernel", DENSE),
    Entry(f"{_ATTENTION}.o_proj.weight", "block{}/output/kernel", DENSE),
    Entry("layers.{}.post_attention_layernorm.weight", "block{}/norm2/scale"),
    Entry(f"{_MLP}.gate_proj.weight", "block{}/gate/kernel", DENSE),
    Entry(f"{_MLP}.up_proj.weight", "block{}/dense1/kernel", DENSE),
    Entry(f"{_MLP}.down_proj.weight", "block{}/dense2/kernel", DENSE),
    Entry("norm.weight", "norm/scale"),
    Entry("lm_head.weight", "logits/kernel", DENSE),
    Entry("score.weight", "dense/kernel", DENSE, optional=True),
)
BODY, IGNORED = r"(embed_tokens|layers|norm)\.", r".*\.rotary_emb\.inv_freq$"


def form(folder: Folder) -> Form:
    """Returns the names of the arrays of a folder."""
    layers = folder.count("num_hidden_layers")
    return Form(table(ENTRIES, layers), "model.", BODY, IGNORED)


def module(folder: Folder, classes: int) -> nn.Module:
    """Returns the module that the `config.json` of a folder describes.

    Args:
      classes: the size of the vocabulary, or 0: logits of the next token at every
        place; any other number: logits of the whole text, by a head on its last token.

    Raises:
      ValueError: in one line, for a model of another form.
    """
    folder.require("hidden_act", "silu", default="silu")
    for key in ("attention_bias", "mlp_bias"):
        folder.require(key, False, default=False)
    width, heads = folder.count("hidden_size"), folder.count("num_attention_heads")
    groups = folder.count("num_key_value_heads", heads)
    each = folder.count("head_dim", width // heads)
    if heads % groups or each % 2:
        text = "num_key_value_heads to divide num_attention_heads and an even head_dim"
        folder.refuse(text, f"{groups}, {heads} and {each}")
    vocabulary = folder.count("vocab_size")
    return Llama(
        vocabulary if classes in (0, vocabulary) else classes,
        vocabulary=vocabulary,
        width=width,
        depth=folder.count("num_hidden_layers"),
        heads=heads,
        groups=groups,
        each=each,
        hidden=folder.count("intermediate_size"),
        positions=folder.count("max_position_embeddings", 2048),
        theta=_theta(folder),
        epsilon=folder.number("rms_norm_eps", 1e-6),
        tied=folder.require("tie_word_embeddings", True, False, default=False),
        pad=padding(folder),
    )


def _theta(folder: Folder) -> float:
    """Returns the base of rotations, which newer files keep among their parameters."""
    rope = folder.config.get("rope_parameters") or folder.config.get("rope_scaling")
    kind = (rope or {}).get("rope_type", (rope or {}).get("type", "default"))
    if kind != "default":
        folder.refuse("rotations of type 'default'", f"{kind!r}")
    given = {"rope_theta": 10_000.0, **folder.config, **(rope or {})}
    return Folder(folder.path, given).number("rope_theta", 10_000.0)


class Llama(nn.Module):
    """The module of `module`.

    Attributes:
      groups: the number of heads of keys and of values.
      each: the width of a head.
      hidden: the width of a block's inner layer.
      positions: the most tokens of a text.
      theta: the base of rotations.
      tied: whether logits are products with the embeddings.
      pad: the token after the end of a text.
    """

    classes: int
    vocabulary: int
    width: int
    depth: int
    heads: int
    groups: int
    each: int
    hidden: int
    positions: int
    theta: float
    epsilon: float
    tied: bool
    pad: int

    @property
    def padding(self) -> int | None:
        """The target that does not count, where every place has one; else None."""
        return self.pad if self.classes == self.vocabulary else None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns logits of `tokens`, integers [batch, length].

        Returns:
          Logits [batch, length, classes] of the token after each token, or [batch,
          classes] of the text.
        """
        require_tokens(tokens, self.positions)
        length = tokens.shape[1]
        embed = nn.Embed(
            self.vocabulary, self.width, embedding_init=SPREAD, name="tokens"
        )
        x, seen = embed(tokens), jnp.tril(jnp.ones((1, length, length), bool))
        turns = _turns(length, self.each, self.theta)
        for number in range(self.depth):
            block = Block(
                self.heads,
                self.groups,
                self.each,
                self.hidden,
                self.epsilon,
                name=f"block{number + 1}",
            )
            x = block(x, seen, turns)
        x = nn.RMSNorm(self.epsilon, name="norm")(x)
        if self.classes != self.vocabulary:
            places = jnp.arange(length) * (tokens != self.pad)
            x = jnp.take_along_axis(x, places.max(1)[:, None, None], 1)[:, 0]
            return _dense(self.classes, "dense")(x)
        return embed.attend(x) if self.tied else _dense(self.vocabulary, "logits")(x)


class Block(nn.Module):
    """Attention and a gated layer, each on normalised tokens and added to them."""

    heads: int
    groups: int
    each: int
    hidden: int
    epsilon: float

    @nn.compact
    def __call__(
        self, x: jax.Array, mask: jax.Array, turns: tuple[jax.Array, jax.Array]
    ) -> jax.Array:
        """Returns the block's output of tokens `x` [batch, length, width].

        Args:
          x: tokens.
          mask: bool [1, length, length], which places a place may see.
          turns: cosines and sines of each place, [length, each].
        """

        def heads(y, count, name):
            y = _dense(count * self.each, name)(y)
            return y.reshape(*x.shape[:2], count, self.each)

        y = nn.RMSNorm(self.epsilon, name="norm1")(x)
        query = _turned(heads(y, self.heads, "query"), turns)
        key = _turned(heads(y, self.groups, "key"), turns)
        y = attend(query, key, heads(y, self.groups, "value"), mask)
        x = x + _dense(x.shape[-1], "output")(y)
        y = nn.RMSNorm(self.epsilon, name="norm2")(x)
        y = nn.silu(_dense(self.hidden, "gate")(y)) * _dense(self.hidden, "dense1")(y)
        return x + _dense(x.shape[-1], "dense2")(y)


def _dense(features: int, name: str) -> nn.Dense:
    return nn.Dense(features, use_bias=False, kernel_init=SPREAD, name=name)


def _turns(length: int, width: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """Returns cosines and sines of the angles of each place, [length, width]."""
    speeds = theta ** (-jnp.arange(0, width, 2) / width)
    angles = jnp.arange(length)[:, None] * jnp.concatenate([speeds, speeds])
    return jnp.cos(angles), jnp.sin(angles)


def _turned(x: jax.Array, turns: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Returns heads [batch, length, heads, width] turned by their places' angles."""
    cos, sin = (turn[:, None].astype(x.dtype) for turn in turns)
    first, second = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-second, first], -1) * sin
