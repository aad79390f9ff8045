"""One round: local work in chunks of clients, the exchanges, the server's step.

Clients are spread over the devices of a mesh, and each device visits its own a chunk
at a time, so that an algorithm with one exchange and no client state needs memory
for a chunk of updates and one sum, whatever the cohort. With several exchanges
or with client state the updates of the cohort are kept until the round is over, or
made again in every pass: memory for the whole cohort, or the local work once more.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from fl_sketch import trees, validate
from fl_sketch.engine import link
from fl_sketch.engine.cohort import Cohort, padded
from fl_sketch.engine.guard import Guard
from fl_sketch.engine.mesh import AXIS
from fl_sketch.keys import batch_key, round_keys
from fl_sketch.protocols import Algorithm, Key, Memory, Roots, Server, Tree
from fl_sketch.trees import varying_like
from fl_sketch.wire import FLOAT_BITS


class Client(NamedTuple):
    """What is kept of one client between rounds; in a bank, of all of them."""

    local: Any
    memory: Any


class State(NamedTuple):
    """Everything that a run carries from round to round."""

    server: Server
    clients: Client  # leading axis: the population


class SimulatorOnly(NamedTuple):
    """What a simulator sees of a round and nobody else may, if the round is private."""

    clients: jax.Array  # shape=(places,), int32, who was asked; -1: nobody
    answered: jax.Array  # shape=(places,), bool
    bytes_up: jax.Array  # shape=(), uint32, that each of those who answered sent
    bytes_heard: jax.Array  # shape=(), uint32, that came back within the round
    diagnostics: dict[str, jax.Array]  # means over them; under a mechanism also its
    # facts


class Report(NamedTuple):
    """What a round says of itself, beside its effect, by who may look at it."""

    released: dict[str, jax.Array]  # by the mechanism, at the price of its noise
    simulator_only: SimulatorOnly


Fetch = Callable[[Any, jax.Array, Any, Key], Any]


def initial_state(algorithm: Algorithm, params: Tree, population: int) -> State:
    """Returns the state before the first round, ready to be donated.

    Leaves that start as the same array get a buffer each: donating one buffer twice
    is an error on one device and has crashed the process on two (jaxlib 0.10.2).
    """
    validate.at_least_one(population=population)
    memory = algorithm.uplink.init(params)
    client = Client(algorithm.local.init(params), memory.client)
    bank = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (population, *jnp.shape(leaf))), client
    )
    opt = algorithm.server.init(params)
    guard = algorithm.mechanism.init() if algorithm.mechanism else ()
    server = Server(params, opt, memory.server, jnp.int32(0), guard)
    return jax.tree.map(jnp.copy, State(server, bank))


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
      algorithm: what clients and server do.
      fetch: `(data, client id, plan of the client, key) -> batches`.
      mesh: devices along the axis "clients".
      chunk: how many clients a device works on at a time, by vmap. One is best on
        a CPU.
      recompute: whether clients repeat their local work in every pass, where an
        algorithm has several, instead of keeping the updates of the whole cohort.

    `key` is that of the whole run, or its roots; the round's number is in the state.
    `plan` is a pytree with a row for each place of the cohort, or None; rows for the
    places that fill up the last chunk may follow or be missing.
    """
    validate.at_least_one(chunk=chunk)
    server_tx = optax.with_extra_args_support(algorithm.server)

    def on_device(server, rows, ids, weights, denominator, plan, data, key):
        # Clients' gradients are their own: without the mark, jax would sum them.
        view = jax.tree.map(
            lambda leaf: jax.lax.pcast(leaf, AXIS, to="varying"), server
        )
        guard = Guard(
            algorithm.mechanism,
            view.guard,
            lambda client: round_keys(key, server.round, client),
            denominator,
        )
        weights = guard.counted(weights)
        device = _Device(
            algorithm,
            view,
            chunk,
            recompute,
            weights,
            jax.lax.psum(jnp.sum(weights), AXIS),
            guard,
            server.round,
        )

        def work_of(row, client, own_plan):
            keys = round_keys(key, server.round, client)
            drawn_by = batch_key(key, server.round, client)
            batches = fetch(data, client, own_plan, drawn_by)
            return algorithm.local.run(view, row.local, batches, keys)

        def deliver(server, row, work, client, network):
            keys = round_keys(key, server.round, client)
            memory = Memory(row.memory, server.memory)
            return algorithm.uplink.mean(work.update, memory, keys, network)

        shapes = jax.eval_shape(work_of, *_first((rows, ids, plan)))
        means, works, diagnostics, released, guard_state = device.exchange(
            work_of, deliver, shapes, server.guard, rows, ids, plan
        )
        server, estimate, traffic = _serve(
            algorithm,
            server,
            server_tx,
            deliver,
            means,
            device.sums,
            shapes,
            rows,
            ids,
            key,
        )
        if jax.tree.leaves(rows):
            rows = device.finish(
                work_of, deliver, means, estimate, rows, ids, plan, works
            )
        server = server._replace(guard=guard_state)
        return server, rows, traffic, diagnostics, released

    same, own = P(), P(AXIS)
    sharded = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(same, own, own, own, same, own, same, same),
        out_specs=(same, own, same, same, same),
    )

    def run(state: State, key: Key | Roots, cohort: Cohort, data, plan=None):
        places = cohort.ids.size
        cohort = padded(cohort, mesh.size * chunk)
        plan = jax.tree.map(lambda p: _repeat_last(p, cohort.ids.size - len(p)), plan)
        at = cohort.ids if cohort.rows is None else cohort.rows
        rows = jax.tree.map(lambda bank: bank[at], state.clients)
        ids, weights, denominator = cohort[:3]
        server, rows, traffic, diagnostics, released = sharded(
            state.server, rows, ids, weights, denominator, plan, data, key
        )
        # Absent clients keep their state: places without weight write nowhere.
        nowhere = jnp.iinfo(jnp.int32).max
        rows_of = jnp.where(cohort.weights > 0, at, nowhere)
        clients = jax.tree.map(
            lambda bank, new: bank.at[rows_of].set(new, mode="drop"),
            state.clients,
            rows,
        )
        asked = jnp.where(cohort.asked, cohort.ids, -1)[:places]
        answered = cohort.weights[:places] > 0
        seen = SimulatorOnly(asked, answered, *traffic, diagnostics)
        return State(server, clients), Report(released, seen)

    return run


class _Device(NamedTuple):
    """One device's share of a round."""

    algorithm: Algorithm
    view: Server
    chunk: int
    recompute: bool
    weights: jax.Array
    present: jax.Array  # the weights of all clients of the round, over all devices
    guard: Guard
    round: jax.Array

    def exchange(self, work_of, deliver, shapes, state, rows, ids, plan):
        """Returns means of all exchanges, works if kept, diagnostics, facts released.

        And the guard's state after the round; `state` is that before it.
        """

        def addend(known, row, work, client):
            return link.addend_after(
                known, lambda network: deliver(self.view, row, work, client, network)
            )

        def message(known, row, work, client):
            sent, linear = addend(known, row, work, client)
            if not self.guard.adds_first:
                sent = linear(sent)
            return self.guard.bound(len(known), sent, client, work.diagnostics)

        def total_after(known, total):
            """Returns the device's sum of messages."""
            if not self.guard.adds_first:
                return total
            linear = addend(known, row, _zeros(shapes), client)[1]
            return total._replace(summand=linear(total.summand))

        row, client = _first((rows, ids))
        exchanges = link.count_exchanges(
            lambda network: deliver(self.view, row, _zeros(shapes), client, network)
        )
        later = exchanges > 1 or bool(jax.tree.leaves(rows))
        keep = later and not self.recompute

        def first_pass(row, client, own_plan):
            work = work_of(row, client, own_plan)
            bounded = message((), row, work, client)
            seen = self.guard.seen(bounded, work.diagnostics)
            return (bounded, seen), (work if keep else ())

        (total, diagnostics), works = self._visit(first_pass, rows, ids, plan)
        total, diagnostics = jax.lax.psum((total_after((), total), diagnostics), AXIS)
        rejected = total.rejected
        mean, state, *facts = self.guard.release(0, total, state)
        means = [_as_heard(mean, self.round)]
        for exchange in range(1, exchanges):

            def next_pass(row, client, own_plan, work):
                work = work or work_of(row, client, own_plan)
                return message(tuple(means), row, work, client), ()

            total = self._visit(next_pass, rows, ids, plan, works)[0]
            total = jax.lax.psum(total_after(tuple(means), total), AXIS)
            mean, state, *more = self.guard.release(exchange, total, state)
            means.append(_as_heard(mean, self.round))
            facts = [_added(one, other) for one, other in zip(facts, more, strict=True)]
        diagnostics = self.guard.averaged(diagnostics, self.present, rejected)
        return tuple(means), works, diagnostics | facts[0], facts[1], state

    @property
    def sums(self) -> dict[str, Any]:
        """What a link says of the sums behind its means."""
        denominator, present = self.guard.divided_by(self.present)
        return {"denominator": denominator, "present": present}

    def finish(self, work_of, deliver, means, estimate, rows, ids, plan, works):
        """Returns the new state of every client.

        The estimate is the same everywhere, so they are all given the server's: made
        by each client again, it was what a round with client state cost most.
        """

        def one(row, client, own_plan, work):
            work = work or work_of(row, client, own_plan)
            network = link.answering(means, counted=self.guard.counts, **self.sums)
            delivery, memory = deliver(self.view, row, work, client, network)
            delivery = delivery._replace(estimate=estimate)
            state = self.algorithm.local.finish(work.state, delivery)
            return (), Client(state, memory.client)

        return self._visit(one, rows, ids, plan, works)[1]

    def _visit(self, function, *arguments):
        """Returns (weighted sum of the first results, all second results).

        `function` maps one client's slices of the arguments to a pair.
        """
        chunks, chunk = self.weights.size // self.chunk, self.chunk

        def in_chunks(leaf):
            return leaf.reshape(chunks, chunk, *leaf.shape[1:])

        def of_chunk(weights, arguments):
            if chunk == 1:  # without vmap, which batches convolutions badly on a CPU
                value, kept = function(*_first(arguments))
                value, kept = jax.tree.map(lambda leaf: leaf[None], (value, kept))
            else:
                value, kept = jax.vmap(function)(*arguments)
            return jax.tree.map(lambda leaf: _weighted_sum(weights, leaf), value), kept

        def visit(total, slices):
            value, kept = of_chunk(*slices)
            return jax.tree.map(jnp.add, total, value), kept

        slices = jax.tree.map(in_chunks, (self.weights, arguments))
        shapes = jax.eval_shape(lambda s: of_chunk(*s)[0], _first(slices))
        zeros = jax.tree.map(
            lambda leaf: varying_like(jnp.zeros(leaf.shape, leaf.dtype), self.weights),
            shapes,
        )
        total, kept = jax.lax.scan(visit, zeros, slices)
        return total, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), kept)


def _serve(algorithm, server, server_tx, deliver, means, sums, shapes, rows, ids, key):
    """Returns (server after its step, estimate, bytes each client sent and heard).

    The step is traced as one client's, with blank work of the given shapes along an
    axis of length one: `out_axes=None` makes jax refuse an algorithm in which the
    server would see anything of a client that did not go through `mean`.
    """
    blank = jax.tree.map(lambda leaf: varying_like(leaf[None], ids), _zeros(shapes))

    def one(row, work, client):
        network = link.answering(means, **sums)
        delivery, memory = deliver(server, row, work, client, network)
        keys = round_keys(key, server.round, 0)
        updates, opt = server_tx.update(
            delivery.estimate, server.opt, server.params, key=keys.server
        )
        params = optax.apply_updates(server.params, updates)
        after = Server(params, opt, memory.server, server.round + 1, server.guard)
        heard = delivery.bits_heard
        if algorithm.local.hears_mean:
            heard = FLOAT_BITS * trees.size(means)
        more = algorithm.mechanism.bits if algorithm.mechanism else 0
        traffic = (whole_bytes(delivery.bits + more), whole_bytes(heard))
        return after, delivery.estimate, traffic

    one_row, one_id = jax.tree.map(lambda leaf: leaf[:1], (rows, ids))
    return jax.vmap(one, out_axes=None)(one_row, blank, one_id)


def _as_heard(mean: Any, number: jax.Array) -> Any:
    """Returns the same numbers, rounded.

    What crosses a network is numbers. If XLA rounded the division by the denominator
    together with what comes after it (a multiply-add), whoever hears the mean would
    get another model. Barriers are gone before CPU code is made; it cannot know that
    rounds are not negative.
    """
    nothing = (number < 0).astype(jnp.uint32)

    def rounded(leaf):
        if leaf.dtype != jnp.float32:
            return leaf
        bits = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
        return jax.lax.bitcast_convert_type(bits ^ nothing, jnp.float32)

    return jax.tree.map(rounded, mean)


def whole_bytes(bits: jax.typing.ArrayLike) -> jax.Array:
    """Returns how many bytes a message of so many bits takes, uint32."""
    whole = bits // 8 + (bits % 8 > 0)  # -(-bits // 8) wraps around in uint32
    return jnp.asarray(whole, jnp.uint32)


def _weighted_sum(weights, values):
    """Returns sum_i w_i v_i, in which what has no weight cannot be NaN either."""
    shape = (-1,) + (1,) * (values.ndim - 1)
    weights = weights.reshape(shape)
    return jnp.sum(jnp.where(weights != 0, weights * values, 0), axis=0)


def _added(one: dict, other: dict) -> dict:
    """Returns both, sums where they have the same name."""
    return {
        name: sum(part[name] for part in (one, other) if name in part)
        for name in {**one, **other}
    }


def _first(tree):
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _zeros(shapes):
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _repeat_last(leaf, extra: int):
    return jnp.concatenate([leaf, jnp.repeat(leaf[-1:], extra, axis=0)])
