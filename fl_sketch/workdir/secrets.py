"""The secret of a private run, in its folder, or that of a simulation.

No result, config or summary contains it. While the run can be resumed, since a released
round must be the same if it is repeated, it is in one file of mode 0600, with a name of
the program of its rounds.
"""

import hashlib
import hmac
import json
import os
import pathlib
import stat
from collections.abc import Mapping
from typing import Any

from fl_sketch.core import chacha, files
from fl_sketch.core.secret import Secret

FILE, PARTIAL = "secret", ".secret.partial"  # in the folder of a run
# Keys that change neither a model nor its noise, except at other values than these.
APART = ("eval_every", "checkpoint_every", "checkpoint_keep", "download", "compute.")
DECIDING = {"compute.dtype": "float32", "compute.model_devices": 1}
ADDED = {  # keys that older configs did not have, and their defaults
    "client.epochs": 0,
    "client.trains": "all",
    "data.partition_seed": -1,
    "privacy.bits": 0,
}
RENAMED = {"sketch.size": "sketch.numbers"}  # keys, and their names before
DROPPED = {  # keys that only older configs have, and their defaults
    "clients_every": 0,
    "privacy.form": "message",
    "privacy.planned_rounds": 0,
    "privacy.watch": False,
    "privacy.watch_loss": 5.0,
    "privacy.watch_noise": 0.0,
    "cohort.available": "",
    "cohort.deadline": 0.0,
    "cohort.jitter": 0.0,
    "cohort.period": 0,
    "cohort.sending": 0.0,
    "cohort.times": "",
    "network.graph": "none",
    "network.relay": "flood",
    "personal_steps": 0,
    "sketch.window": 0,
}


def simulated(keys: Mapping[str, Any]) -> Secret:
    """Returns a simulated secret, derived from the dotted `keys` of a config.

    Configs of different runs have different noise, as private runs do.
    """
    counted = DROPPED | {RENAMED.get(key, key): keys[key] for key in keys}
    counted = {k: value for k, value in counted.items() if not k.startswith(APART)}
    counted |= {k: keys[k] for k, plain in DECIDING.items() if keys[k] != plain}
    plain = {k for k, default in ADDED.items() if counted.get(k) == default}
    deciding = {key: counted[key] for key in sorted(counted.keys() - plain)}
    return Secret(hashlib.sha256(json.dumps(deciding).encode()).digest())


def kept(folder: pathlib.Path) -> Secret | None:
    """Returns the secret in `folder`, if there is one, as it was written."""
    path = folder / FILE
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return None
    private = stat.S_ISREG(facts.st_mode) and not facts.st_mode & 0o077
    if not private or facts.st_uid != os.geteuid():
        msg = f"Expected {path} to be readable by its owner only, got "
        msg += f"{stat.filemode(facts.st_mode)} of user {facts.st_uid}."
        raise ValueError(msg)
    raw = path.read_bytes()
    if len(raw) not in (chacha.KEY_BYTES, 2 * chacha.KEY_BYTES):
        msg = f"Expected {path} to hold {chacha.KEY_BYTES} bytes, got {len(raw)}."
        raise ValueError(msg)
    return Secret(raw[: chacha.KEY_BYTES])


def keep(folder: pathlib.Path, secret: Secret) -> None:
    """Writes `secret` to a new file in `folder`, for its owner alone, and to disk."""
    files.write_private(folder / FILE, secret.reveal(), partial=folder / PARTIAL)


def keep_program(
    folder: pathlib.Path, secret: Secret, program: str, *, counted: bool
) -> None:
    """Writes beside the `secret` in `folder` a name of the program of its rounds.

    If rounds were `counted`, it must be theirs. `program` is a digest.
    """
    before = (folder / FILE).read_bytes()[chacha.KEY_BYTES :]
    if not counted:
        whole = secret.reveal() + secret.name_of(program)
        files.write_private(folder / FILE, whole, partial=folder / PARTIAL)
    elif not hmac.compare_digest(before, secret.name_of(program)):
        msg = (
            f"Expected rounds of the same program as before in workdir={folder}, got "
            "another one (another loss, rate, bound or server, another version, "
            "setting or device, or a callback to the host, which cannot be compared): "
            "its sums may not have the same noise. Use another workdir."
        )
        raise ValueError(msg)


def forget(folder: pathlib.Path) -> None:
    """Deletes the secret in `folder`, of a run that is done."""
    for name in (FILE, PARTIAL):
        (folder / name).unlink(missing_ok=True)
