"""NIID-Bench's small network on CIFAR-10, with sketches beside its rows.

Command: python -m launch.train --config=configs/niid_bench.py:10,dirichlet,fedavg \
--workdir=/tmp/niid_bench --data_dir=DATA
Expect: test accuracy after the last round; the benchmark's own table is below.

Parties pass 10 times over their images in a round, in batches of 64 at rate 0.01, with
momentum of 0.9 that begins anew in each round and weight decay of 1e-5. They count by
their images. Two convolutions, pools and three dense layers have 62,006 parameters.
Inputs are in [0, 1]; in training they are moved by up to four pixels, with mirrored
edges, and flipped. The argument is a setting, a partition and a method:

  10, 100                  10 parties and 50 rounds; 100 parties, 10 in a round, and 500
  dirichlet                capped_dirichlet with 0.5, the benchmark's rule
  published                the one partition by this rule that its accuracies are of, by
                           experiments/niid_bench.py: with FL_SKETCH_DATA=DATA, from the
                           root of the repository
  classes                  two classes each, here spread evenly over parties
  iid
  fedavg, fedprox          the benchmark's methods; SCAFFOLD adds its correction to
  scaffold                 steps with momentum, and sends two vectors
  10x, 100x                SAFL, messages 10 or 100 times smaller; rates are not tuned

The benchmark's accuracy, FedAvg and SCAFFOLD: 68.2 and 69.8 (10,dirichlet), 49.8 and
49.1 (10,classes), 65.6 and 10.0 (100,iid), 59.4 and 10.0 (100,dirichlet), 45.3 and 10.0
(100,classes). Initial weights are PyTorch's there.

Reference: Li et al. (2022), Federated Learning on Non-IID Data Silos: An Experimental
Study.
"""

from configs import default

SETTINGS = {
    "10": {"data.clients": 10, "cohort.sampling": "everyone", "rounds": 50},
    "100": {"data.clients": 100, "cohort.size": 10, "rounds": 500},
}
PARTITIONS = {
    "dirichlet": {"data.partition": "capped_dirichlet", "data.alpha": 0.5},
    "published": {"data.partition": "natural"},
    "classes": {"data.partition": "classes", "data.per_client": 2},
    "iid": {"data.partition": "iid"},
}
METHODS = {
    "fedavg": {"algorithm": "fedavg", "server.rate": 1.0},
    "fedprox": {"algorithm": "fedavg", "server.rate": 1.0, "client.proximal": 0.001},
    "scaffold": {"algorithm": "scaffold", "server.rate": 1.0},
    "10x": {"sketch.compression": 10.0, "server.rate": 0.003},
    "100x": {"sketch.compression": 100.0, "server.rate": 0.003},
}


def get_config(which: str = "10,dirichlet,fedavg"):
    """Returns the config of a row.

    Args:
      which: one of `SETTINGS`, of `PARTITIONS` and of `METHODS`, with commas.

    Raises:
      ValueError: for any other text, in one line.
    """
    parts, tables = which.split(","), (SETTINGS, PARTITIONS, METHODS)
    right = len(parts) == len(tables)
    if not right or any(p not in t for p, t in zip(parts, tables, strict=True)):
        allowed = ",".join("|".join(table) for table in tables)
        msg = f"Expected configs/niid_bench.py:{allowed}, got {which}."
        raise ValueError(msg)
    config = default.get_config()
    config.data.name = "cifar10"
    config.data.augment = "reflect_crop_flip"
    config.model.name = "lenet_valid"
    config.model.weight_decay = 1e-5
    config.cohort.weighting = "examples"
    config.client.optimizer = "sgd(momentum=0.9)"
    config.client.rate = 0.01
    config.client.epochs = 10
    config.client.batch = 64
    config.compute.devices = 1  # with two, one waits for the other's larger clients
    for part, table in zip(parts, tables, strict=True):
        config.update_from_flattened_dict(table[part])
    if "published" in parts:
        config.data.name = f"experiments/niid_bench.py:of_{parts[0]}"
    config.eval_every = config.checkpoint_every = config.rounds // 50
    return config
