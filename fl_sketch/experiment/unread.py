"""Keys of a config that change nothing, since its algorithm does not read them."""

from collections.abc import Iterator

from ml_collections import ConfigDict

from fl_sketch.algorithms import catalog
from fl_sketch.experiment.choices import flat

# A key and the arguments of algorithms that it goes into; keys that stand for more
# than one algorithm's part, as rates and steps do, are not among them.
CARRIED = {
    "client.rate": ("client_rate",),
    "client.proximal": ("proximal",),
    "client.decay": ("decay",),
    "client.gain": ("gain",),
    "client.clip": ("client_clip",),
    "server.optimizer": ("server",),
    "server.b1": ("server", "momentum", "b1"),
    "server.b2": ("server", "b2"),
    "server.eps": ("server", "eps"),
    "server.warmup": ("warmup",),
    "sketch.operator": ("sketch",),
    "sketch.compression": ("sketch",),
    "sketch.numbers": ("sketch",),
    "sketch.rows": ("sketch",),
    "sketch.layout": ("sketch",),
    "sketch.stored": ("sketch",),
    "sketch.forget": ("forget",),
    "sketch.masking": ("masking",),
    "sketch.window": ("window",),
    "sketch.query": ("query",),
    "sketch.heavy": ("heavy",),
    "sketch.heavy_values": ("values",),
    "compressor.name": ("compressor",),
    "compressor.compression": ("compressor", "cocktail"),
    "compressor.levels": ("levels", "compressor", "cocktail"),
    "compressor.probability": ("probability",),
    "privacy.threshold": ("threshold",),
}
# Keys, and with which values of another key they are read.
ASKED_FOR = {
    "data.alpha": ("data.partition", ("dirichlet",)),
    "data.per_client": ("data.partition", ("label_shards", "classes")),
    "data.exponent": ("data.partition", ("power_law",)),
    "server.floor": ("server.schedule", ("cosine",)),
    "privacy.smallest_cohort": ("privacy.noise", ("distributed",)),
    "privacy.quantile": ("privacy.bound", ("adaptive",)),
    "privacy.quantile_rate": ("privacy.bound", ("adaptive",)),
    "privacy.quantile_noise": ("privacy.bound", ("adaptive",)),
}


def unread(config: ConfigDict, default: ConfigDict) -> Iterator[str]:
    """Yields `key=value` of what was changed and is not read."""
    before, now = flat(default), flat(config)
    takes = catalog.taken_by(config.algorithm)
    for key, names in CARRIED.items():
        guarded = key == "privacy.threshold" and config.privacy.bound != "none"
        if now[key] != before[key] and not guarded and not {*names} & {*takes}:
            yield f"{key}={now[key]}"
    for key, (other, values) in ASKED_FOR.items():
        if now[key] != before[key] and now[other] not in values:
            yield f"{key}={now[key]}"
