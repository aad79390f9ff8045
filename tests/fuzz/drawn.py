"""Random configs: what each key may be, and now and then what it may not."""

import tempfile
import traceback

from configs import default
from fl_sketch.core.mappings import flat
from fl_sketch.run import NotFinite, run

SMALL = {
    "rounds": 2, "eval_every": 2, "checkpoint_every": 2, "model.name": "logistic",
    "data.clients": 6, "cohort.size": 3, "client.steps": 2, "client.batch": 4,
}  # fmt: skip
WORDS = {
    "algorithm": "safl fedavg fedopt cd_adam cocktail_sgd dp_fedavg dp_normfedavg ef21 "
    "ef_sign_sgd fedcomgate fedgate fedsketch fedsketchgate fetchsgd marina "
    "iterative_sketching onebit_adam private_sketching qsgd scaffold sign_sgd "
    "sketched_sgd",
    "download": "cheapest model messages",
    "data.name": "digits digits synthetic/60",
    "data.partition": "iid dirichlet capped_dirichlet mixtures label_shards classes "
    "power_law natural",
    "data.part": "all all 1/2 2/2 1/9 3/2",
    "data.vocabulary_file": "characters",
    "data.standardise": "none train 0.3/0.3 0.3/0 1,2/3,4",
    "data.augment": "none crop flip crop_flip reflect_crop_flip",
    "model.name": "logistic logistic logistic logistic mlp lenet lenet_valid "
    "sigmoid_lenet cnn vit transformer language_model",
    "model.size": "small small tiny",
    "model.norm": "group batch",
    "model.kernels": "lecun_normal glorot_uniform",
    "model.loss": "cross_entropy cross_entropy binary squared absolute",
    "model.metrics": "accuracy accuracy,perplexity perplexity rmse rmse,rmse f1",
    "model.fresh": "dense x",
    "cohort.sampling": "fixed poisson replacement everyone",
    "cohort.weighting": "equal examples",
    "client.optimizer": "sgd adam adamw(b1=0.8) sgd(momentum=0.9) lion noisy_sgd lbfgs",
    "client.batches": "fresh subsets whole",
    "server.optimizer": "sgd momentum adam amsgrad paper_amsgrad scalar_adam yogi "
    "adagrad",
    "server.schedule": "constant cosine",
    "sketch.operator": "count_sketch sparse_embedding srht gaussian ams "
    "uniform_sampling identity",
    "sketch.layout": "whole leaves",
    "sketch.forget": "zero subtract",
    "sketch.query": "privix heaprix",
    "sketch.heavy_fill": "random top",
    "sketch.heavy_values": "exact fresh",
    "compressor.name": "top_k random_k scaled_sign qsgd nearest cocktail",
    "privacy.randomness": "system seed",
    "privacy.bound": "none clip normalise adaptive",
    "privacy.unit": "client example",
    "privacy.relation": "add_remove replace_one",
    "privacy.accountant": "auto pld rdp",
    "privacy.noise": "central skellam",
    "compute.data": "auto resident streamed",
    "compute.dtype": "float32 float32 bfloat16",
}
INTEGERS = (0, 1, 2, 3, 5, 7, 20, 64, -1, 1000)
FLOATS = (0.0, 1e-6, 0.01, 0.1, 0.5, 0.9, 1.0, 2.0, 10.0, 100.0, -1.0, 1e30)
GARBAGE = ("", "nonsense", "none", "../../etc/passwd", "a b", "1e3", "safl;", "\u00e9")
PLAIN = ("Expected ", "config.", "The training loss is", "The test loss is")
KEYS = flat(default.get_config())
OWN = (ValueError, TypeError, OSError, ArithmeticError, NotFinite)


def value_of(key, draw):
    """Returns a value for a key; `draw` chooses one of several."""
    kind = KEYS[key]
    if isinstance(kind, bool):
        return draw((True, False))
    if isinstance(kind, int):
        return draw(INTEGERS)
    if isinstance(kind, float):
        return draw(FLOATS)
    words = WORDS.get(key, "").split()
    return draw(words if words and draw((True,) * 9 + (False,)) else GARBAGE)


def changes_of(draw, most=6):
    """Returns what a config changes, over `SMALL`."""
    names = tuple(KEYS)
    found = {}
    for _ in range(draw(tuple(range(1, most + 1)))):
        key = draw(names)
        found[key] = value_of(key, draw)
    return found


def config_of(changes):
    config = default.get_config()
    config.update_from_flattened_dict(SMALL | changes)
    config.compute.devices = changes.get("compute.devices", 1)
    return config


def outcome(changes):
    """Returns "ran" or "refused", and what went wrong if it was neither."""
    try:
        config = config_of(changes)
    except (TypeError, ValueError):  # ml_collections' own: the launches say it
        return "refused", ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(config, f"{folder}/run", say=lambda line: None)
        except OWN as error:
            text = str(error)
            if text.startswith(PLAIN) and "\n" not in text:
                return "refused", ""
            return "unclear", traceback.format_exc()
        except Exception:
            return "traceback", traceback.format_exc()
    return "ran", ""
