"""Models of several widths: the cost of a sketch as the number of parameters grows.

Command: python -m launch.scaling --config=configs/scaling.py:fashion_mnist \
--workdir=/tmp/scaling --data_dir=DATA
Expect: the tables of results/scaling.

  fashion_mnist   MLPs of two hidden layers, six widths
  cifar10         CNNs of two convolutions and a dense layer, four widths
  rounds          the MLPs at constant rates: rounds to 80 and 83 % test accuracy, with
                  --set=rounds=400, 1600 or 6400 as the number of rounds to tune for

Five clients with equal shares take part in every round, with two local steps of 32
examples. Messages are a fraction of the model, or have the same size for all models: a
hundredth of the middle one. The server's rate falls by a cosine to nearly zero. The
Hessian of a CNN has four probes instead of ten.
"""

from configs import default
from fl_sketch.experiments.scaling import Laboratory

ADAPTIVE = (0.003, 0.01, 0.03)
RELATIVE = {
    "1/10": {"sketch.compression": 10.0},
    "1/100": {"sketch.compression": 100.0},
    "1/1000": {"sketch.compression": 1000.0},
}
TASKS = {
    "fashion_mnist": {"data.name": "fashion_mnist", "model.name": "mlp", "rounds": 400},
    "cifar10": {"data.name": "cifar10", "model.name": "cnn", "rounds": 400},
}
TASKS["rounds"] = {
    **TASKS["fashion_mnist"],
    "eval_every": 10,
    "server.schedule": "constant",
}
TARGETS = (0.80, 0.83)
WIDTHS = {
    # 33,450 to 4,985,430 parameters
    "fashion_mnist": (40, 90, 200, 400, 800, 1870),
    # 25,682 to 1,626,442 parameters
    "cifar10": (4, 8, 16, 32),
}
WIDTHS["rounds"] = WIDTHS["fashion_mnist"]
FIXED = {"fashion_mnist": 1992, "cifar10": 4072, "rounds": 1992}


def get_laboratory(which: str = "fashion_mnist") -> Laboratory:
    """Returns the models of a task and their measurements.

    Args:
      which: one of `TASKS`.

    Raises:
      ValueError: for any other text, in one line.
    """
    if which not in TASKS:
        msg = f"Expected configs/scaling.py:{'|'.join(TASKS)}, got {which}."
        raise ValueError(msg)
    base = default.get_config()
    base.eval_every = 100
    base.checkpoint_every = 100
    base.data.clients = 5
    base.cohort.sampling = "everyone"
    base.client.rate = 0.1
    base.client.steps = 2
    base.client.batch = 32
    base.server.schedule = "cosine"
    base.server.floor = 1e-5
    base.update_from_flattened_dict(TASKS[which])
    fixed = {f"b={FIXED[which]}": {"sketch.numbers": FIXED[which]}}
    others = dict.fromkeys(("paper_amsgrad", "scalar_adam"), ADAPTIVE)
    others["sgd"] = (0.3, 1.0, 3.0)
    whole = which == "fashion_mnist"
    return Laboratory(
        base,
        WIDTHS[which],
        {"adam": ADAPTIVE, **(others if whole else {})},
        {**(RELATIVE if whole else {"1/100": RELATIVE["1/100"]}), **fixed},
        shared=("1/100",),
        probes=10 if whole else 4,  # one probe of a CNN takes minutes
        **({"spectra": (), "targets": TARGETS} if which == "rounds" else {}),
    )
