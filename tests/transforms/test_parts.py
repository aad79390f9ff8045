"""A part of a model trains: what it sends, what stays, and what a device holds."""

import functools

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch import algorithms, data, engine, models, sketch
from fl_sketch.core import constants, trees
from fl_sketch.core.keys import roots_of, round_keys
from fl_sketch.core.protocols import Server
from fl_sketch.core.trees import Stateful
from fl_sketch.data import batches as draws
from fl_sketch.engine.rounds import Play, compile_rounds
from fl_sketch.transforms import local
from tests.refusals import refused
from tests.simulation import compiled

KEY = jax.random.key(0)
COUNT, CLIENTS, SIZE, CLASSES = 60, 6, 12, 3
INPUTS = np.asarray(jax.random.normal(KEY, (COUNT, SIZE)))
LABELS = np.arange(COUNT) % CLASSES
BATCH = INPUTS[:10], LABELS[:10]
DATA = data.clients((INPUTS, LABELS), np.arange(COUNT) % CLIENTS)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES, name="head")(nn.tanh(nn.Dense(8, name="first")(x)))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(SIZE, 8, rngs=rngs)
        self.head = nnx.Linear(8, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.tanh(self.first(x)))


class Equinox(eqx.Module):
    first: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, key):
        self.first = eqx.nn.Linear(SIZE, 8, key=key)
        self.head = eqx.nn.Linear(8, CLASSES, key=key)

    def __call__(self, x):
        return self.head(jnp.tanh(self.first(x)))


def plain():
    first, head = jnp.full((SIZE, 8), 0.1), jnp.eye(8, CLASSES)
    params = {"first": {"w": first}, "head": {"w": head}}

    def logits(params, x):
        return jnp.tanh(x @ params["first"]["w"]) @ params["head"]["w"]

    return logits, params


def linen():
    model = Linen()
    return model.apply, model.init(KEY, INPUTS[:1])


def of_nnx():
    graph, params = nnx.split(Nnx(nnx.Rngs(0)))
    return lambda params, x: nnx.merge(graph, params)(x), params


def equinox():
    params, rest = eqx.partition(Equinox(KEY), eqx.is_inexact_array)
    return lambda params, x: jax.vmap(eqx.combine(params, rest))(x), params


KINDS = {"plain": plain, "linen": linen, "nnx": of_nnx, "equinox": equinox}
MODELS = {name: kind() for name, kind in KINDS.items()}


def loss_of(logits):
    return lambda params, batch: cross_entropy(logits(params, batch[0]), batch[1])


def parted(kind, trains):
    logits, params = MODELS[kind]
    return logits, params, *local.only(loss_of(logits), params, trains, key=KEY)


def same(one, two):
    return jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), one, two))


def names(tree):
    return [name for name, _ in trees.named_leaves(tree)]


def test_all_is_the_model_itself():
    loss, params = loss_of(MODELS["plain"][0]), MODELS["plain"][1]
    assert local.only(loss, params, "all")[:2] == (loss, params)


@pytest.mark.parametrize("trains", ["head", "lora(rank=2, on=first)", "first"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_part_begins_as_the_model_and_moves_alone(kind, trains):
    logits, params, loss, start, whole = parted(kind, trains)
    assert same(whole(start), params)
    np.testing.assert_allclose(loss(start, BATCH), loss_of(logits)(params, BATCH))
    gradient = jax.grad(loss)(start, BATCH)
    moved = jax.tree.map(lambda x, g: x - 0.5 * (g + 0.1), start, gradient)
    assert float(loss(moved, BATCH)) != float(loss(start, BATCH))
    layer = "head" if trains == "head" else "first"
    for (name, before), after in zip(
        trees.named_leaves(params), jax.tree.leaves(whole(moved)), strict=True
    ):
        trained = layer in name and ("lora" not in trains or after.ndim > 1)
        assert bool((before == after).all()) != trained, name


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_a_part_is_that_of_the_model_there(kind):
    logits, params, loss, start, _ = parted(kind, "head")
    found = dict(trees.named_leaves(jax.grad(loss)(start, BATCH)))
    expected = dict(trees.named_leaves(jax.grad(loss_of(logits))(params, BATCH)))
    assert {*found} == {name for name in expected if "head" in name}
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


def test_a_loss_that_draws_gets_its_key_and_statistics_stand_still():
    def loss(model, batch, key):
        noise = jax.random.normal(key)
        value = (model.params["head"] * batch + noise + model.state["mean"]).sum()
        return value, {"mean": model.state["mean"] + 1}

    model = Stateful({"head": jnp.ones(3), "rest": jnp.ones(2)}, {"mean": jnp.ones(())})
    of_part, start, whole = local.only(loss, model, "head")
    assert names(start) == ["params/head"]
    assert same(whole(start), model)
    algorithm = algorithms.fedavg(of_part, client_rate=0.1)
    clients = data.clients(np.ones((6, 3), "float32"), np.arange(6))
    run = engine.simulate(algorithm, start, clients, key=KEY, rounds=2)
    end = whole(run.params)
    assert same(end.state, model.state) and same(end.params["rest"], jnp.ones(2))
    assert not same(end.params["head"], jnp.ones(3))


def test_a_model_that_is_one_array_is_adapted():
    params = jnp.ones((4, 5))
    loss, start, whole = local.only(lambda w, x: (w @ x).sum(), params, "lora(rank=2)")
    assert whole(start).shape == (4, 5)
    b = jax.grad(loss)(start, jnp.ones(5))["params"]["lora_b"]
    assert b.any()


WIDTH = 32
ADAPTED = "query|value|out|dense"


KERNELS = {
    "query": (WIDTH, 4, 8),
    "value": (WIDTH, 4, 8),
    "out": (4, 8, WIDTH),
    "dense1": (WIDTH, 2 * WIDTH),
    "dense2": (2 * WIDTH, WIDTH),
    "head": (WIDTH, CLASSES),
}


@functools.cache
def attention():
    """Returns logits of a small block of attention, its parameters, and inputs."""
    keys = jax.random.split(KEY, len(KERNELS) + 1)
    params = {
        name: {"kernel": jax.random.normal(key, shape) / WIDTH**0.5}
        for key, (name, shape) in zip(keys, KERNELS.items(), strict=False)
    }

    def logits(params, x):
        kernel = {name: layer["kernel"] for name, layer in params.items()}
        queries = jnp.einsum("bte,ehs->bths", x, kernel["query"])
        values = jnp.einsum("bte,ehs->bths", x, kernel["value"])
        scores = jax.nn.softmax(jnp.einsum("bths,buhs->bhtu", queries, values))
        mixed = jnp.einsum("bhtu,buhs->bths", scores, values)
        x = x + jnp.einsum("bths,hse->bte", mixed, kernel["out"])
        x = x + jnp.tanh(x @ kernel["dense1"]) @ kernel["dense2"]
        return x.mean(1) @ kernel["head"]

    return logits, params, np.asarray(jax.random.normal(keys[-1], (8, 6, WIDTH)))


def after_a_step(trains, rate=0.5):
    """Returns the model after a step of SGD of what trains."""
    logits, params, inputs = attention()
    loss, start, whole = local.only(loss_of(logits), params, trains, key=KEY)
    steps = local.sgd_steps(loss, optax.sgd(rate))
    batches = inputs[None], np.arange(8)[None] % CLASSES
    server = Server(start, (), (), jnp.int32(0))
    work = compiled(lambda b: steps.run(server, (), b, round_keys(KEY, 0, 0)))(batches)
    return whole(jax.tree.map(jnp.subtract, start, work.update))


def test_lora_of_full_rank_takes_the_step_of_the_arrays_themselves():
    """Where alpha is the rank, in the values of the function; derived in `lora`."""
    logits, params, inputs = attention()
    full = after_a_step(ADAPTED)
    adapted = after_a_step(f"lora(rank={WIDTH}, alpha={WIDTH}, on={ADAPTED})")
    before, expected, found = (logits(p, inputs) for p in (params, full, adapted))
    assert abs(expected - before).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-5)
    other = logits(after_a_step(f"lora(rank={WIDTH}, alpha=16, on={ADAPTED})"), inputs)
    assert abs(other - expected).max() > 0.01


def test_a_smaller_rank_steps_along_a_projection_of_the_gradient():
    logits, params, inputs = attention()
    loss = loss_of(logits)
    rank, alpha, rate = 4, 8, 0.5

    def at(tree):
        return tree["dense1"]["kernel"]

    gradient = at(jax.grad(loss)(params, (inputs, np.arange(8) % CLASSES)))
    after = after_a_step(f"lora(rank={rank}, alpha={alpha}, on=dense1)", rate)
    moved = at(after) - at(params)
    start = local.only(loss, params, f"lora(rank={rank}, on=dense1)", key=KEY)[1]
    a = at(start)["lora_a"]
    expected = -rate * (alpha / rank) ** 2 * a @ a.T @ gradient
    np.testing.assert_allclose(moved, expected, atol=1e-6)
    assert np.linalg.matrix_rank(np.asarray(moved)) == rank


SERVERS = {
    "safl": lambda loss: algorithms.safl(
        loss, sketch=sketch.count_sketch(8), client_rate=0.1, server=optax.adam(0.01)
    ),
    "adam": lambda loss: algorithms.fedopt(
        loss, client_rate=0.1, server=optax.adam(0.01)
    ),
}
WORK = {"key": KEY, "rounds": 100, "cohort": 4, "steps": 2, "batch": 5}


@functools.cache
def trained(method, trains):
    _, params, loss, start, whole = parted("linen", trains)
    algorithm = SERVERS[method](loss)
    run = engine.simulate(algorithm, start, DATA, download="model", **WORK)
    return params, run, start, whole(run.params)


@pytest.mark.slow
@pytest.mark.parametrize("trains", ["head", "lora(rank=2, on=first)+head"])
@pytest.mark.parametrize("method", SERVERS)
def test_what_does_not_train_is_the_same_to_the_bit_after_100_rounds(method, trains):
    params, run, _, end = trained(method, trains)
    for (name, before), after in zip(
        trees.named_leaves(params), jax.tree.leaves(end), strict=True
    ):
        still = name == "params/first/bias" or (name, trains) == (
            "params/first/kernel",
            "head",
        )
        assert bool((before == after).all()) == still, name
    assert run.history[-1]["train_loss"] < run.history[0]["train_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("trains", ["head", "lora(rank=2, on=first)+head"])
@pytest.mark.parametrize("method", SERVERS)
def test_messages_are_of_the_part_and_the_rest_is_downloaded_once(method, trains):
    params, run, start, _ = trained(method, trains)
    d, whole, row = trees.size(start), trees.size(params), run.history[-1]
    visits = WORK["rounds"] * WORK["cohort"]
    sent = 8 if method == "safl" else d
    assert run.traffic.sent == (sent,)
    assert row["bytes_up_total"] == 4 * sent * visits
    added = "lora" in trains
    heads = CLASSES * (8 + 1)
    rest = 4 * (whole - heads + added)  # with the scale of the product
    assert d == heads + added * 2 * (SIZE + 8)
    assert row["bytes_down_total"] == 4 * d * visits + rest * CLIENTS
    assert run.prices.once == rest


@pytest.mark.slow
def test_an_optimizer_that_skips_arrays_does_not_freeze_them_under_a_sketch():
    logits, params = MODELS["linen"]
    labels = jax.tree.map_with_path(
        lambda path, _: "train" if "head" in str(path) else "skip", params
    )
    parts = {"train": optax.sgd(0.1), "skip": optax.set_to_zero()}
    algorithm = algorithms.safl(
        loss_of(logits),
        sketch=sketch.count_sketch(8),
        client_rate=0.1,
        client_optimizer=lambda rate: optax.multi_transform(parts, labels),
        server=optax.adam(0.01),
    )
    with pytest.warns(UserWarning, match="params/first/kernel"):
        run = engine.simulate(algorithm, params, DATA, **WORK | {"rounds": 5})
    first = [tree["params"]["first"]["kernel"] for tree in (params, run.params)]
    assert abs(first[0] - first[1]).max() > 0.01
    assert run.prices.params == 4 * trees.size(params)


@functools.cache
def large():
    """Returns the loss of a transformer whose weights are most of its memory."""
    options = {"vocabulary": 4000, "width": 128, "depth": 1, "heads": 4}
    model = models.Transformer(2, **options)
    tokens = np.asarray(jax.random.randint(KEY, (64, 8), 1, 4000), np.int32)
    params = model.init(KEY, tokens[:1])["params"]

    def loss(params, batch):
        return cross_entropy(model.apply({"params": params}, batch[0]), batch[1])

    return loss, params, data.clients((tokens, np.arange(64) % 2), np.arange(64) % 16)


def memory_of(program):
    """Returns the bytes of a program on a device, its arguments among them."""
    found = program.memory_analysis()
    fresh = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.argument_size_in_bytes + found.temp_size_in_bytes + fresh


def programs(trains, chunk):
    """Returns what a device needs for a round of SAFL, for one client, and frozen."""
    loss, params, clients = large()
    of_part, start, _ = local.only(loss, params, trains)
    batch = tuple(leaf[:4] for leaf in clients.examples)
    with constants.noted() as found:
        jax.eval_shape(of_part, start, batch)
    trees_, mesh = constants.trees_of(found), engine.mesh_over(jax.devices()[:1])

    def work(start, batch):
        return jax.value_and_grad(of_part)(start, batch)

    one = jax.jit(constants.as_argument(work, found)).lower(start, batch, trees_)
    op = sketch.count_sketch(64)
    safl = algorithms.safl(of_part, sketch=op, client_rate=0.1, server=optax.adam(0.01))
    fetch = draws.fetching("fresh", steps=2, batch=4)
    one_round = engine.make_round(safl, fetch, mesh, chunk=chunk)
    play = Play(one_round, engine.fixed_size(16, 8), chunk=chunk, most=4)
    same = NamedSharding(mesh, P())
    state = jax.device_put(engine.initial_state(safl, start, 16), same)
    key, resident = jax.device_put(roots_of(KEY), same), draws.resident(*clients)
    _, rounds = compile_rounds(
        play, mesh, state=state, key=key, data=resident, constants=found
    )
    return rounds, one.compile(), constants.size_of(found)


@pytest.mark.slow
def test_a_round_needs_the_memory_of_one_client():
    rounds, one, frozen = programs("lora(rank=4, on=query|value)+head", chunk=1)
    assert memory_of(rounds) < 1.3 * memory_of(one)
    assert rounds.memory_analysis().argument_size_in_bytes > frozen  # and no literal


@pytest.mark.slow
def test_clients_that_work_together_share_what_does_not_train():
    (alone, *_), (together, _, frozen) = (programs("head", chunk=n) for n in (1, 8))
    assert memory_of(together) - memory_of(alone) < frozen / 2


def test_a_leaf_that_is_no_array_is_named():
    with refused("tree of arrays", "at act", error=TypeError):
        local.only(lambda params, x: x, {"head": jnp.ones(2), "act": jnp.tanh}, "head")


@pytest.mark.parametrize(
    ("trains", "words"),
    [
        ("nothing", ["'nothing'", "first/kernel"]),
        ("lora(rank=9, on=first)", ["rank=9", "first/kernel"]),
    ],
)
def test_what_does_not_fit_is_refused(trains, words):
    with refused(*words):
        parted("linen", trains)
