"""One round: local work in chunks of clients, the exchanges, the server's step.

Clients are spread over the devices of a mesh, and each device plays its own, a chunk at
a time. An algorithm with one exchange and no client state thus needs memory for a chunk
of updates and one sum, whatever the cohort. With several exchanges or with client state
the updates of the cohort are kept until the round is over, or made again in every pass.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.core import shown, validate
from fl_sketch.core.keys import of_round
from fl_sketch.core.protocols import Algorithm, Key, Roots, Round, Server, Tree
from fl_sketch.engine.clients import Client, DeviceRound, Fetch, Slot
from fl_sketch.engine.cohort import Cohort, padded
from fl_sketch.engine.exchange import exchange, finish, serve
from fl_sketch.engine.mesh import AXIS, is_one_row, rows


class State(NamedTuple):
    """Everything that a run carries from round to round.

    Attributes:
      clients: the state of each client, along a leading axis of the population.
    """

    server: Server
    clients: Any

    __repr__ = shown.fields


class SimulatorOnly(NamedTuple):
    """What only a simulator may see of a round, if the round is private.

    Attributes:
      clients: the clients that received the model, int32 [places]; -1: none.
      answered: the places whose clients answered, bool [places].
      bytes_up: bytes that each of those sent, as `wire.traced_bytes` has them: one
        length, or one for each place.
      bytes_reply: bytes of the server's replies between exchanges, in the same form.
      diagnostics: means over clients; under a mechanism also its facts.
    """

    clients: jax.Array
    answered: jax.Array
    bytes_up: jax.Array
    bytes_reply: jax.Array
    diagnostics: dict[str, jax.Array]


class Report(NamedTuple):
    """Numbers about a round, by who may see them.

    Attributes:
      released: scalars by name that the mechanism released, paid for by its noise.
    """

    released: dict[str, jax.Array]
    simulator_only: SimulatorOnly


def initial_state(algorithm: Algorithm, params: Tree, population: int) -> State:
    """Returns the state before the first round, ready to be donated.

    Leaves that start as the same array get a buffer each: donating one buffer twice
    is an error on one device and has crashed the process on two (jaxlib 0.10.2).
    """
    validate.at_least_one(population=population)
    server, client = initial_server(algorithm, params)
    bank = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (population, *jnp.shape(leaf))), client
    )
    return jax.tree.map(jnp.copy, State(server, bank))


def initial_server(algorithm: Algorithm, params: Tree) -> tuple[Server, Client]:
    """Returns the states of the server and of a client before the first round."""
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


def client_bytes(algorithm: Algorithm, params: Tree) -> int:
    """Returns the bytes of one client's state, for parameters or their shapes."""
    _, client = jax.eval_shape(lambda p: initial_server(algorithm, p), params)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(client))


def make_round(
    algorithm: Algorithm,
    fetch: Fetch,
    mesh: jax.sharding.Mesh,
    *,
    chunk: int = 1,
) -> Callable[[State, Key | Roots, Cohort, Any, Any], tuple[State, Report]]:
    """Returns `round(state, key, cohort, data, plan) -> (state, report)`, not jitted.

    Args:
      fetch: `(data, client id, plan of the client, key) -> batches`.
      mesh: devices along the axis "clients".
      chunk: the number of clients that a device works on at a time, by vmap. One is
        best on a CPU.

    `key` is that of the whole run, or its roots; the round's number is in the state.
    `plan` is a pytree with a row for each place of the cohort, or None. Rows for the
    padding of the last chunk may be appended or missing.
    """
    validate.at_least_one(chunk=chunk)

    def on_device(server, slots, weights, sizes, data, keys):
        # Clients' gradients are their own: without the mark, jax would sum them.
        view = jax.tree.map(
            lambda leaf: jax.lax.pcast(leaf, AXIS, to="varying"), server
        )
        weights, present, known = _counted(
            algorithm, view.guard, weights, server.round, *sizes
        )
        device = DeviceRound(
            algorithm, view, fetch, data, keys, weights, present, known, chunk
        )
        return _played(device, server, slots)

    same, own = P(), P(AXIS)
    sharded = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(same, own, own, same, same, same),
        out_specs=(same, own, same, same, same),
        axis_names={AXIS},  # the compiler cuts a model over several devices
        check_vma=not is_one_row(mesh),
    )
    everywhere = NamedSharding(mesh, P())

    def run(state: State, key: Key | Roots, cohort: Cohort, data, plan=None):
        places, bank = cohort.ids.size, state.clients
        cohort = padded(cohort, rows(mesh) * chunk)
        # Each device draws it for itself: its few numbers are not worth a message.
        cohort = jax.lax.with_sharding_constraint(cohort, everywhere)
        slots, keys = _slots(bank, cohort, plan), of_round(key, state.server.round)
        server, states, traffic, diagnostics, released = sharded(
            state.server, slots, cohort.weights, _sizes(cohort), data, keys
        )
        asked = jnp.where(cohort.asked, cohort.ids, -1)[:places]
        shown = SimulatorOnly(asked, cohort.weights[:places] > 0, *traffic, diagnostics)
        return State(server, _written(bank, states, cohort)), Report(released, shown)

    return run


def _played(device: DeviceRound, server: Server, slots: Slot):
    """Plays a round on one of the devices; returns states, traffic and numbers."""
    received = exchange(device, server, slots)
    served = serve(device, server, received, slots)
    states = slots.client
    if jax.tree.leaves(states):
        states = finish(device, received, served, slots)
    traffic = served.bytes_up, served.bytes_reply
    return served.server, states, traffic, received.diagnostics, received.released


def _counted(algorithm: Algorithm, guard, weights, number, denominator, population):
    """Returns how clients count: their weights, the sum of all weights, the `Round`."""
    mechanism = algorithm.mechanism
    if mechanism:
        weights = (weights > 0).astype(weights.dtype)
    present = jax.lax.psum(jnp.sum(weights), AXIS)
    known = Round(
        number, denominator=denominator, present=present, population=population
    )
    if mechanism:
        known = known._replace(
            counted=lambda message: mechanism.bounded(guard, message).summand,
            denominator=mechanism.denominator,
            present=mechanism.denominator,
        )
    return weights, present, known


def _sizes(cohort: Cohort):
    """Returns the denominator of a mean, and the sum of all clients' weights."""
    population = cohort.population
    return cohort.denominator, cohort.denominator if population is None else population


def _slots(bank: Client, cohort: Cohort, plan: Any) -> Slot:
    """Returns the places of a cohort with the states of their clients."""
    missing = cohort.ids.size - min(map(len, jax.tree.leaves(plan)), default=0)

    def filled(leaf):
        return jnp.concatenate([leaf, jnp.repeat(leaf[-1:], missing, axis=0)])

    states = jax.tree.map(lambda leaf: leaf[cohort.ids], bank)
    return Slot(states, cohort.ids, jax.tree.map(filled, plan))


def _written(bank: Client, states: Client, cohort: Cohort) -> Client:
    """Returns the bank after a round, in which absent clients keep their state."""
    nowhere = jnp.iinfo(jnp.int32).max
    at = jnp.where(cohort.weights > 0, cohort.ids, nowhere)
    return jax.tree.map(
        lambda leaf, new: leaf.at[at].set(new, mode="drop"), bank, states
    )
