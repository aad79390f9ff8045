"""A toy with known answers: client i has the loss |x - o_i|^2 / 2, for x in a tree."""

import jax
import jax.numpy as jnp
import optax

from fl_sketch import algorithms, channels, sketch, transforms
from fl_sketch.core.protocols import Algorithm
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local

PARAMS = {"w": jnp.zeros((4, 3)), "b": jnp.zeros(4)}
D, STEPS, RATE = 16, 3, 0.1


def optima(clients, seed=1):
    """Returns o, of shape (clients, D)."""
    return jax.random.normal(jax.random.key(seed), (clients, D)) * 2 + 1


def loss(params, optimum):
    return jnp.sum((flat(params) - optimum) ** 2) / 2


def flat(tree):
    return jax.flatten_util.ravel_pytree(tree)[0]


def fetch(data, client, plan, key):
    """Every step sees the client's own optimum."""
    del plan, key
    return jnp.broadcast_to(data[client], (STEPS, D))


SGD = optax.sgd(RATE)
FIXED = sketch.fixed_key(sketch.count_sketch(12, rows=3), jax.random.key(9))
COUNT = sketch.count_sketch(12, rows=3)

# One row for every shape of algorithm.
ALGORITHMS = {
    "fedavg": algorithms.fedavg(loss, client_rate=RATE, server_momentum=0.5),
    "fedprox": algorithms.fedavg(loss, client_rate=RATE, proximal=0.3),
    "fedadam": algorithms.fedopt(loss, client_rate=RATE, server=optax.adam(0.05)),
    "safl": algorithms.safl(
        loss,
        sketch=sketch.gaussian(8),
        client_rate=RATE,
        server=transforms.paper_amsgrad(0.02),
    ),
    "sadl": algorithms.safl(
        loss,
        sketch=sketch.srht(8),
        client_rate=RATE,
        server=transforms.paper_amsgrad(0.02),
        moments="halves",
    ),
    "clipped_safl": algorithms.safl(
        loss,
        sketch=sketch.srht(8),
        client_rate=RATE,
        server=optax.adam(optax.cosine_decay_schedule(0.05, 20, alpha=0.1)),
        client_clip=1.5,
    ),
    "iterative_sketching": algorithms.iterative_sketching(
        loss, sketch=sketch.ams(8), client_rate=RATE, server_rate=0.5
    ),
    "full_gradient": Algorithm(
        local.full_gradient_steps(loss, SGD, steps=4), channels.exact(), optax.sgd(1.0)
    ),
    "quantised": Algorithm(
        local.one_gradient(loss),
        channels.compressed(compressors.qsgd(4)),
        optax.sgd(0.1),
    ),
    "heaprix": Algorithm(
        local.sgd_steps(loss, SGD),
        channels.heaprix(COUNT, 4),
        optax.sgd(0.5),
    ),
    "sketched_sgd": algorithms.sketched_sgd(
        loss, sketch=COUNT, server_rate=0.1, heavy=4
    ),
    "ef21": algorithms.ef21(
        loss, compressor=compressors.top_k(4), server=optax.sgd(0.1)
    ),
    "marina": algorithms.marina(
        loss, compressor=compressors.random_k(4), server_rate=0.1, probability=0.3
    ),
    "onebit_adam": algorithms.onebit_adam(loss, server_rate=0.05, warmup=4),
    "gradient_tracking": Algorithm(
        local.tracked_steps(loss, rate=RATE, gain=1 / (RATE * STEPS)),
        channels.sketched(COUNT, read="estimate"),
        optax.sgd(0.2),
    ),
    "fetch_sgd": algorithms.fetchsgd(
        loss, sketch=FIXED, server_rate=0.05, momentum=0.5, heavy=4
    ),
    "sketched_down": Algorithm(
        local.sgd_steps(loss, SGD),
        channels.exact(),
        optax.chain(
            transforms.error_feedback(transforms.compress(compressors.top_k(4))),
            optax.sgd(0.5),
        ),
    ),
}

TOP = compressors.top_k(3)
COCKTAIL = compressors.then(
    compressors.random_k(8, unbiased=False),
    compressors.top_k(3),
    compressors.nearest(3),
)
CATALOGUE = ALGORITHMS | {
    "cocktail_sgd": algorithms.cocktail_sgd(
        loss, cocktail=COCKTAIL, client_rate=0.1, server_rate=0.1
    ),
    "cd_adam": algorithms.cd_adam(loss, compressor=TOP, server_rate=0.1),
    "fedcams": algorithms.fedcams(
        loss, compressor=TOP, client_rate=RATE, server_rate=0.1, eps=0.01
    ),
    "sign_sgd": algorithms.sign_sgd(loss, server_rate=0.1),
    "ef_sign_sgd": algorithms.ef_sign_sgd(loss, client_rate=0.1, server_rate=0.1),
    "scaffold": algorithms.scaffold(
        loss, client_rate=0.1, server_rate=1.0, steps=STEPS
    ),
    "heaprix_gate": algorithms.fedsketchgate(
        loss, sketch=COUNT, client_rate=0.1, server_rate=1.0, gain=3.3, query="heaprix"
    ),
}
