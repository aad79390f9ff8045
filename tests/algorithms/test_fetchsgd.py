"""FetchSGD, worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_sketch import algorithms, engine, sketch, transforms
from fl_sketch.core.protocols import Sketch
from fl_sketch.sketch import compressors
from tests.channels.rounds import quickly
from tests.meshes import mesh_of

KEY = jax.random.key(5)


def matrix(rows):
    """Returns the sketch by a matrix, one that no key draws: R x."""
    r = jnp.asarray(rows, jnp.float32)

    def back(key, message, like):
        del key, like
        return r.T @ message

    return Sketch(
        apply=lambda key, x: r @ x,
        transpose=back,
        estimate=back,
        zeros=lambda like=None: jnp.zeros(len(r)),
        size=lambda like=None: len(r),
        resize=lambda numbers: None,
        fixed_key=True,
    )


# Least squares on the rows (1, 2) and (3, 4) with targets 1 and 2, from w = 0 with rate
# 0.005 and momentum 0.9. The mean gradient is ((w.a - 1) a + (w.b - 2) b) / 2.
#
# Apart, k = 1. g = (-7, -10)/2 = (-3.5, -5) = u; e = 0.005 u = (-0.0175, -0.025): the
#   second is heavier, w = (0, 0.025), e = (-0.0175, 0).
#   Residuals -0.95, -1.9; g = (-3.325, -4.75); u = 0.9 u + g = (-6.475, -9.25);
#   e = (-0.0175 - 0.032375, -0.04625) = (-0.049875, -0.04625): the first,
#   w = (0.049875, 0.025), e = (0, -0.04625).
#   Residuals -0.900125, -1.750375; g = (-3.075625, -4.400875);
#   u = (-5.8275 - 3.075625, -8.325 - 4.400875) = (-8.903125, -12.725875);
#   e = (-0.044515625, -0.109879375): the second, w = (0.049875, 0.134879375).
# Apart, k = 2. w = (0.0175, 0.025); residuals -0.9325, -1.8475; g = (-3.2375, -4.6275);
#   u = (-6.3875, -9.1275); w = (0.0494375, 0.0706375).
# Both in one bucket, k = 1. S = -8.5 = u; e = -0.0425, which both coordinates claim:
#   the first of equals, w = (0.0425, 0), e = 0. Residuals -0.9575, -1.8725;
#   g = (-3.2875, -4.7025); S = -7.99; u = -7.65 - 7.99 = -15.64; w = (0.1207, 0).
# Both in one bucket, k = 2. w = (0.0425, 0.0425); the step's sketch is -0.085, so that
#   e = -0.0425 + 0.085 = 0.0425. Residuals -0.8725, -1.7025; g = (-2.99, -4.2775);
#   S = -7.2675; u = -14.9175; e = 0.0425 - 0.0745875 = -0.0320875;
#   w = (0.0745875, 0.0745875).
# All of these subtract. The same, forgetting to zero: e = 0 - 0.0745875;
#   w = (0.1170875, 0.1170875).
# Apart, k = 2, with rates 0.005 and 0.01: w = (0.0175, 0.025) + 0.01 (6.3875, 9.1275).
# Apart, k = 1, momentum masked. After the first round u = (-3.5, 0); then
#   u = (-6.475, -4.75), e = (-0.049875, -0.02375), w = (0.049875, 0.025) as before; u
#   keeps (0, -4.75), then u = (-3.075625, -8.675875),
#   e = (-0.015378125, -0.067129375), w = (0.049875, 0.092129375).
APART, TOGETHER = ((1, 0), (0, 1)), ((1, 1),)
BY_HAND = {
    "apart, k=1": (
        APART, {"heavy": 1},
        [(0, 0.025), (0.049875, 0.025), (0.049875, 0.134879375)],
    ),
    "apart, k=2": (APART, {"heavy": 2}, [(0.0175, 0.025), (0.0494375, 0.0706375)]),
    "apart, a schedule": (
        APART, {"heavy": 2, "server_rate": lambda count: 0.005 * (1 + count)},
        [(0.0175, 0.025), (0.081375, 0.116275)],
    ),
    "together, k=1": (TOGETHER, {"heavy": 1}, [(0.0425, 0), (0.1207, 0)]),
    "together, k=2": (
        TOGETHER, {"heavy": 2}, [(0.0425, 0.0425), (0.0745875, 0.0745875)],
    ),
    "together, zeroed": (
        TOGETHER, {"heavy": 2, "forget": "zero"},
        [(0.0425, 0.0425), (0.1170875, 0.1170875)],
    ),
    "apart, masked": (
        APART, {"heavy": 1, "masking": True},
        [(0, 0.025), (0.049875, 0.025), (0.049875, 0.092129375)],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:forget='subtract'")
@pytest.mark.parametrize(
    ("name", "workers"), [("apart, k=1", 1), *((name, 2) for name in BY_HAND)]
)
def test_fetchsgd_goes_where_it_goes_by_hand(name, workers):
    rows, options, expected = BY_HAND[name]
    inputs, targets = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1.0, 2.0])

    def squares(w, batch):
        x, y = batch
        return jnp.mean((x @ w - y) ** 2) / 2

    def own(data, client, plan, key):
        """One worker has both rows, two have one each; one batch."""
        del plan, key
        return jax.tree.map(
            lambda leaf: leaf.reshape(workers, 1, -1, *leaf.shape[1:])[client], data
        )

    algorithm = algorithms.fetchsgd(
        squares,
        sketch=matrix(rows),
        momentum=0.9,
        **{"forget": "subtract", "server_rate": 0.005} | options,
    )
    one_round = quickly(engine.make_round(algorithm, own, mesh_of(1, "clients")))
    state = engine.initial_state(algorithm, jnp.zeros(2), workers)
    everyone = engine.everyone(workers)(KEY)
    for w in expected:
        state, _ = one_round(state, KEY, everyone, (inputs, targets))
        np.testing.assert_allclose(state.server.params, w, rtol=1e-5, atol=1e-7)


def squares(params, batch):
    return jnp.mean((params - batch) ** 2)


def growth(columns, k, forget, steps=50):
    """Returns how much longer the errors are after steps of their own, by `k`."""
    op, d = sketch.fixed_key(sketch.count_sketch(columns, 5), KEY), 50 * columns
    tx, params = (
        transforms.fetchsgd(op, k, 1.0, momentum=0.0, forget=forget),
        jnp.zeros(d),
    )
    nothing = jnp.zeros((5, columns))

    @quickly
    def run(message):
        state = tx.update(message, tx.init(params), params)[1]
        last = jax.lax.fori_loop(
            0, steps, lambda _, state: tx.update(nothing, state, params)[1], state
        )
        return jnp.linalg.norm(last.error) / jnp.linalg.norm(message)

    return float(run(op.apply(KEY, jax.random.normal(KEY, (d,)))))


def test_errors_that_are_subtracted_grow_and_those_set_to_zero_shrink():
    columns = 50
    assert growth(columns, columns // 2, "subtract") > 1e6
    assert growth(columns, columns // 50, "subtract") < 1
    assert growth(columns, columns, "zero") < 0.1


def test_the_printed_form_is_warned_of_and_takes_few_coordinates():
    op = sketch.count_sketch(100, 5)
    with pytest.warns(UserWarning, match=r"fiftieth of the columns \(here k=2\)"):
        algorithm = algorithms.fetchsgd(
            squares, sketch=op, server_rate=0.1, forget="subtract"
        )
    assert algorithm.downlink.bits(1000) == compressors.top_k(2).bits(1000)
    plain = algorithms.fetchsgd(squares, sketch=op, server_rate=0.1)
    assert plain.downlink.bits(1000) == compressors.top_k(100).bits(1000)
