"""The types that all other files share: sketches, compressors, channels, algorithms.

An algorithm is written for one client, in three parts: local work, a channel for the
update, and the server's step along the mean. All types here are for one client and one
update. The engine, or the caller's `vmap` or `lax.map`, batches over clients. An update
is a pytree of float arrays, such as a vector. A function that rebuilds an update takes
`like`: an example of it, whose values are not read, or the length of a vector.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import jax

from fl_sketch.core import shown

Key = jax.Array  # a typed key, from jax.random.key(seed)
Tree = Any  # a pytree of float arrays
Message = Any  # what crosses the network: an array, or a pytree of arrays
Like = Any  # an update to imitate, or the length of a vector


class Sketch(NamedTuple):
    """A random linear map R from updates to messages with E[R^T R] = I.

    Formal guarantees, tested for every operator in `tests/laws`:

    - `apply` and `transpose` are linear and adjoint to each other for one key;
    - `transpose(key, apply(key, x), x)` has mean `x` over keys;
    - arithmetic is float32 whatever the float type of the update;
    - a NaN in the update reaches the message, and from there the estimate.

    Attributes:
      apply: `(key, update) -> message`, that is R x.
      transpose: `(key, message, like) -> update`, that is R^T s.
      estimate: `(key, message, like) -> update`: the adjoint, or a median of rows.
      zeros: `(like=None) -> message` of zeros. Only operators whose message depends on
        the update (identity, leaf by leaf) read `like`.
      size: `(like=None) -> int`, the count of numbers in a message.
      resize: `(numbers) -> Sketch`, the same operator with another budget.
      fixed_key: whether every round uses one key, so that messages of different rounds
        may be added up (see `sketch.fixed_key`).
    """

    apply: Callable[[Key, Tree], Message]
    transpose: Callable[[Key, Message, Like], Tree]
    estimate: Callable[[Key, Message, Like], Tree]
    zeros: Callable[..., Message]
    size: Callable[..., int]
    resize: Callable[[int], "Sketch"]
    fixed_key: bool = False


class Field(NamedTuple):
    """One array of a message on the wire: `count` numbers of `bits` bits each.

    The kind "float" is IEEE float32; "uint" is an unsigned integer below `2**bits`.
    """

    count: int
    bits: int
    kind: str


class Compressor(NamedTuple):
    """A map from one vector to a short message, linear or not.

    Attributes:
      apply: `(key, x) -> x_hat`, the receiver's result.
      compress: `(key, x) -> arrays`, one array for each of `fields(x.size)`.
      expand: `(arrays, d) -> x_hat`, by the receiver, without the key.
      fields: `(d) -> tuple[Field, ...]`, the exact wire format. When the first field is
        of kind "float", its numbers may be compressed further by `then`.
      unbiased: whether E x_hat = x.
      contraction: whether `E|x - x_hat|^2 < |x|^2` for all x, as error feedback needs.
    """

    apply: Callable[[Key, jax.Array], jax.Array]
    compress: Callable[[Key, jax.Array], tuple[jax.Array, ...]]
    expand: Callable[[tuple[jax.Array, ...], int], jax.Array]
    fields: Callable[[int], tuple[Field, ...]]
    unbiased: bool = False
    contraction: bool = False

    def bits(self, d: int) -> int:
        """Returns the exact number of bits on the wire for a vector of length `d`."""
        return sum(field.count * field.bits for field in self.fields(d))


class Roots(NamedTuple):
    """The two keys from which all randomness of a run is derived.

    Initial weights, hashes and coins come from `public`; cohorts, batches, dither
    and noise from `secret`. Without privacy both are the same key.
    """

    public: Key
    secret: Key

    def __repr__(self) -> str:
        """Returns a text without the secret."""
        return "Roots(public, secret)"


class Keys(NamedTuple):
    """The keys of one client in one round, by who knows them.

    All clients and the server know `shared` (hashes, coins), this client alone its
    `own` (batches, dither, its share of noise), and the server alone `server` (noise).
    """

    shared: Key
    own: Key
    server: Key


class Server(NamedTuple):
    """The state of the server.

    Attributes:
      params: the model.
      opt: state of the server's optimizer.
      memory: the channel's memory at the server.
      round: the number of the next round, from zero, int32 [].
      guard: the mechanism's state, such as an adaptive threshold.
      down: state of the downlink's transformation, which clients do not see.
    """

    params: Tree
    opt: Any
    memory: Any
    round: jax.Array
    guard: Any = ()
    down: Any = ()

    __repr__ = shown.fields


class Work(NamedTuple):
    """The result of one client's local steps.

    Attributes:
      update: the pseudo-gradient `x_0 - x_K`, or another value that the channel
        expects.
      state: the client's state, kept until the client is drawn again.
      diagnostics: scalars by name, for the simulator alone.
    """

    update: Tree
    state: Any
    diagnostics: dict[str, jax.Array]


class Delivery(NamedTuple):
    """The result of one round's messages, as one client has it.

    The `estimate` of the mean update is the same for all clients. `own` is the update
    that this client's message represents, as the mean counted it.
    """

    estimate: Any
    own: Any


class Halves(NamedTuple):
    """Two estimates of one mean update, whose errors are independent."""

    first: Tree
    second: Tree


class Local(NamedTuple):
    """Local work of one client.

    Attributes:
      run: `(server, state, batches, keys) -> Work`. The leading axes of `batches` are
        local steps and the examples of a step. With epochs they are `batches.Passes`.
      init: `(params) -> state` of a client before it is drawn for the first time.
      finish: `(state, delivery) -> state` after a round in which it took part.
    """

    run: Callable[[Server, Any, Any, Keys], Work]
    init: Callable[[Tree], Any] = lambda params: ()
    finish: Callable[[Any, Delivery], Any] = lambda state, delivery: state


class Memory(NamedTuple):
    """A channel's memory between rounds: one `client` for each client, one `server`."""

    client: Any = ()
    server: Any = ()


class Linear(NamedTuple):
    """A message `map(of)`, where the linear `map` is the same for all clients.

    The engine may then add up the clients' `of` and apply `map` once.
    """

    map: Callable[[Any], Message]
    of: Any


class Code(NamedTuple):
    """A message as its sender packs it and its receiver unpacks it.

    Attributes:
      fields: the wire format.
      arrays: `() -> arrays`, one for each of the `fields`; a simulation makes none.
      expand: `(arrays) -> value`, by the receiver.
    """

    fields: tuple[Field, ...]
    arrays: Callable[[], tuple[jax.Array, ...]]
    expand: Callable[[tuple[jax.Array, ...]], Message]


class Coded(NamedTuple):
    """A message `value` that takes `bits` on the wire instead of 32 for each number.

    The mean is taken over values as their receiver has them. The length is exact: an
    int, or `wire.Chosen` if it depends on the round. A network sends one of the
    `codes`: the only one, or that of the length that the round has.
    """

    value: Message
    bits: Any
    codes: tuple[Code, ...] = ()


class ServerReply(NamedTuple):
    """A `value` that the server sends to all clients between two exchanges.

    Its wire format is `fields`.
    """

    value: Any
    fields: tuple[Field, ...]


class Round(NamedTuple):
    """Facts about a round that a channel may use.

    Attributes:
      number: the number of the round, from zero.
      counted: message -> the part of it that the mean counts, after a mechanism's bound
        and before noise. Memories must use this part, since the rest never arrived.
      denominator: the number by which the mean divides the sum, for server memories
        that are sums over all clients.
      present: the number of messages in the sum; with a mechanism, which hides it, the
        expected number.
      population: the weight of all clients, in this round or not. It is their number if
        all have equal weights.
    """

    number: jax.typing.ArrayLike = 0
    counted: Callable[[Message], Message] = lambda message: message
    denominator: jax.typing.ArrayLike = 1.0
    present: jax.typing.ArrayLike = 1.0
    population: jax.typing.ArrayLike = 1.0


Protocol = Generator[Any, Any, tuple[Delivery, Memory]]


class Channel(NamedTuple):
    """How updates become an estimate of their mean.

    Attributes:
      protocol: `(update, memory, keys, round) -> Protocol`, a client's part of a round,
        a generator. It yields a message (an array, a tree of arrays, `Linear` or
        `Coded`) and receives the mean of all clients' messages. It yields a
        `ServerReply` and receives its value. It returns `(Delivery, Memory)`. It must
        yield from plain Python, not from inside a traced branch or loop.
      init: `(params) -> Memory` before the first round.
      contracts: `(params) -> bool`; False: its errors are known to be longer than its
        input, so error feedback would diverge.
    """

    protocol: Callable[[Any, Memory, Keys, Round], Protocol]
    init: Callable[[Tree], Memory] = lambda params: Memory()
    contracts: Callable[[Tree], bool] = lambda params: True


class Downlink(NamedTuple):
    """What a server sends instead of the means to clients that replay its steps.

    Attributes:
      transform: an optax transformation of the estimate at the server. Its output is
        sent, and the server and all clients take the server's step along it.
      bits: `(d) -> bits` of that on the wire, exactly.
      warmup: the number of first rounds in which the means are sent.
    """

    transform: Any
    bits: Callable[[int], int]
    warmup: int = 0


class Encoded(NamedTuple):
    """One client's part of the sum of a mechanism.

    Attributes:
      summand: what is added up over clients: the bounded message as it is encoded, and
        what else the mechanism adds up. Floats, or integers, whose sums are exact
        (modulo the range of their type).
      rejected: 1.0 if the message was not finite, else 0.0; float32 []. Without a
        mechanism ().
    """

    summand: Any
    rejected: Any


class Release(NamedTuple):
    """The public result of the sum of a mechanism.

    Attributes:
      mean: the sum with its noise, over the mechanism's denominator.
      state: the mechanism's state for the next round.
      facts: scalars by name for the simulator alone; added up over exchanges.
      released: scalars by name, released with the mean and paid for by its noise.
    """

    mean: Message
    state: Any
    facts: dict[str, jax.Array]
    released: dict[str, jax.Array] = {}


class Mechanism(NamedTuple):
    """Bounds and encodes clients' messages, and releases their noisy mean.

    The engine asks it in every exchange, numbered from zero within a round, and adds up
    the summands of those who take part, in their type. Weights and the cohort's
    denominator are not used, since a bound on one client's part allows neither.

    Attributes:
      init: `() -> state` before the first round.
      bounded: `(state, message) -> Encoded`, what the bound leaves of it, before noise
        and encoding.
      encode: `(state, exchange, message, keys) -> Encoded`, by one client.
      release: `(state, exchange, total, keys) -> Release`, once, for all; of the keys
        only `shared` and `server` are known to whoever releases.
      noise_multiplier: the noise z on a sum over C, as `privacy.accounting` takes it.
      denominator: the fixed number r by which sums are divided.
      smallest: the least number of participants; fewer release nothing.
      wire: `(bits, numbers) -> bits` that a client sends in a round, where its channel
        sends so many bits for messages of so many numbers each.
      extra: the number of numbers that get noise in a round apart from messages.
      integers: the `privacy.lattice.Integers` that messages become, with Skellam noise;
        None: floats, with Gaussian noise.
      trailing: how a network sends the last leaves of a summand, which are not the
        message: "half" is 1/2 or -1/2, in one bit.
      description: for a release: by whom noise is added, the bound's name, and its C.
    """

    init: Callable[[], Any]
    bounded: Callable[[Any, Message], Encoded]
    encode: Callable[[Any, int, Message, Keys], Encoded]
    release: Callable[[Any, int, Any, Keys], Release]
    noise_multiplier: float
    denominator: float
    smallest: int = 0
    wire: Callable[[Any, tuple[int, ...]], Any] = lambda bits, numbers: bits
    extra: int = 0
    integers: Any = None
    trailing: tuple[str, ...] = ()
    description: tuple[str, str, Any] = ("one's own", "one's own", None)


class Algorithm(NamedTuple):
    """Local work, a channel, and a server, which is an optax chain on the estimate.

    Attributes:
      local: the work of the clients.
      uplink: the channel by which their updates become an estimate of the mean.
      server: an optax.GradientTransformationExtraArgs; gets key=keys.server.
      mechanism: the mechanism of every exchange; None: no privacy.
      downlink: a transformation of the estimate before the server's step; None: none.
    """

    local: Local
    uplink: Channel
    server: Any
    mechanism: Mechanism | None = None
    downlink: Downlink | None = None

    __repr__ = shown.fields
