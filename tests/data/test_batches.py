"""Batches come from the right client, uniformly, at a cost that is the cohort's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fl_sketch.data import batches as draws
from fl_sketch.data import datasets, partition
from fl_sketch.data.examples import Examples

KEY = jax.random.key(0)
both = pytest.mark.parametrize("replacement", [True, False])


def numbers(count):
    """Examples whose input is their own number."""
    return Examples(np.arange(count, dtype=np.float32)[:, None], np.arange(count))


@both
def test_a_client_without_examples_has_zeros_and_not_its_neighbours(replacement):
    dealt = partition.Partition(np.arange(4, dtype=np.int32), np.array([0, 2, 2, 4, 4]))
    data = draws.resident(numbers(4), dealt)

    @jax.jit
    @jax.vmap
    def drawn(client):
        return draws.batches(
            data, KEY, client, steps=3, batch=2, replacement=replacement
        )

    assert not any(np.any(leaf) for leaf in drawn(np.array([1, 3])))


@functools.lru_cache(maxsize=4)
def _many(replacement, rounds):
    """Returns a program for all sizes, whose shuffle has so many rounds."""
    assert rounds == draws.ROUNDS
    draw = functools.partial(draws.draw, steps=2, batch=6, replacement=replacement)
    return jax.jit(jax.vmap(draw, in_axes=(0, None, None)))


def many(size, *, replacement=False):
    """Returns twelve draws of each of 60,000 keys, as offsets."""
    draw = _many(replacement, draws.ROUNDS)
    return np.asarray(draw(jax.random.split(KEY, 60_000), 0, size)).reshape(-1, 12)


@pytest.mark.parametrize(
    ("replacement", "sharding"),
    [(True, "one device"), (False, "one device"), (False, "replicated on eight")],
)
def test_batches_hold_the_clients_own_examples(replacement, sharding):
    examples = numbers(500)
    dealt = partition.power_law_sizes(500, 12, exponent=1.0, seed=0)
    dealt = partition.iid(500, 12, sizes=dealt, seed=0)
    device = None
    if sharding != "one device":
        mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
        device = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    data = draws.resident(examples, dealt, device=device)
    cohort = jnp.array([11, 0, 5, 0])

    @jax.jit
    def gather(data, keys, cohort):
        return jax.vmap(
            lambda key, client: draws.batches(
                data, key, client, steps=7, batch=4, replacement=replacement
            )
        )(keys, cohort)

    inputs, targets = gather(data, jax.random.split(KEY, 4), cohort)
    assert inputs.shape == (4, 7, 4, 1) and targets.shape == (4, 7, 4)
    np.testing.assert_array_equal(inputs[..., 0], targets)
    for row, client in zip(targets, cohort, strict=True):
        assert np.isin(row, dealt.of(int(client))).all()
    assert np.any(targets[1] != targets[3])  # another key, another draw


SIZES = (1, 2, 3, 97, 4096, 70_000)


@functools.cache
def stream():
    """Returns a program of three epochs of the largest size, and more of the others."""
    draw = functools.partial(draws.draw, steps=3, batch=max(SIZES), replacement=False)
    return jax.jit(lambda size: draw(KEY, 5, size).ravel())


@pytest.mark.parametrize("size", SIZES)
def test_an_epoch_holds_each_place_once(size):
    drawn = np.asarray(stream()(size))
    places = drawn[: drawn.size // size * size].reshape(-1, size)[:300]
    assert len(places) >= 3
    for epoch in places:
        np.testing.assert_array_equal(np.sort(epoch), 5 + np.arange(size))
    if size >= 97:
        assert np.mean(places[0] == places[1]) < 0.05


def test_batches_run_across_epochs():
    draw = functools.partial(draws.draw, steps=10, batch=4, replacement=False)
    stream = np.ravel(jax.jit(draw)(KEY, 0, 7))
    for begin in range(0, 35, 7):
        assert sorted(stream[begin : begin + 7]) == list(range(7))


def uniform(observed):
    return stats.chisquare(observed).pvalue > 1e-4


@both
@pytest.mark.parametrize("size", [2, 3, 7, 50, 1000])
def test_each_place_is_equally_likely(replacement, size):
    drawn = many(size, replacement=replacement)
    assert uniform(np.bincount(drawn[:, 0], minlength=size))


def test_orders_of_four_are_equally_likely():
    codes = many(4)[:, :4] @ [64, 16, 4, 1]
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == 24 and uniform(counts)


@pytest.mark.parametrize("size", [5, 12, 25])
def test_pairs_of_places_are_equally_likely(size):
    drawn = many(size)
    pairs = np.bincount(drawn[:, 0] * size + drawn[:, 1], minlength=size**2)
    off_diagonal = pairs.reshape(size, size)[~np.eye(size, dtype=bool)]
    assert off_diagonal.sum() == 60_000 and uniform(off_diagonal)


def test_epochs_are_independent():
    drawn = many(6)
    pairs = np.bincount(drawn[:, 0] * 6 + drawn[:, 6], minlength=36)
    assert uniform(pairs)


def test_too_few_rounds_of_the_shuffle_are_noticed(monkeypatch):
    monkeypatch.setattr(draws, "ROUNDS", 4)
    with pytest.raises(AssertionError):
        test_orders_of_four_are_equally_likely()


@both
def test_the_cost_of_a_batch_does_not_depend_on_the_population(replacement):
    def cost(population):
        sizes = np.full(population, 3)
        data = draws.resident(numbers(100), partition.resampled(100, sizes, seed=0))
        compiled = (
            jax.jit(
                lambda data, key: draws.batches(
                    data, key, 7, steps=5, batch=4, replacement=replacement
                )
            )
            .lower(data, KEY)
            .compile()
        )
        return compiled.memory_analysis().temp_size_in_bytes, compiled.cost_analysis()[
            "flops"
        ]

    assert cost(1_000_000) == cost(1000)


def test_sizes_may_be_traced_without_another_compilation():
    draw = jax.jit(
        lambda start, size: draws.draw(
            KEY, start, size, steps=2, batch=3, replacement=False
        )
    )
    for start, size in ((0, 4), (10, 9), (20, 0)):
        places = np.asarray(draw(start, size))
        assert places.min() >= start and places.max() < start + max(size, 1)
    assert draw._cache_size() == 1


def test_the_table_lists_every_clients_examples():
    dealt = partition.natural(np.array([2, 0, 2, 1, 2, 0]))
    table, sizes = draws.index_table(dealt)
    assert table.dtype == np.int32 and sizes.tolist() == [2, 1, 3]
    assert table.tolist() == [[1, 5, 1], [3, 3, 3], [0, 2, 4]]


def test_bad_input_gets_one_line():
    dealt = partition.iid(10, 2, seed=0)
    texts = Examples(np.array(["to", "be"], object), np.arange(2))
    for call, error, words in (
        (lambda: draws.resident(texts, dealt), TypeError, "strings"),
        (lambda: draws.resident(numbers(9), dealt), ValueError, "index 9"),
        (lambda: draws.draw(0, 0, 3, steps=1, batch=1), TypeError, "typed key"),
        (lambda: draws.draw(KEY, 0, 3, steps=0, batch=1), ValueError, "steps=0"),
        (lambda: draws.draw(KEY, 0, 3, steps=1, batch=2.5), TypeError, "batch=2.5"),
    ):
        with pytest.raises(error, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
    wide = partition.iid(
        2**14, 2**13, sizes=np.r_[2**13 + 1, np.ones(2**13 - 1, int)], seed=0
    )
    with pytest.raises(ValueError, match="draws.batches"):
        draws.index_table(wide)


def test_bytes_stay_bytes_on_the_device():
    examples = Examples(np.zeros((4, 2, 2, 1), np.uint8), np.zeros(4, np.int32))
    data = draws.resident(examples, partition.iid(4, 2, seed=0))
    assert data.examples.inputs.numbers.dtype == jnp.uint8
    batch = jax.eval_shape(lambda: draws.batches(data, KEY, 1, steps=1, batch=2))
    assert batch.inputs.dtype == jnp.uint8
    assert jax.eval_shape(datasets.normalise, batch.inputs).dtype == jnp.float32
