"""BERT: an encoder, which MiniLM is too, with a head on the mean of a text's tokens.

Reference: Devlin et al. (2019). Names and numbers are those of `transformers`.
"""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from fl_sketch.core import validate
from fl_sketch.core.pretrained import Folder, padding
from fl_sketch.models.huggingface import arrays
from fl_sketch.models.huggingface.arrays import Entry, NameMap
from fl_sketch.models.transformers import SPREAD, mean_of_tokens, require_tokens

ACTIVATIONS = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_new": jax.nn.gelu,
    "relu": jax.nn.relu,
}
COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
DENSE = (  # of a layer, in files and in a block
    ("attention.self.query", "query"),
    ("attention.self.key", "key"),
    ("attention.self.value", "value"),
    ("attention.output.dense", "output"),
    ("intermediate.dense", "dense1"),
    ("output.dense", "dense2"),
)
NORMS = (("attention.output.LayerNorm", "norm1"), ("output.LayerNorm", "norm2"))


def names(folder: Folder) -> NameMap:
    """Returns the names of the arrays of a folder."""
    entries = [
        Entry("embeddings.word_embeddings.weight", "tokens/embedding"),
        Entry("embeddings.position_embeddings.weight", "positions/embedding"),
        Entry("embeddings.token_type_embeddings.weight", "types/embedding"),
        *arrays.norm("embeddings.LayerNorm", "norm"),
        *arrays.dense("classifier", "dense", optional=True),
    ]
    for layer in range(folder.count("num_hidden_layers")):
        hf_name, name = f"encoder.layer.{layer}", f"block{layer + 1}"
        for theirs, ours in DENSE:
            entries += arrays.dense(f"{hf_name}.{theirs}", f"{name}/{ours}")
        for theirs, ours in NORMS:
            entries += arrays.norm(f"{hf_name}.{theirs}", f"{name}/{ours}")
    body, ignored = r"(embeddings|encoder)\.", r"embeddings\.position_ids$"
    return NameMap(entries, "bert.", body, ignored)


def module(folder: Folder, classes: int, *, dropout: float = 0.0) -> nn.Module:
    """Returns the module that the `config.json` of a folder describes.

    Without `classes` it returns the mean of the tokens. In training there is dropout
    after the embeddings, after each part of a block and before the head.
    """
    validate.below_one(dropout=dropout)
    folder.require("position_embedding_type", "absolute", default="absolute")
    folder.require("is_decoder", False, default=False)
    width, heads = folder.count("hidden_size"), folder.count("num_attention_heads")
    if width % heads:
        folder.refuse(f"heads that divide hidden_size={width}", f"{heads} heads")
    config = {key: folder.count(key) for key in COUNTS} | {
        "type_vocab_size": folder.count("type_vocab_size", 2),
        "hidden_act": folder.require("hidden_act", *ACTIVATIONS, default="gelu"),
        "layer_norm_eps": folder.number("layer_norm_eps", 1e-12),
        "pad_token_id": padding(folder),
    }
    return Bert(classes, FrozenDict(config), dropout)


class Bert(nn.Module):
    """The encoder; `config` has what it needs of `config.json`, by the names there."""

    classes: int
    config: Mapping[str, Any]
    dropout: float = 0.0

    @nn.compact
    def __call__(self, tokens: jax.Array, train: bool = False) -> jax.Array:
        """Returns logits [batch, classes] of `tokens`, integers [batch, length]."""
        config = self.config
        require_tokens(tokens, config["max_position_embeddings"])
        drop = nn.Dropout(self.dropout, deterministic=not train)

        def embedded(count, name, indices):
            width = config["hidden_size"]
            table = nn.Embed(config[count], width, embedding_init=SPREAD, name=name)
            return table(indices)

        positions = jnp.arange(tokens.shape[1])
        x = embedded("vocab_size", "tokens", tokens)
        x += embedded("max_position_embeddings", "positions", positions)
        x += embedded("type_vocab_size", "types", jnp.zeros(1, jnp.int32))
        x = drop(_norm(config, "norm")(x))
        is_token = tokens != config["pad_token_id"]
        for number in range(config["num_hidden_layers"]):
            block = Block(config, self.dropout, name=f"block{number + 1}")
            x = block(x, is_token[:, None], train)
        x = mean_of_tokens(x, is_token)
        if not self.classes:
            return x
        return nn.Dense(self.classes, kernel_init=SPREAD, name="dense")(drop(x))


class Block(nn.Module):
    """Attention and two dense layers, each normalised after it is added."""

    config: Mapping[str, Any]
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, train: bool = False) -> jax.Array:
        """Returns the block's output of tokens `x` [batch, length, width].

        The mask, bool [batch, 1, length], has the positions that there are to see.
        """
        config, width = self.config, x.shape[-1]
        drop = nn.Dropout(self.dropout, deterministic=not train)

        def heads(name):
            y = nn.Dense(width, name=name)(x)
            return y.reshape(*x.shape[:2], config["num_attention_heads"], -1)

        y = attend(heads("query"), heads("key"), heads("value"), mask)
        y = drop(nn.Dense(width, name="output")(y))
        x = _norm(config, "norm1")(x + y)
        y = nn.Dense(config["intermediate_size"], name="dense1")(x)
        y = nn.Dense(width, name="dense2")(ACTIVATIONS[config["hidden_act"]](y))
        return _norm(config, "norm2")(x + drop(y))


def _norm(config: Mapping[str, Any], name: str) -> nn.LayerNorm:
    return nn.LayerNorm(config["layer_norm_eps"], use_fast_variance=False, name=name)


def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array
) -> jax.Array:
    """Returns the attention of each position to the positions that it may see.

    All are [batch, length, heads, width]. Keys and values may have a divisor of the
    queries' heads: each is then used by several consecutive ones. The mask, bool,
    [batch or 1, length or 1, length], has the positions to which each one attends.
    """
    batch, length, heads, width = query.shape
    groups = key.shape[2]
    query = query.reshape(batch, length, groups, heads // groups, width)
    scores = jnp.einsum("bqghd,bkgd->bghqk", query, key) * width**-0.5
    scores = jnp.where(mask[:, None, None], scores, jnp.finfo(scores.dtype).min)
    shares = jax.nn.softmax(scores)
    taken = jnp.einsum("bghqk,bkgd->bqghd", shares, value)
    return taken.reshape(batch, length, heads * width)
