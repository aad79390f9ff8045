"""A transformer of image patches, of sentences, or of the characters of a text.

Blocks are normalised before each part, so that they train from scratch without a
warm-up.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fl_sketch.core import validate
from fl_sketch.core.tokens import PAD
from fl_sketch.models.classifiers import images

READS = ("tokens", "patches", "causal")
WIDENING = 4  # of the hidden layer of a block
SPREAD = nn.initializers.normal(0.02)  # of embeddings


class Transformer(nn.Module):
    """A transformer that is normalised before each part.

    Attributes:
      classes: the number of logits, of an input or, if causal, of every position.
      reads: "tokens": sentences, both ways, as BERT does; "patches": of images, with
        the mean of all positions for a class token; "causal": texts, of which each
        position sees what came before. Then `classes` is the number of tokens.
      vocabulary: the number of different tokens of sentences, `PAD` included.
      patch: the height and width of a patch, which divide those of the image.
      width: that of a token.
      depth: the number of blocks.
      heads: those of attention, which divide the width.
      dropout: the rate in training, after the embeddings and after each part of a
        block, as in the first transformer. The papers have 0.1.

    References: Devlin et al. (2019), without pre-training; Dosovitskiy et al. (2021).
    Width 768, depth 12 and 12 heads are BERT-base and ViT-B.
    """

    classes: int
    reads: str = "tokens"
    vocabulary: int = 8192
    patch: int = 4
    width: int = 64
    depth: int = 2
    heads: int = 4
    dropout: float = 0.0

    def __post_init__(self):
        names = ("vocabulary", "patch", "width", "depth", "heads")
        validate.at_least_one(**{name: getattr(self, name) for name in names})
        validate.one_of(READS, reads=self.reads)
        validate.below_one(dropout=self.dropout)
        if self.width % self.heads:
            msg = f"Expected heads to divide width={self.width}, "
            raise ValueError(msg + f"got heads={self.heads}.")
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs: jax.Array, train: bool = False) -> jax.Array:
        """Returns logits [batch, classes], or of what follows each token.

        Inputs are tokens, integers [batch, length], or float images in NHWC order.
        """
        mask = None
        if self.reads == "patches":
            x = nn.Dense(self.width, name="patches")(_patches(inputs, self.patch))
        else:
            require_tokens(inputs)
            size = self.classes if self.reads == "causal" else self.vocabulary
            embed = nn.Embed(size, self.width, embedding_init=SPREAD, name="tokens")
            x = embed(inputs)
            mask = (inputs != PAD)[:, None, None, :]
        if self.reads == "causal":
            mask = nn.make_causal_mask(inputs)
        x = x + self.param("positions", SPREAD, x.shape[1:])
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        for number in range(self.depth):
            block = Block(self.heads, self.dropout, name=f"block{number + 1}")
            x = block(x, mask, train)
        x = nn.LayerNorm(name="norm")(x)
        if self.reads == "patches":
            x = x.mean(1)
        if self.reads == "tokens":
            x = mean_of_tokens(x, inputs != PAD)
        return nn.Dense(self.classes, name="dense")(x)


class Block(nn.Module):
    """Attention and two dense layers, each added to a shortcut."""

    heads: int
    dropout: float

    @nn.compact
    def __call__(
        self, x: jax.Array, mask: jax.Array | None, train: bool = False
    ) -> jax.Array:
        """Returns the block's output of tokens `x` [batch, length, width].

        The mask has the positions that a position may attend to; None: all.
        """

        def dropped(y):
            return nn.Dropout(self.dropout, deterministic=not train)(y)

        attend = nn.MultiHeadDotProductAttention(self.heads, name="attention")
        x = x + dropped(attend(nn.LayerNorm(name="norm1")(x), mask=mask))
        y = nn.LayerNorm(name="norm2")(x)
        y = nn.gelu(nn.Dense(WIDENING * x.shape[-1], name="dense1")(y))
        return x + dropped(nn.Dense(x.shape[-1], name="dense2")(y))


def mean_of_tokens(x: jax.Array, is_token: jax.Array) -> jax.Array:
    """Returns the mean [batch, width] of the positions of `x` that are tokens."""
    weights = is_token / jnp.maximum(is_token.sum(1, keepdims=True), 1)
    return (x * weights.astype(x.dtype)[..., None]).sum(1)


def require_tokens(tokens: jax.Array, most: int | None = None) -> None:
    """Raises unless `tokens` are integers [batch, length] of at most `most` tokens."""
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        msg = (
            "Expected integer tokens of shape (batch, length), "
            f"got {tokens.dtype} of shape {tokens.shape}."
        )
        raise TypeError(msg)
    if most is not None:
        validate.at_most(most, "the positions of the model", length=tokens.shape[1])


def _patches(inputs: jax.Array, patch: int) -> jax.Array:
    """Returns the pixels of each patch: [batch, patches, patch * patch * channels]."""
    batch, height, width, channels = images(inputs).shape
    if height % patch or width % patch:
        msg = f"Expected images with sides divisible by patch={patch}, got "
        raise ValueError(msg + f"{height}x{width}.")
    rows, cols = height // patch, width // patch
    tiles = inputs.reshape(batch, rows, patch, cols, patch, channels)
    return tiles.swapaxes(2, 3).reshape(batch, rows * cols, patch * patch * channels)
