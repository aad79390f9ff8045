"""Configs for tests: a small model on two devices, with a few keys changed."""

from fl_sketch.run.loop import Watch

from configs import default
from fl_sketch.run import begin, build, train


def config_with(**changes):
    """Returns the defaults with changes, as in `server__rate=0.1`."""
    config = default.get_config()
    config.compute.devices = 2
    config.model.name = "logistic"
    for key, value in changes.items():
        *groups, name = key.split("__")
        place = config
        for group in groups:
            place = place[group]
        place[name] = value
    return config


def rows_of(data_dir=None, **changes):
    """Returns the rows of such a config's run, which leaves no files."""
    config, rows = config_with(**changes), []
    built = build(config, data_dir)
    train(
        built,
        built.compile(),
        begin(built, config.eval_every),
        rounds=config.rounds,
        checkpoint_every=config.checkpoint_every,
        watch=Watch(row=rows.append),
    )
    return rows
