"""What `simulate` comes to, printed as json: for the net."""

import hashlib
import json

import jax

from fl_sketch.run import simulate

jax.config.update("jax_num_cpu_devices", 2)  # before the first array

import numpy as np  # noqa: E402

from fl_sketch import data, engine  # noqa: E402
from fl_sketch.privacy import clipping, mechanism  # noqa: E402
from tests.quadratics import CATALOGUE, PARAMS  # noqa: E402

WORK = {"key": jax.random.key(3), "rounds": 9, "every": 4, "steps": 3, "batch": 1}


def clients():
    """Returns eight clients of four examples each."""
    random = np.random.default_rng(0)
    optima = random.normal(size=(32, 16)).astype("float32")
    return data.clients((optima,), owners=np.arange(32) % 8)


def of_one_array(algorithm):
    """Returns the same for examples that are tuples of one array."""
    run = algorithm.local.run

    def of_tuple(server, state, batches, keys):
        return run(server, state, batches[0], keys)

    return algorithm._replace(local=algorithm.local._replace(run=of_tuple))


def facts(run):
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(run.params):
        digest.update(np.asarray(leaf).tobytes())
    return {"params": digest.hexdigest(), "history": run.history}


def main():
    people = clients()
    found = {}
    methods = {name: of_one_array(own) for name, own in CATALOGUE.items()}
    for name, algorithm in methods.items():
        cohort = 8 if name == "onebit_adam" else 4
        found[name] = facts(simulate(algorithm, PARAMS, people, cohort=cohort, **WORK))
    bound = mechanism.central(clipping.clip(1.0), noise_multiplier=2.0, denominator=4)
    private = methods["fedavg"]._replace(mechanism=bound)
    whole = {**WORK, "cohort": engine.poisson(8, 4), "delta": 1e-2}
    first = simulate(private, PARAMS, people, **whole | {"rounds": 4})
    found["private"] = facts(
        simulate(private, PARAMS, people, state=first.state, **whole | {"rounds": 5})
    )
    found["streamed"] = facts(
        simulate(methods["ef21"], PARAMS, people, data="streamed", **WORK)
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
