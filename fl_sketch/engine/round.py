"""One round: local work in chunks of clients, the exchanges, the server's step.

Clients are spread over the devices of a mesh, and each device visits its own a chunk at
a time. An algorithm with one exchange and no client state thus needs memory for a chunk
of updates and one sum, whatever the cohort. With several exchanges or with client state
the updates of the cohort are kept until the round is over, or made again in every pass.
This takes memory for the whole cohort, or the local work once more.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.core import validate
from fl_sketch.core.keys import of_round
from fl_sketch.core.protocols import Algorithm, Key, Roots, Server, Tree
from fl_sketch.engine.clients import Client, Fetch, Seat, Visitor
from fl_sketch.engine.cohort import Cohort, padded
from fl_sketch.engine.exchange import exchange
from fl_sketch.engine.guard import Guard, guarded, open_mean
from fl_sketch.engine.mesh import AXIS, is_one_row, rows
from fl_sketch.engine.server import finish, serve


class State(NamedTuple):
    """Everything that a run carries from round to round.

    Attributes:
      server: all that the server has.
      clients: the part that is kept of each client, along a leading axis of the
        population: a `Client`, or what a round of another kind keeps.
    """

    server: Server
    clients: Any


class SimulatorOnly(NamedTuple):
    """What a simulator sees of a round and nobody else may, if the round is private.

    Attributes:
      clients: the clients that were asked, int32 [places]; -1: nobody.
      answered: the places whose clients answered, bool [places].
      bytes_up: bytes that each of those sent, as `wire.traced_bytes` has them: one
        length, or one for each place.
      bytes_told: bytes that the server said between exchanges, in the same form.
      diagnostics: means over them; under a mechanism also its facts.
    """

    clients: jax.Array
    answered: jax.Array
    bytes_up: jax.Array
    bytes_told: jax.Array
    diagnostics: dict[str, jax.Array]


class Report(NamedTuple):
    """What a round says of itself, beside its effect, by who may look at it.

    Attributes:
      released: scalars by name that the mechanism released, paid for by its noise.
      simulator_only: all that is not for others' eyes.
    """

    released: dict[str, jax.Array]
    simulator_only: SimulatorOnly


def initial_state(algorithm: Algorithm, params: Tree, population: int) -> State:
    """Returns the state before the first round, ready to be donated.

    Leaves that start as the same array get a buffer each: donating one buffer twice
    is an error on one device and has crashed the process on two (jaxlib 0.10.2).

    Args:
      algorithm: the work of clients and server.
      params: the first model.
      population: the number of clients.
    """
    validate.at_least_one(population=population)
    server, client = initial_server(algorithm, params)
    bank = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (population, *jnp.shape(leaf))), client
    )
    return jax.tree.map(jnp.copy, State(server, bank))


def initial_server(algorithm: Algorithm, params: Tree) -> tuple[Server, Client]:
    """Returns what the server has before the first round, and what a client has.

    Both follow from the `algorithm` and the first model, `params`.
    """
    memory = algorithm.uplink.init(params)
    server = Server(
        params,
        algorithm.server.init(params),
        memory.server,
        jnp.int32(0),
        algorithm.mechanism.init() if algorithm.mechanism else (),
        algorithm.downlink.transform.init(params) if algorithm.downlink else (),
    )
    return server, Client(algorithm.local.init(params), memory.client)


def make_round(
    algorithm: Algorithm,
    fetch: Fetch,
    mesh: jax.sharding.Mesh,
    *,
    chunk: int = 1,
    recompute: bool = False,
) -> Callable[[State, Key | Roots, Cohort, Any, Any], tuple[State, Report]]:
    """Returns `round(state, key, cohort, data, plan) -> (state, report)`, not jitted.

    Args:
      algorithm: the work of clients and server.
      fetch: `(data, client id, plan of the client, key) -> batches`.
      mesh: devices along the axis "clients".
      chunk: the number of clients that a device works on at a time, by vmap. One is
        best on a CPU.
      recompute: whether clients repeat their local work in every pass, where an
        algorithm has several, instead of keeping the updates of the whole cohort.

    `key` is that of the whole run, or its roots; the round's number is in the state.
    `plan` is a pytree with a row for each place of the cohort, or None; rows for the
    places that fill up the last chunk may follow or be missing.
    """
    validate.at_least_one(chunk=chunk)

    def on_device(server, seats, weights, sizes, data, keys):
        # Clients' gradients are their own: without the mark, jax would sum them.
        view = jax.tree.map(
            lambda leaf: jax.lax.pcast(leaf, AXIS, to="varying"), server
        )
        visitor = Visitor(algorithm, view, fetch, data, keys, weights, chunk)
        return _played(visitor, server, sizes, seats, recompute=recompute)

    same, own = P(), P(AXIS)
    sharded = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(same, own, own, same, same, same),
        out_specs=(same, own, same, same, same),
        axis_names={AXIS},  # a model over several devices is for the compiler to cut
        check_vma=not is_one_row(mesh),
    )
    everywhere = NamedSharding(mesh, P())

    def run(state: State, key: Key | Roots, cohort: Cohort, data, plan=None):
        places, bank = cohort.ids.size, state.clients
        cohort = padded(cohort, rows(mesh) * chunk)
        # Each device draws it for itself: its few numbers are not worth a message.
        cohort = jax.lax.with_sharding_constraint(cohort, everywhere)
        weights, denominator = cohort.weights, cohort.denominator
        there = denominator if cohort.population is None else cohort.population
        seats, keys = _seats(bank, cohort, plan), of_round(key, state.server.round)
        server, kept, traffic, diagnostics, released = sharded(
            state.server, seats, weights, (denominator, there), data, keys
        )
        asked = jnp.where(cohort.asked, cohort.ids, -1)[:places]
        seen = SimulatorOnly(asked, weights[:places] > 0, *traffic, diagnostics)
        return State(server, _written(bank, kept, cohort)), Report(released, seen)

    return run


def _played(visitor: Visitor, server: Server, sizes, seats: Seat, *, recompute):
    """Returns a device's part of a round, in the order of `out_specs`."""
    guard = _guard(visitor, server.round, *sizes)
    visitor = visitor._replace(weights=guard.weights)
    heard = exchange(visitor, guard, server, seats, recompute=recompute)
    served = serve(visitor, guard, server, heard, seats)
    kept = seats.client
    if jax.tree.leaves(kept):
        kept = finish(visitor, guard, heard, served, seats)
    traffic = served.bytes_up, served.bytes_told
    return served.server, kept, traffic, heard.diagnostics, heard.released


def _seats(bank: Client, cohort: Cohort, plan: Any) -> Seat:
    """Returns the places of a cohort with what their clients have kept."""
    missing = cohort.ids.size - min(map(len, jax.tree.leaves(plan)), default=0)

    def filled(leaf):
        return jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, axis=0)])

    rows = jax.tree.map(lambda leaf: leaf[_rows(cohort)], bank)
    return Seat(rows, cohort.ids, jax.tree.map(filled, plan))


def _written(bank: Client, rows: Client, cohort: Cohort) -> Client:
    """Returns the bank after a round; absent clients keep what they had."""
    nowhere = jnp.iinfo(jnp.int32).max
    at = jnp.where(cohort.weights > 0, _rows(cohort), nowhere)
    return jax.tree.map(lambda leaf, new: leaf.at[at].set(new, mode="drop"), bank, rows)


def _rows(cohort: Cohort) -> jax.Array:
    return cohort.ids if cohort.rows is None else cohort.rows


def _guard(visitor: Visitor, number, denominator, population) -> Guard:
    """Returns what stands between the messages of this round and their means."""
    mechanism, weights = visitor.algorithm.mechanism, visitor.weights
    if mechanism is None:
        return open_mean(weights, denominator, population, number)
    anyone = visitor.keys(0)
    view = visitor.server.guard
    return guarded(mechanism, view, weights, anyone, population, number)
