"""BERT: an encoder, which MiniLM is too, with a head on one vector of a text.

Reference: Devlin et al. (2019). Names and numbers are those of `transformers`.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from fl_sketch.core import validate
from fl_sketch.core.pretrained import Folder, padding
from fl_sketch.models.huggingface.arrays import DENSE, Entry, Form, table
from fl_sketch.models.huggingface.attention import attend
from fl_sketch.models.transformers import SPREAD, require_tokens

POOLS = ("mean", "first")
ACTIVATIONS = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_new": jax.nn.gelu,
    "relu": jax.nn.relu,
}
_ATTENTION = "encoder.layer.{}.attention"
_LAYER = "encoder.layer.{}"
ENTRIES = (
    Entry("embeddings.word_embeddings.weight", "tokens/embedding"),
    Entry("embeddings.position_embeddings.weight", "positions/embedding"),
    Entry("embeddings.token_type_embeddings.weight", "types/embedding"),
    Entry("embeddings.LayerNorm.weight", "norm/scale"),
    Entry("embeddings.LayerNorm.bias", "norm/bias"),
    *(
        entry
        for theirs, ours in (
            (f"{_ATTENTION}.self.query", "block{}/query"),
            (f"{_ATTENTION}.self.key", "block{}/key"),
            (f"{_ATTENTION}.self.value", "block{}/value"),
            (f"{_ATTENTION}.output.dense", "block{}/output"),
            (f"{_LAYER}.intermediate.dense", "block{}/dense1"),
            (f"{_LAYER}.output.dense", "block{}/dense2"),
        )
        for entry in (
            Entry(f"{theirs}.weight", f"{ours}/kernel", DENSE),
            Entry(f"{theirs}.bias", f"{ours}/bias"),
        )
    ),
    Entry(f"{_ATTENTION}.output.LayerNorm.weight", "block{}/norm1/scale"),
    Entry(f"{_ATTENTION}.output.LayerNorm.bias", "block{}/norm1/bias"),
    Entry(f"{_LAYER}.output.LayerNorm.weight", "block{}/norm2/scale"),
    Entry(f"{_LAYER}.output.LayerNorm.bias", "block{}/norm2/bias"),
    Entry("pooler.dense.weight", "pooler/kernel", DENSE, optional=True),
    Entry("pooler.dense.bias", "pooler/bias", optional=True),
    Entry("classifier.weight", "dense/kernel", DENSE, optional=True),
    Entry("classifier.bias", "dense/bias", optional=True),
)
BODY, IGNORED = r"(embeddings|encoder)\.", r"embeddings\.position_ids$"


def form(folder: Folder) -> Form:
    """Returns the names of the arrays of a folder."""
    layers = folder.count("num_hidden_layers")
    return Form(table(ENTRIES, layers), "bert.", BODY, IGNORED)


def module(
    folder: Folder, classes: int, *, pool: str = "mean", dropout: float = 0.0
) -> nn.Module:
    """Returns the module that the `config.json` of a folder describes.

    Args:
      classes: the number of logits; 0: the vector itself, without a head.
      pool: "mean": the vector is the mean of all tokens; "first": it is that of the
        first token, after a dense layer and tanh.
      dropout: the rate in training, after the embeddings, after each part of a block
        and before the head.

    Raises:
      ValueError: in one line, for a model of another form.
    """
    validate.one_of(POOLS, pool=pool)
    validate.below_one(dropout=dropout)
    folder.require("position_embedding_type", "absolute", default="absolute")
    folder.require("is_decoder", False, default=False)
    width, heads = folder.count("hidden_size"), folder.count("num_attention_heads")
    if width % heads:
        folder.refuse(f"heads that divide hidden_size={width}", f"{heads} heads")
    return Bert(
        classes,
        vocabulary=folder.count("vocab_size"),
        width=width,
        depth=folder.count("num_hidden_layers"),
        heads=heads,
        hidden=folder.count("intermediate_size"),
        positions=folder.count("max_position_embeddings"),
        types=folder.count("type_vocab_size", 2),
        activation=folder.require("hidden_act", *ACTIVATIONS, default="gelu"),
        epsilon=folder.number("layer_norm_eps", 1e-12),
        pad=padding(folder),
        pool=pool,
        dropout=dropout,
    )


class Bert(nn.Module):
    """The module of `module`.

    Attributes:
      hidden: the width of a block's inner layer.
      positions: the number of embeddings of places, the most tokens of a text.
      types: the number of embeddings of segments, of which the first one is used.
      pad: the token after the end of a text, which no place sees.
    """

    classes: int
    vocabulary: int
    width: int
    depth: int
    heads: int
    hidden: int
    positions: int
    types: int
    activation: str
    epsilon: float
    pad: int
    pool: str
    dropout: float

    @nn.compact
    def __call__(self, tokens: jax.Array, train: bool = False) -> jax.Array:
        """Returns logits [batch, classes] of `tokens`, integers [batch, length]."""
        require_tokens(tokens, self.positions)
        there = tokens != self.pad
        drop = nn.Dropout(self.dropout, deterministic=not train)
        x = _table(self.vocabulary, self.width, "tokens")(tokens)
        places = jnp.arange(tokens.shape[1])
        x += _table(self.positions, self.width, "positions")(places)
        x += _table(self.types, self.width, "types")(jnp.zeros(1, jnp.int32))
        x = drop(_norm(self.epsilon, "norm")(x))
        for number in range(self.depth):
            block = Block(
                self.heads,
                self.hidden,
                self.activation,
                self.epsilon,
                self.dropout,
                name=f"block{number + 1}",
            )
            x = block(x, there[:, None], train)
        if self.pool == "first":
            x = jnp.tanh(nn.Dense(self.width, name="pooler")(x[:, 0]))
        else:
            shares = there / jnp.maximum(there.sum(1, keepdims=True), 1)
            x = (x * shares.astype(x.dtype)[..., None]).sum(1)
        if not self.classes:
            return x
        return nn.Dense(self.classes, kernel_init=SPREAD, name="dense")(drop(x))


class Block(nn.Module):
    """Attention and two dense layers, each normalised after it is added."""

    heads: int
    hidden: int
    activation: str
    epsilon: float
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, train: bool = False) -> jax.Array:
        """Returns the block's output of tokens `x` [batch, length, width].

        Args:
          x: tokens.
          mask: bool [batch, 1, length], which places there are to see.
          train: whether there is dropout.
        """
        width = x.shape[-1]
        drop = nn.Dropout(self.dropout, deterministic=not train)

        def heads(name):
            y = nn.Dense(width, name=name)(x)
            return y.reshape(*x.shape[:2], self.heads, width // self.heads)

        y = attend(heads("query"), heads("key"), heads("value"), mask)
        y = drop(nn.Dense(width, name="output")(y))
        x = _norm(self.epsilon, "norm1")(x + y)
        y = nn.Dense(self.hidden, name="dense1")(x)
        y = nn.Dense(width, name="dense2")(ACTIVATIONS[self.activation](y))
        return _norm(self.epsilon, "norm2")(x + drop(y))


def _table(rows: int, width: int, name: str) -> nn.Embed:
    return nn.Embed(rows, width, embedding_init=SPREAD, name=name)


def _norm(epsilon: float, name: str) -> nn.LayerNorm:
    return nn.LayerNorm(epsilon, use_fast_variance=False, name=name)
