"""What the net runs: every method of the catalogue, and the configs that differ most.

A case is a list of commands that are run one after the other. `{folder}` stands for the
folder of the case.
"""

from tests.launching import ROOT

CHANGES = {
    "rounds": 6,
    "eval_every": 3,
    "checkpoint_every": 3,
    "data.partition": "dirichlet",
    "data.clients": 12,
    "cohort.size": 5,
    "model.width": 16,
}
NOISE = {
    "privacy.randomness": "seed",
    "privacy.noise_multiplier": 1.0,
    "privacy.delta": 1e-3,
    "privacy.relation": "replace_one",
}
CLIP = NOISE | {"privacy.bound": "clip"}
POISSON = {"cohort.sampling": "poisson", "privacy.relation": "add_remove"}
NET = ROOT / "tests" / "net"

#: Keys of each method beside its name.
METHODS = {
    "cd_adam": {},
    "cocktail_sgd": {},
    "dp_fedavg": NOISE,
    "dp_normfedavg": NOISE,
    "ef21": {},
    "ef_sign_sgd": {},
    "fedavg": {"client.proximal": 0.1, "cohort.weighting": "examples"},
    "fedcomgate": {},
    "fedgate": {},
    "fedopt": {"server.schedule": "cosine"},
    "fedsketch": {"sketch.rows": 3, "sketch.query": "heaprix"},
    "fedsketchgate": {"sketch.rows": 3},
    "fetchsgd": {"sketch.rows": 3},
    "iterative_sketching": {"sketch.operator": "srht"},
    "marina": {"compressor.name": "random_k", "compressor.compression": 5.0},
    "onebit_adam": {},
    "private_sketching": NOISE
    | {"privacy.unit": "example", "client.batches": "subsets", "client.batch": 4}
    | {"data.partition": "iid"},
    "qsgd": {},
    "safl": {"sketch.layout": "leaves", "client.clip": 0.5},
    "scaffold": {},
    "sign_sgd": {},
    "sketched_sgd": {"sketch.rows": 3},
}

#: Keys of runs that differ most in how they are played.
RUNS = {
    "private": CLIP | POISSON,
    "target": CLIP
    | POISSON
    | {"privacy.noise_multiplier": 0.0, "privacy.target_epsilon": 8.0},
    "budget": CLIP | {"privacy.target_epsilon": 9.0, "rounds": 40},
    "adaptive": CLIP
    | POISSON
    | {"privacy.bound": "adaptive", "privacy.quantile_noise": 2.0},
    "streamed": {"compute.data": "streamed"},
    "batch_norm": {"model.name": "resnet", "model.size": "tiny", "model.norm": "batch"}
    | {"model.width": 4, "client.steps": 2},
    "single_clients": {"data.held_out": 0.2},
    "absent": {"cohort.dropout": 0.3},
    "several_devices_a_model": {"compute.model_devices": 2},
    "standardised": {"data.standardise": "train", "data.augment": "crop"},
    "vmapped": {"compute.chunk": 3},
    "replacement": {"cohort.sampling": "replacement"},
    "momentum": {"client.optimizer": "adamw(b1=0.8)", "client.weight_decay": 0.01},
}


def flags(changes):
    """Returns the flags of a config with these changes."""
    keys = CHANGES | changes
    return [f"--config.{key}={value}" for key, value in keys.items()]


def train(changes, *more):
    """Returns a command that trains the defaults with these changes."""
    start = ["launch.train", "--workdir={folder}", *more]
    return [*start, "--config=configs/default.py", *flags(changes)]


def sweep(over, changes, how):
    """Returns a command that sweeps the defaults with these changes."""
    axes = [f"--over={key}={values}" for key, values in over.items()]
    start = ["launch.sweep", "--workdir={folder}", f"--map={how}", *axes]
    return [*start, "--config=configs/default.py", *flags(changes)]


WORDS = {
    "data.name": "sst2",
    "data.clients": 4,
    "data.length": 8,
    "data.vocabulary": 10,
    "model.name": "transformer",
    "client.steps": 2,
    "client.batch": 4,
    "cohort.size": 2,
}
CHARACTERS = WORDS | {
    "data.name": "shakespeare",
    "data.clients": 3,
    "data.partition": "natural",
    "model.name": "language_model",
}
OVER = {"client.rate": "0.1,0.3", "seed": "0,1", "sketch.compression": "10,20"}
COMPARE = ["launch.compare", "--workdir={folder}"]
COMPARE += [f"--config={NET / 'comparison.py'}"]

CASES = {
    **{name: [train({"algorithm": name} | own)] for name, own in METHODS.items()},
    **{f"run {name}": [train(own)] for name, own in RUNS.items()},
    "run words": [train(WORDS, "--data_dir={raw}")],
    "run characters": [train(CHARACTERS, "--data_dir={raw}")],
    "extended": [train({}), train({"rounds": 10})],
    "sweep loop": [sweep(OVER, {}, "loop")],
    "sweep vmap": [sweep(OVER, {}, "vmap")],
    "sweep private": [sweep({"client.rate": "0.1,0.3"}, CLIP, "loop")],
    "compare": [COMPARE],
}
#: A run that is killed by SIGKILL when it has begun, and started again.
KILLED = train({"rounds": 600, "eval_every": 20, "checkpoint_every": 10})
#: A run of two processes, each of which gets more flags.
TWO_PROCESSES = train({})
