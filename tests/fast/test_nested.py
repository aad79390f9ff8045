"""Functions inside a function are played too, or left as they are."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import linear_util
from jax.extend.core import jaxpr_as_fun, primitives
from jax.sharding import PartitionSpec as P

from fl_sketch import fast
from tests.fast.watching import Watched, assert_agree, assert_untouched, floats

X, KERNEL = floats((2, 8, 8, 3)), floats((3, 3, 3, 3), 1) / 3


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


def convolved(x, kernel):
    order = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=order)


def layer(x, kernel):
    return nn.relu(convolved(x, kernel))


def text(function, *arguments):
    return str(jax.make_jaxpr(function)(*arguments))


def jitted(x, kernel):
    return jax.jit(layer)(x, kernel)


def jitted_with_a_pool(x, kernel):
    return jax.jit(lambda x: nn.max_pool(layer(x, kernel), (2, 2), (2, 2)))(x)


def checkpointed(x, kernel):
    return jax.checkpoint(layer)(x, kernel)


def called(x, kernel):
    params = {"call_jaxpr": jax.make_jaxpr(lambda *a: [layer(*a)])(x, kernel)}
    call = primitives.closed_call_p
    return call.bind(x, kernel, **call.get_bind_params(params))[0]


def called_open(x, kernel):
    traced = jax.make_jaxpr(lambda *a: [layer(*a)])(x, kernel)
    inner = linear_util.wrap_init(
        jaxpr_as_fun(traced), debug_info=traced.jaxpr.debug_info
    )
    return primitives.call_p.bind(x, kernel, subfuns=(inner,))[0]


def scanned(x, kernel):
    def step(x, scale):
        y = layer(x, scale * kernel)
        return y, y.mean()

    return lax.scan(step, x, jnp.arange(1.0, 3.0), reverse=True, unroll=2)


def scanned_nothing(x, kernel):
    return lax.scan(lambda k, _: (k + convolved(x, kernel).mean(), ()), kernel, None, 2)


def looped(x, kernel):
    return lax.fori_loop(0, 2, lambda i, x: layer(x, (i + 1) * kernel), x)


def branched(x, kernel):
    return lax.cond(x.sum() > 0, layer, lambda x, kernel: 2 * x, x, kernel)


def switched(x, kernel):
    ways = [jnp.sin, lambda x: layer(x, kernel), jnp.cos]
    return lax.switch(jnp.int32(x[0, 0, 0, 0] * 0) + 1, ways, x)


def mapped(x, kernel):
    return jax.vmap(lambda one: layer(one[None], kernel)[0])(x)


def by_jit_in_scan_in_checkpoint(x, kernel):
    @jax.checkpoint
    def inner(x):
        return lax.scan(lambda x, _: (jax.jit(layer)(x, kernel), ()), x, None, 2)[0]

    return inner(x)


@pytest.mark.parametrize(
    "function",
    [jitted, checkpointed, scanned, scanned_nothing, looped, branched, switched, mapped]
    + [by_jit_in_scan_in_checkpoint, called, called_open],
    ids=lambda function: function.__name__,
)
def test_functions_inside_are_played(function, watched):
    assert set(watched.of(function, X, KERNEL)) == {"convolve"}
    assert_agree(function, X, KERNEL)


def test_a_chain_inside_is_one(watched):
    assert watched.of(jitted_with_a_pool, X, KERNEL) == ["convolve pooled"]
    assert_agree(jitted_with_a_pool, X, KERNEL)


def test_a_loop_of_unknown_length_is_played(watched):
    def until_large(x, kernel):
        def body(carry):
            return layer(carry[0], kernel) + carry[0] * kernel.sum() ** 2, carry[1] + 1

        return lax.while_loop(lambda c: (c[0].max() < 9) & (c[1] < 9), body, (x, 0))

    assert watched.of(until_large, X, KERNEL) == ["convolve"]
    ours, plain = (jax.jit(f)(X, KERNEL) for f in (fast.form(until_large), until_large))
    np.testing.assert_allclose(ours[0], plain[0], rtol=1e-4)
    assert ours[1] == plain[1] > 0


def test_the_test_of_a_loop_is_played(watched):
    def until_small(x, kernel):
        return lax.while_loop(
            lambda x: convolved(x, kernel).max() > 1, lambda x: x / 2, x
        )

    assert watched.of(until_small, X, KERNEL) == ["convolve"]
    ours, plain = (f(X, KERNEL) for f in (fast.form(until_small), until_small))
    np.testing.assert_array_equal(ours, plain)


def test_a_jitted_function_keeps_its_name_and_is_one_for_several_calls(watched):
    @jax.jit
    def block(x, kernel):
        return layer(x, kernel)

    def net(x, kernel):
        return block(block(x, kernel), kernel)

    played = fast.form(net)
    assert watched.of(net, X, KERNEL) == ["convolve"]  # traced once
    lowered = jax.jit(played).lower(X, KERNEL).as_text()
    assert lowered.count("func.func private @block") == 1


def test_what_is_computed_again_still_is():
    policies = jax.checkpoint_policies

    def layers(policy):
        def twice(x, kernel):
            return jnp.sin(layer(layer(x, kernel), kernel))

        net = fast.form(jax.checkpoint(twice, policy=policy))
        slope = jax.grad(lambda kernel: net(X, kernel).sum())
        return text(slope, KERNEL).count("platform_index")

    assert layers(None) == layers(policies.nothing_saveable) == 4
    assert layers(policies.everything_saveable) == 2


def conv_with_rule(rule):
    if rule == "jvp":
        function = jax.custom_jvp(convolved)
        function.defjvp(lambda p, t: (convolved(*p), 2 * convolved(t[0], p[1])))
    else:
        function = jax.custom_vjp(convolved)
        function.defvjp(lambda *p: (convolved(*p), p), lambda p, dy: (3 * dy, 0 * p[1]))
    return function


@pytest.mark.parametrize("rule", ["jvp", "vjp"])
def test_derivatives_written_by_hand_stay(rule, watched):
    own = conv_with_rule(rule)
    assert_untouched(own, X, KERNEL)

    def net(x, kernel):
        return layer(own(x, kernel), kernel)

    assert watched.of(net, X, KERNEL) == ["convolve"]
    assert_agree(net, X, KERNEL)


def test_forms_that_were_put_in_by_platform_stay():
    def chosen(x, kernel):
        return lax.platform_dependent(x, kernel, cpu=convolved, default=layer)

    assert_untouched(chosen, X, KERNEL)
    once = fast.form(layer)
    assert text(fast.form(once), X, KERNEL) == text(once, X, KERNEL)


def test_functions_of_devices_stay():
    mesh = jax.make_mesh((1,), ("i",), (jax.sharding.AxisType.Auto,))
    here = jax.sharding.NamedSharding(mesh, P())
    placed = jax.jit(layer, in_shardings=here, out_shardings=here)
    on_each = jax.shard_map(layer, mesh=mesh, in_specs=P(), out_specs=P())
    for function in (placed, on_each):
        assert_untouched(lambda x, kernel, f=function: f(x, kernel) + 1, X, KERNEL)


def test_gradients_inside_a_loss_are_played_where_they_are_convolutions(watched):
    def penalised(x, kernel):
        value, slope = jax.value_and_grad(lambda x: (layer(x, kernel) ** 2).sum())(x)
        return value + (slope**2).sum()

    assert "convolve" in watched.of(penalised, X, KERNEL)
    assert_agree(penalised, X / 9, KERNEL)


def test_random_keys_and_effects_are_as_they_were():
    said = []

    def noisy(x, kernel, key):
        y = layer(x, kernel)
        jax.debug.callback(lambda total: said.append(float(total)), y.sum())
        keys = jax.random.split(key)
        y = jnp.where(jax.random.bernoulli(keys[0], 0.5, y.shape), y, 0)
        return y + jax.random.normal(jax.random.fold_in(keys[1], 3), y.shape)

    arguments = X, KERNEL, jax.random.key(7)
    ours, plain = (jax.jit(f)(*arguments) for f in (fast.form(noisy), noisy))
    jax.effects_barrier()
    np.testing.assert_allclose(ours, plain, atol=1e-4)
    assert len(said) == 2 and abs(said[0] - said[1]) < 1e-2
    assert_agree(noisy, *arguments)


def test_results_may_be_numbers_arguments_and_trees():
    def several(x, kernel, more):
        return {"x": x, "y": layer(x, kernel), "n": 3, "of": (2.0, None, more["a"])}

    ours = fast.form(several)(X, kernel=KERNEL, more={"a": jnp.arange(3)})
    plain = several(X, KERNEL, {"a": jnp.arange(3)})
    assert jax.tree.structure(ours) == jax.tree.structure(plain)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), ours, plain)


def test_a_function_left_as_written_stays(watched):
    left = fast.as_written(layer)
    assert_untouched(left, X, KERNEL)

    def partly(x, kernel):
        return layer(left(x, kernel), kernel)

    assert watched.of(partly, X, KERNEL) == ["convolve"]
    assert_agree(partly, X, KERNEL)
    assert text(jax.jit(layer), X, KERNEL) == text(left, X, KERNEL).replace(
        "as_written", "layer"
    )
