"""Fine-tuning MiniLM, a pretrained encoder, on SST-2, with sketches and without.

Command: python -m launch.train --config=configs/finetune_minilm.py:minilm \
--workdir=/tmp/minilm --data_dir=DATA
Command: python -m launch.compare --config=configs/finetune_minilm.py:minilm \
--workdir=/tmp/compare_minilm --data_dir=DATA

After the colon stands the folder with the model: docs/finetuning.md says where it comes
from. The first command trains with SAFL, with messages 500 times smaller than the
model. The second compares FedAdam with SAFL at three sizes. The setting is that of Chen
et al., Figure 3: five clients, two local steps of 32 sentences.
"""

from configs import default
from fl_sketch.sweep.comparison import Comparison, Method

RATES = (0.0001, 0.0003, 0.001, 0.003)
COMPRESSIONS = (50.0, 500.0, 5000.0)


def get_config(folder: str = "minilm"):
    """Returns the config of SAFL.

    Args:
      folder: the folder with the pretrained model.
    """
    config = default.get_config()
    config.algorithm, config.rounds = "safl", 200
    config.eval_every = config.checkpoint_every = 20
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
    """Returns FedAdam and SAFL at three sizes, each with rates of its own."""
    tune = {"server.rate": RATES}
    methods = {"FedAdam": Method({"algorithm": "fedopt"}, tune)}
    for compression in COMPRESSIONS:
        keys = {"sketch.compression": compression}
        methods[f"SAFL, 1/{compression:g}"] = Method(keys, tune)
    return Comparison(get_config(folder), methods, widen=4)
