"""Every compressor and every channel in a list each: a new one is a row, and tested."""

import enum
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fl_sketch import channels, sketch
from fl_sketch.core.protocols import Channel, Compressor
from fl_sketch.sketch import compressors
from tests.oracles import compression

D = 32  # a power of two: places have no bit to spare


class CompressorRow(NamedTuple):
    """One compressor."""

    make: Callable[..., Compressor]  # the public function that makes it
    arguments: Callable[[int], tuple]  # its arguments for a vector of length d
    bits: int  # on the wire, for D numbers
    error: Callable[[np.ndarray], float] | None  # E|x_hat - x|^2; None: no formula
    promised: Callable[[np.ndarray], float]  # what that is at most
    options: dict[str, Any] = {}  # more arguments
    nothing: float = 0.0  # what a zero becomes
    lot: bool = False  # whether it may leave any number out

    def at(self, d: int) -> Compressor:
        """Returns it for vectors of length d."""
        return self.make(*self.arguments(d), **self.options)


def few(k):
    """Returns the argument of what keeps k numbers, or all of a shorter vector."""
    return lambda d: (min(k, d),)


def levels(count):
    return lambda d: (count,)


def qsgd_at_most(levels):
    """The variance of Alistarh et al., in parts of |x|^2."""
    return lambda d: min(d / levels**2, math.sqrt(d) / levels)


def top_and_sign(d):
    return compressors.top_k(min(5, d)), compressors.scaled_sign()


def cocktail(d):
    return (
        compressors.random_k(min(16, d), unbiased=False),
        compressors.top_k(min(5, d)),
        compressors.nearest(7),
    )


def random_and_qsgd(d):
    return compressors.random_k(min(12, d)), compressors.qsgd(4)


NO_ARGUMENTS = lambda d: ()  # noqa: E731
SHRINKS = compression.at_most(lambda d: 1)
LESS_FIVE = compression.at_most(lambda d: 1 - 5 / d)
COMPRESSORS = {
    "top_k": CompressorRow(
        compressors.top_k, few(5), 5 * (32 + 5), compression.top_k(5), LESS_FIVE
    ),
    "random_k": CompressorRow(
        compressors.random_k, few(5), 5 * 32 + 64, compression.random_k(5),
        compression.at_most(lambda d: d / 5 - 1), lot=True,
    ),
    "random_k_biased": CompressorRow(
        compressors.random_k, few(5), 5 * 32 + 64, compression.random_k_biased(5),
        LESS_FIVE, options={"unbiased": False}, lot=True,
    ),
    "sign": CompressorRow(
        compressors.sign, NO_ARGUMENTS, D, compression.sign, compression.sign, nothing=1
    ),
    "scaled_sign": CompressorRow(
        compressors.scaled_sign, NO_ARGUMENTS, D + 32, compression.scaled_sign, SHRINKS
    ),
    "qsgd": CompressorRow(
        compressors.qsgd, levels(2), D * (1 + 2) + 32, compression.qsgd(2),
        compression.at_most(qsgd_at_most(2)),
    ),
    "qsgd_one_level": CompressorRow(
        compressors.qsgd, levels(1), D * (1 + 1) + 32, compression.qsgd(1),
        compression.at_most(qsgd_at_most(1)),
    ),
    "nearest": CompressorRow(
        compressors.nearest, levels(4), D * (1 + 3) + 32, compression.nearest(4),
        compression.nearest_at_most(4),
    ),
    "nearest_one_level": CompressorRow(
        compressors.nearest, levels(1), D * (1 + 1) + 32, compression.nearest(1),
        compression.nearest_at_most(1),
    ),
    "top_then_sign": CompressorRow(
        compressors.then, top_and_sign, 5 * (1 + 5) + 32, compression.top_then_sign(5),
        SHRINKS,
    ),
    "cocktail": CompressorRow(
        compressors.then, cocktail, 5 * (1 + 3) + 32 + 5 * 4 + 64, None, SHRINKS,
        lot=True,
    ),
    "unbiased_cocktail": CompressorRow(
        compressors.then, random_and_qsgd, 12 * (1 + 3) + 32 + 64, None,
        # (1 + a) (1 + b) - 1, of the two.
        compression.at_most(lambda d: d / 12 * (1 + qsgd_at_most(4)(12)) - 1), lot=True,
    ),
}  # fmt: skip


class Claim(enum.Flag):
    """What a channel promises beside what all must keep.

    ADDITIVE: the estimate of a sum is the sum of the estimates.
    MEAN: the estimate is the mean of what clients' own messages stood for.
    UNBIASED: over keys the estimate is the update.
    """

    NOTHING = 0
    ADDITIVE = enum.auto()
    MEAN = enum.auto()
    UNBIASED = enum.auto()


ALL = Claim.ADDITIVE | Claim.MEAN | Claim.UNBIASED


class ChannelRow(NamedTuple):
    """One channel."""

    make: Callable[[int], Channel]  # for updates of d numbers
    claims: Claim
    bits: tuple[int, ...]  # all that a client's messages of a round may have, for D
    messages: int = 1  # that a client sends in a round
    told: int = 0  # bits of what the server says between them
    compressor: str = ""  # the row of what makes its message, if that is not floats
    # `(update, client's memory) -> ` what the compressor was given.
    given: Callable[[Any, Any], Any] = lambda update, memory: update
    pairs: bool = False  # whether it asks for the update with its change
    keeps: str = ""  # of a client: "errors" it made, or "estimates" of its updates
    chosen: bool = False  # whether the server asks for a part of the messages
    empty: bool = True  # whether a tree may have leaves without numbers

    def asked(self, update, before):
        """Returns what the channel asks for, of an update and the one before."""
        if not self.pairs:
            return update
        return update, jax.tree.map(lambda new, old: new - old, update, before)


def always(channel: Channel) -> Callable[[int], Channel]:
    """Returns what makes the same channel for all lengths."""
    return lambda d: channel


def compressed(name: str) -> Callable[[int], Channel]:
    return lambda d: channels.compressed(COMPRESSORS[name].at(d))


def feedback(make: Callable[[int], Channel]) -> Callable[[int], Channel]:
    return lambda d: channels.error_feedback(make(d))


def owed(update, memory):
    """Returns what an error memory makes of an update."""
    return jax.tree.map(lambda new, error: new + error, update, memory[0])


def changed(update, memory):
    """Returns how an update differs from what is known of it."""
    return jax.tree.map(lambda new, known: new - known, update, memory[0])


def feedback_over(name: str) -> ChannelRow:
    """Returns the row of error feedback over a compressor."""
    return ChannelRow(
        feedback(compressed(name)), Claim.MEAN, (COMPRESSORS[name].bits,),
        compressor=name, given=owed, keeps="errors",
    )  # fmt: skip


def difference_over(name: str) -> ChannelRow:
    """Returns the row of a running estimate over a compressor."""
    return ChannelRow(
        lambda d: channels.difference(compressed(name)(d)), Claim.MEAN,
        (COMPRESSORS[name].bits,), compressor=name, given=changed, keeps="estimates",
    )  # fmt: skip


def heavy(make, **options) -> Callable[[int], Channel]:
    return lambda d: make(HASHED, min(5, d), **options)


def asking(make, claims, bits, **options) -> ChannelRow:
    """Returns the row of a channel whose server asks for the values at some places."""
    return ChannelRow(make, claims, (bits,), messages=2, told=PLACES, **options)


# Half of the numbers that they are given. Where any will do, the one that compiles in
# the shortest time.
ANY = sketch.ams(12)
HASHED = sketch.count_sketch(12)
MEDIAN = sketch.count_sketch(4, rows=3)
SKETCH = 12 * 32  # bits of each
HEAVY = SKETCH + 5 * 32  # with five values
PLACES = 5 * 5  # bits that say where five of D numbers are
LIMIT = 2.5
SKETCHED = channels.sketched(ANY)
VALUES, HEAPRIX = channels.heavy_values, channels.heaprix
NONE, MEAN, UNBIASED = Claim.NOTHING, Claim.MEAN, Claim.UNBIASED

CHANNELS = {
    "exact": ChannelRow(always(channels.exact()), ALL, (D * 32,)),
    "sketched": ChannelRow(always(SKETCHED), ALL, (SKETCH,)),
    "sketched_median": ChannelRow(
        always(channels.sketched(MEDIAN, read="estimate")), NONE, (SKETCH,)
    ),
    "sketched_message": ChannelRow(
        always(channels.sketched(ANY, read="message")), Claim.ADDITIVE | MEAN, (SKETCH,)
    ),
    "sketched_leaves": ChannelRow(
        always(channels.sketched(sketch.leaf_by_leaf(ANY))), ALL, (SKETCH,), empty=False
    ),
    "halves": ChannelRow(
        always(channels.halves(sketch.ams(24))), Claim.ADDITIVE | MEAN, (2 * SKETCH,)
    ),
    "compressed": ChannelRow(
        compressed("qsgd"), MEAN | UNBIASED, (COMPRESSORS["qsgd"].bits,),
        compressor="qsgd",
    ),
    "compressed_sign": ChannelRow(compressed("sign"), MEAN, (D,), compressor="sign"),
    "clipped": ChannelRow(
        always(channels.clipped(channels.exact(), LIMIT)), MEAN, (D * 32,)
    ),
    "heavy_values": asking(heavy(VALUES), MEAN, HEAVY, chosen=True),
    "heaprix": asking(heavy(HEAPRIX), NONE, HEAVY),
    "heaprix_fresh": asking(heavy(HEAPRIX, values="fresh"), UNBIASED, HEAVY + SKETCH),
    "marina": ChannelRow(
        lambda d: channels.marina(COMPRESSORS["random_k"].at(d), 0.4), UNBIASED,
        (COMPRESSORS["random_k"].bits, D * 32), compressor="random_k",
        given=lambda pair, memory: pair[1], pairs=True,
    ),
    "feedback_top_k": feedback_over("top_k"),
    "feedback_cocktail": feedback_over("cocktail"),
    "feedback_heavy_values": asking(
        feedback(heavy(VALUES)), MEAN, HEAVY, chosen=True, keeps="errors"
    ),
    "difference_top_k": difference_over("top_k"),
    "difference_scaled_sign": difference_over("scaled_sign"),
}  # fmt: skip
