"""Transformers: of image patches, of sentences, and of the characters of a text.

All consist of the same blocks, normalised before each part, so that they train from
scratch without a warm-up. `width` is that of a token, `depth` the number of blocks, and
`heads`, those of attention, divide the width. `dropout` is a rate in training, after
the embeddings and after each part of a block, as in the first transformer. The papers
have 0.1.

>>> import jax, jax.numpy as jnp
>>> model = transformer(2, vocabulary=50, width=8, depth=1, heads=2)
>>> tokens = jnp.array([[2, 7, 9, PAD]])
>>> params = model.init(jax.random.key(0), tokens)["params"]
>>> model.apply({"params": params}, tokens).shape
(1, 2)
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fl_sketch.core import validate
from fl_sketch.core.tokens import PAD

WIDENING = 4  # of the hidden layer of a block
SPREAD = nn.initializers.normal(0.02)  # of embeddings


def vit(
    classes: int,
    *,
    patch: int = 4,
    width: int = 64,
    depth: int = 4,
    heads: int = 4,
    dropout: float = 0.0,
) -> nn.Module:
    """A transformer of image patches: 207,946 parameters on 32x32x3 and 10 classes.

    `patch` is the height and width of a patch, which divide those of the image. The
    module describes the other options.

    Reference: Dosovitskiy et al. (2021), with the mean of all tokens for a class
    token. Width 768, depth 12 and 12 heads are ViT-B.
    """
    validate.at_least_one(classes=classes, patch=patch)
    _check(width, depth, heads, dropout)
    return Vit(classes, patch, width, depth, heads, dropout)


def transformer(
    classes: int,
    *,
    vocabulary: int = 8192,
    width: int = 64,
    depth: int = 2,
    heads: int = 4,
    dropout: float = 0.0,
) -> nn.Module:
    """A transformer over the tokens of a sentence, both ways, as BERT is.

    `vocabulary` is the number of tokens, `PAD` included. The module describes the other
    options.

    Reference: Devlin et al. (2019), normalised before each part and without
    pre-training. Width 768, depth 12 and 12 heads are BERT-base.
    """
    validate.at_least_one(classes=classes, vocabulary=vocabulary)
    _check(width, depth, heads, dropout)
    return Transformer(classes, vocabulary, width, depth, heads, dropout)


def language_model(
    classes: int,
    *,
    width: int = 64,
    depth: int = 2,
    heads: int = 4,
    dropout: float = 0.0,
) -> nn.Module:
    """Logits of the next token at every place, from the tokens up to it.

    `classes` is the number of tokens, of inputs and outputs. The module describes the
    options.
    """
    validate.at_least_one(classes=classes)
    _check(width, depth, heads, dropout)
    return LanguageModel(classes, width, depth, heads, dropout)


def _check(width: int, depth: int, heads: int, dropout: float) -> None:
    validate.at_least_one(width=width, depth=depth, heads=heads)
    validate.below_one(dropout=dropout)
    if width % heads:
        msg = f"Expected heads to divide width={width}, got heads={heads}."
        raise ValueError(msg)


class Vit(nn.Module):
    """The module of `vit`."""

    classes: int
    patch: int
    width: int
    depth: int
    heads: int
    dropout: float

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """Returns logits [batch, classes] of float `images` in NHWC order."""
        x = nn.Dense(self.width, name="patches")(_patches(images, self.patch))
        x = _blocks(self, x, train, mask=None)
        return nn.Dense(self.classes, name="dense")(x.mean(1))


class Transformer(nn.Module):
    """The module of `transformer`."""

    classes: int
    vocabulary: int
    width: int
    depth: int
    heads: int
    dropout: float

    @nn.compact
    def __call__(self, tokens: jax.Array, train: bool = False) -> jax.Array:
        """Returns logits [batch, classes] of `tokens`, integers [batch, length]."""
        x, there = _embedded(tokens, self.vocabulary, self.width), tokens != PAD
        x = _blocks(self, x, train, mask=there[:, None, None, :])
        weights = there / jnp.maximum(there.sum(1, keepdims=True), 1)
        weights = weights.astype(x.dtype)
        return nn.Dense(self.classes, name="dense")((x * weights[..., None]).sum(1))


class LanguageModel(nn.Module):
    """The module of `language_model`."""

    classes: int
    width: int
    depth: int
    heads: int
    dropout: float

    @nn.compact
    def __call__(self, tokens: jax.Array, train: bool = False) -> jax.Array:
        """Returns logits [batch, length, classes] of what follows each of `tokens`."""
        x = _embedded(tokens, self.classes, self.width)
        x = _blocks(self, x, train, mask=nn.make_causal_mask(tokens))
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

        Args:
          x: tokens.
          mask: bool, which places a place may attend to; None: all.
          train: whether there is dropout.
        """

        def dropped(y):
            return nn.Dropout(self.dropout, deterministic=not train)(y)

        attend = nn.MultiHeadDotProductAttention(self.heads, name="attention")
        x = x + dropped(attend(nn.LayerNorm(name="norm1")(x), mask=mask))
        y = nn.LayerNorm(name="norm2")(x)
        y = nn.gelu(nn.Dense(WIDENING * x.shape[-1], name="dense1")(y))
        return x + dropped(nn.Dense(x.shape[-1], name="dense2")(y))


def _blocks(model, x: jax.Array, train: bool, mask) -> jax.Array:
    """Returns tokens after positions are added, all blocks and a normalisation."""
    x = x + model.param("positions", SPREAD, x.shape[1:])
    x = nn.Dropout(model.dropout, deterministic=not train)(x)
    for number in range(model.depth):
        block = Block(model.heads, model.dropout, name=f"block{number + 1}")
        x = block(x, mask, train)
    return nn.LayerNorm(name="norm")(x)


def _embedded(tokens: jax.Array, vocabulary: int, width: int) -> jax.Array:
    require_tokens(tokens)
    return nn.Embed(vocabulary, width, embedding_init=SPREAD, name="tokens")(tokens)


def require_tokens(tokens: jax.Array, most: int | None = None) -> None:
    """Raises unless `tokens` are integers [batch, length] of at most `most` tokens."""
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        msg = (
            "Expected integer tokens of shape (batch, length), "
            f"got {tokens.dtype} of shape {tokens.shape}."
        )
        raise TypeError(msg)
    if most is not None:
        validate.at_most(most, "the places of the model", length=tokens.shape[1])


def _patches(images: jax.Array, patch: int) -> jax.Array:
    """Returns the pixels of each patch: [batch, patches, patch * patch * channels]."""
    if images.ndim != 4 or images.shape[1] % patch or images.shape[2] % patch:
        msg = (
            "Expected images of shape (batch, height, width, channels), sides "
            f"divisible by patch={patch}, got shape {images.shape}."
        )
        raise ValueError(msg)
    if not jnp.issubdtype(images.dtype, jnp.floating):
        msg = f"Expected inputs of a float type, got {images.dtype}."
        raise TypeError(msg)
    batch, height, width, channels = images.shape
    rows, cols = height // patch, width // patch
    tiles = images.reshape(batch, rows, patch, cols, patch, channels)
    return tiles.swapaxes(2, 3).reshape(batch, rows * cols, patch * patch * channels)
