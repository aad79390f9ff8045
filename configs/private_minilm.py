"""Private fine-tuning of MiniLM on SST-2, at epsilon 8 for each client (simulated).

Command: python -m launch.train --config=configs/private_minilm.py:minilm \
--workdir=/tmp/private_minilm --data_dir=DATA
Command: python -m launch.compare --config=configs/private_minilm.py:minilm \
--workdir=/tmp/compare_private_minilm --data_dir=DATA

The argument after the colon is the folder of the model (see docs/finetuning.md). 5000
clients have 13 or 14 sentences each, and about 40 of them take part in a round. The
first command trains low-rank factors with SAFL, with messages of a tenth of their
numbers. The second compares this with no sketch, with the head alone, and with no
privacy. The noise follows from the seed and protects no one:
--config.privacy.randomness=system makes a run private.
"""

from configs import finetune_minilm
from fl_sketch.sweep.comparison import Comparison, Method

LORA = "lora(rank=4, on=query|value)+head"
RATES = {"server.rate": (0.001, 0.003, 0.01)}


def get_config(folder: str = "minilm"):
    """Returns the config of the private, sketched LoRA.

    Args:
      folder: the folder with the pretrained model.
    """
    config = finetune_minilm.get_config(folder)
    config.data.clients = 5000
    config.cohort.sampling, config.cohort.size = "poisson", 40
    config.client.trains = LORA
    config.client.steps, config.client.batch = 1, 4
    config.server.rate, config.server.schedule = 0.003, "constant"
    config.sketch.compression = 10.0
    config.privacy.bound = "normalise"
    config.privacy.target_epsilon = 8.0
    config.privacy.randomness = "seed"  # a simulation that can be repeated
    return config


def get_comparison(folder: str = "minilm"):
    """Returns four methods, each with a server rate of its own."""
    plain = {"algorithm": "fedadam"}
    open_ = plain | {"privacy.target_epsilon": 0.0, "privacy.bound": "none"}
    methods = {
        "LoRA, not private": Method(open_, RATES),
        "LoRA, epsilon 8": Method(plain, RATES),
        "SAFL of LoRA, 1/10, epsilon 8": Method({}, RATES),
        "head, epsilon 8": Method(
            plain | {"client.trains": "head"}, {"server.rate": (0.003, 0.01, 0.03)}
        ),
    }
    return Comparison(get_config(folder), methods, tuning_rounds=50, widen=2)
