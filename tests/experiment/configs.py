"""Configs for tests: a small model on two devices, with a few keys changed."""

from configs import default


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
