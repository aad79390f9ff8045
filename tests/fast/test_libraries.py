"""Models of Linen, NNX and Equinox get the forms, with their keys and statistics."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from tests.fast.watching import Watched, assert_agree, floats

X, KEY = floats((8, 12, 12, 3)), jax.random.key(3)
POOLED = "convolve pooled"


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


class OfLinen(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.max_pool(nn.relu(nn.Conv(6, (5, 5))(x)), (2, 2), (2, 2))
        x = nn.BatchNorm(use_running_average=False)(nn.Conv(4, (3, 3), 2)(x))
        x = nn.relu(x).reshape(len(x), -1)
        x = nn.Dropout(0.5, deterministic=False)(x)
        return nn.Dense(3)(x)


def test_linen_with_dropout_and_statistics(watched):
    variables = OfLinen().init({"params": KEY, "dropout": KEY}, X)

    def outputs(variables, x, key):
        rngs = {"dropout": key}
        return OfLinen().apply(variables, x, rngs=rngs, mutable=["batch_stats"])

    assert watched.of(outputs, variables, X, KEY) == [POOLED, "convolve"]
    assert_agree(outputs, variables, X, KEY)


def test_linen_by_scan_and_remat(watched):
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + nn.relu(nn.Conv(3, (3, 3))(x)), None

    class Deep(nn.Module):
        @nn.compact
        def __call__(self, x):
            many = nn.scan(
                nn.remat(Block), {"params": 0}, split_rngs={"params": True}, length=2
            )
            return many()(x, None)[0]

    variables = Deep().init(KEY, X)
    assert set(watched.of(Deep().apply, variables, X)) == {"convolve"}
    assert_agree(Deep().apply, variables, X)


class OfNnx(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Conv(3, 6, (3, 3), padding="VALID", rngs=rngs)
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.second = nnx.Conv(6, 4, (3, 3), use_bias=False, rngs=rngs)
        self.drop = nnx.Dropout(0.5)
        self.last = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x, rngs):
        x = nnx.max_pool(nnx.relu(self.norm(self.first(x))), (2, 2), (2, 2))
        x = nnx.max_pool(nnx.relu(self.second(x)), (2, 2), (2, 2))
        return self.last(self.drop(x.reshape(len(x), -1), rngs=rngs))


def test_nnx_with_dropout_and_statistics(watched):
    graph, params, stats, rest = nnx.split(
        OfNnx(nnx.Rngs(0)), nnx.Param, nnx.BatchStat, ...
    )

    def outputs(params, stats, x, key):
        model = nnx.merge(graph, params, stats, rest)
        return model(x, nnx.Rngs(dropout=key)), nnx.state(model, nnx.BatchStat)

    names = watched.of(outputs, params, stats, X, KEY)
    assert names == ["convolve", "max_pool", POOLED]
    assert_agree(outputs, params, stats, X, KEY)


class OfEquinox(eqx.Module):
    first: eqx.nn.Conv2d
    pool: eqx.nn.MaxPool2d
    last: eqx.nn.Linear

    def __init__(self, key):
        self.first = eqx.nn.Conv2d(3, 4, 3, key=key)
        self.pool = eqx.nn.MaxPool2d(2, 2)
        self.last = eqx.nn.Linear(100, 3, key=key)

    def __call__(self, x):
        return self.last(self.pool(jax.nn.relu(self.first(x))).reshape(-1))


def test_equinox_by_vmap_over_examples(watched):
    arrays, rest = eqx.partition(OfEquinox(KEY), eqx.is_array)

    def outputs(arrays, x):
        return jax.vmap(eqx.combine(arrays, rest))(x)

    images = jnp.asarray(X.transpose(0, 3, 1, 2))
    assert watched.of(outputs, arrays, images) == [POOLED]
    assert_agree(outputs, arrays, images)
