"""Fine-tuning MiniLM, a pretrained encoder, on SST-2, with sketches and without.

Command: python -m launch.train --config=configs/finetune_minilm.py:minilm \
--workdir=/tmp/minilm --data_dir=DATA
Command: python -m launch.compare --config=configs/finetune_minilm.py:minilm \
--workdir=/tmp/compare_minilm --data_dir=DATA

The argument after the colon is the folder of the model (see docs/finetuning.md). The
first command trains with SAFL, with messages 500 times smaller than the model. The
second has five clients, as Chen et al., Figure 3, and two local steps of 32 sentences
(the paper: batches of 128). It compares FedAdam and SAFL at three sizes, the same with
random weights, FedAdam of the head alone, and low-rank factors with and without a
sketch.
"""

from configs import default
from fl_sketch.sweep.comparison import Comparison, Method

RATES = {  # of the server
    "pretrained": (0.0001, 0.0003, 0.001, 0.003),
    "random": (0.0003, 0.001, 0.003, 0.01),
    "head": (0.003, 0.01, 0.03, 0.1),
    "LoRA": (0.0003, 0.001, 0.003, 0.01),
}
LORA = {"client.trains": "lora(rank=8, on=query|value)+head"}
COMPRESSIONS = (50.0, 500.0, 5000.0)
BLOCKS = [f"block{number}" for number in range(1, 7)]
RANDOM = {
    "model.fresh": ",".join(["tokens", "positions", "types", "norm", *BLOCKS]),
    "client.rate": 0.003,  # 0.03 is too large for random weights
}


def get_config(folder: str = "minilm"):
    """Returns the config of SAFL.

    Args:
      folder: the folder with the pretrained model.
    """
    config = default.get_config()
    config.algorithm, config.rounds = "safl", 100
    config.eval_every = config.checkpoint_every = 25
    config.data.name, config.data.length = "sst2", 32
    config.data.clients = 5
    config.cohort.sampling = "everyone"
    config.model.name = f"hf/{folder}"
    config.client.rate, config.client.steps, config.client.batch = 0.03, 2, 32
    config.server.rate = 0.001
    config.server.schedule, config.server.floor = "cosine", 1e-5
    config.sketch.compression = 500.0
    return config


def get_comparison(folder: str = "minilm"):
    """Returns the arms, each with a server rate of its own."""
    sizes = {"FedAdam": {"algorithm": "fedadam"}}
    for compression in COMPRESSIONS:
        sizes[f"SAFL, 1/{compression:g}"] = {"sketch.compression": compression}
    methods = {}
    for begun, more in {"pretrained": {}, "random": RANDOM}.items():
        tune = {"server.rate": RATES[begun]}
        for name, keys in sizes.items():
            methods[f"{begun}: {name}"] = Method({**keys, **more}, tune)
    head = {"algorithm": "fedadam", "client.trains": "head"}
    methods["head: FedAdam"] = Method(head, {"server.rate": RATES["head"]})
    sketches = {"FedAdam": sizes["FedAdam"]}
    sketches |= {f"SAFL, 1/{c:g}": {"sketch.compression": c} for c in (10.0, 100.0)}
    for name, keys in sketches.items():
        tune = {"server.rate": RATES["LoRA"]}
        methods[f"LoRA: {name}"] = Method({**keys, **LORA}, tune)
    return Comparison(get_config(folder), methods, tuning_rounds=50, widen=2)
