"""Llama: a decoder, which SmolLM2 is too, with logits of the next token or a head.

References: Touvron et al. (2023); Su et al. (2021) on rotations; Ainslie et al. (2023)
on heads that share keys. Names and numbers are those of `transformers`.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from fl_sketch.core.pretrained import Folder, padding
from fl_sketch.models.huggingface.arrays import Entry, NameMap
from fl_sketch.models.huggingface.bert import attend
from fl_sketch.models.transformers import SPREAD, require_tokens

COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
DENSE = (  # of a layer, in files and in a block
    ("self_attn.q_proj", "query"),
    ("self_attn.k_proj", "key"),
    ("self_attn.v_proj", "value"),
    ("self_attn.o_proj", "output"),
    ("mlp.gate_proj", "gate"),
    ("mlp.up_proj", "dense1"),
    ("mlp.down_proj", "dense2"),
)
NORMS = (("input_layernorm", "norm1"), ("post_attention_layernorm", "norm2"))


def names(folder: Folder) -> NameMap:
    """Returns the names of the arrays of a folder."""
    entries = [
        Entry("embed_tokens.weight", "tokens/embedding"),
        Entry("norm.weight", "norm/scale"),
        Entry("lm_head.weight", "logits/kernel", transposed=True),
        Entry("score.weight", "dense/kernel", transposed=True, optional=True),
    ]
    for layer in range(folder.count("num_hidden_layers")):
        hf_name, name = f"layers.{layer}", f"block{layer + 1}"
        for theirs, ours in DENSE:
            kernel = f"{name}/{ours}/kernel"
            entries.append(Entry(f"{hf_name}.{theirs}.weight", kernel, transposed=True))
        for theirs, ours in NORMS:
            scale = f"{name}/{ours}/scale"
            entries.append(Entry(f"{hf_name}.{theirs}.weight", scale))
    body, ignored = r"(embed_tokens|layers|norm)\.", r".*\.rotary_emb\.inv_freq$"
    return NameMap(entries, "model.", body, ignored)


def module(folder: Folder, classes: int) -> nn.Module:
    """Returns the module that the `config.json` of a folder describes.

    Args:
      classes: the size of the vocabulary, or 0: logits of the next token at every
        position; any other number: logits of the text, by a head on its last token.
    """
    folder.require("hidden_act", "silu", default="silu")
    for key in ("attention_bias", "mlp_bias"):
        folder.require(key, False, default=False)
    config = {key: folder.count(key) for key in COUNTS}
    heads = config["num_attention_heads"]
    groups = folder.count("num_key_value_heads", heads)
    each = folder.count("head_dim", config["hidden_size"] // heads)
    if heads % groups or each % 2:
        text = "num_key_value_heads to divide num_attention_heads and an even head_dim"
        folder.refuse(text, f"{groups}, {heads} and {each}")
    tied = folder.require("tie_word_embeddings", True, False, default=False)
    config |= {
        "num_key_value_heads": groups,
        "head_dim": each,
        "max_position_embeddings": folder.count("max_position_embeddings", 2048),
        "rope_theta": _theta(folder),
        "rms_norm_eps": folder.number("rms_norm_eps", 1e-6),
        "tie_word_embeddings": tied,
        "pad_token_id": padding(folder),
    }
    return Llama(classes or folder.count("vocab_size"), FrozenDict(config))


def _theta(folder: Folder) -> float:
    """Returns the base of rotations, which newer files keep among their parameters."""
    rope = folder.config.get("rope_parameters") or folder.config.get("rope_scaling")
    kind = (rope or {}).get("rope_type", (rope or {}).get("type", "default"))
    if kind != "default":
        folder.refuse("rotations of type 'default'", f"{kind!r}")
    given = {"rope_theta": 10_000.0, **folder.config, **(rope or {})}
    return Folder(folder.path, given).number("rope_theta", 10_000.0)


class Llama(nn.Module):
    """The decoder; `config` has what it needs of `config.json`, by the names there."""

    classes: int
    config: Mapping[str, Any]

    @property
    def padding(self) -> int | None:
        """The target that does not count, where every position has one; else None."""
        generates = self.classes == self.config["vocab_size"]
        return self.config["pad_token_id"] if generates else None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns logits of `tokens`, integers [batch, length].

        Returns:
          Logits [batch, length, classes] of the token after each token, or [batch,
          classes] of the text.
        """
        config, length = self.config, tokens.shape[1]
        require_tokens(tokens, config["max_position_embeddings"])
        vocabulary, width = config["vocab_size"], config["hidden_size"]
        embed = nn.Embed(vocabulary, width, embedding_init=SPREAD, name="tokens")
        x, seen = embed(tokens), jnp.tril(jnp.ones((1, length, length), bool))
        # Cosines and sines of the angles of each position, [length, width of a head].
        each = config["head_dim"]
        speeds = config["rope_theta"] ** (-jnp.arange(0, each, 2) / each)
        angles = jnp.arange(length)[:, None] * jnp.concatenate([speeds, speeds])
        turns = jnp.cos(angles), jnp.sin(angles)
        for number in range(config["num_hidden_layers"]):
            x = Block(config, name=f"block{number + 1}")(x, seen, turns)
        x = _norm(config, "norm")(x)
        if self.classes != vocabulary:
            places = jnp.arange(length) * (tokens != config["pad_token_id"])
            x = jnp.take_along_axis(x, places.max(1)[:, None, None], 1)[:, 0]
            return _dense(self.classes, "dense")(x)
        if config["tie_word_embeddings"]:
            return embed.attend(x)
        return _dense(vocabulary, "logits")(x)


class Block(nn.Module):
    """Attention and a gated layer, each on normalised tokens and added to them."""

    config: Mapping[str, Any]

    @nn.compact
    def __call__(
        self, x: jax.Array, mask: jax.Array, turns: tuple[jax.Array, jax.Array]
    ) -> jax.Array:
        """Returns the block's output of tokens `x` [batch, length, width].

        Args:
          x: tokens.
          mask: bool [1, length, length], which positions a position may see.
          turns: cosines and sines of each position, [length, width of a head].
        """
        config = self.config

        def heads(count, name):
            z = _dense(config[count] * config["head_dim"], name)(y)
            return z.reshape(*x.shape[:2], config[count], config["head_dim"])

        y = _norm(config, "norm1")(x)
        query = _turned(heads("num_attention_heads", "query"), turns)
        key = _turned(heads("num_key_value_heads", "key"), turns)
        value = heads("num_key_value_heads", "value")
        x = x + _dense(x.shape[-1], "output")(attend(query, key, value, mask))
        y, hidden = _norm(config, "norm2")(x), config["intermediate_size"]
        y = nn.silu(_dense(hidden, "gate")(y)) * _dense(hidden, "dense1")(y)
        return x + _dense(x.shape[-1], "dense2")(y)


def _dense(features: int, name: str) -> nn.Dense:
    return nn.Dense(features, use_bias=False, kernel_init=SPREAD, name=name)


def _norm(config: Mapping[str, Any], name: str) -> nn.RMSNorm:
    return nn.RMSNorm(config["rms_norm_eps"], name=name)


def _turned(x: jax.Array, turns: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Returns heads [batch, length, heads, width] turned by their positions' angles."""
    cos, sin = (turn[:, None].astype(x.dtype) for turn in turns)
    first, second = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-second, first], -1) * sin
