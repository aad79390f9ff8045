"""The secret of a private run: 256 bits from which all that protects is drawn.

They come from the operating system and stand in no result, config or summary. While the
run can go on they lie in one file of mode 0600 beside its checkpoints, since a round
that was released once must come out the same if it is played again. When the run is
done the file is deleted. A simulation makes them from the config instead.
"""

import hashlib
import json
import os
import pathlib
import stat

import jax
from ml_collections import ConfigDict

from fl_sketch.core import chacha, files
from fl_sketch.core.mappings import flat
from fl_sketch.core.protocols import Roots

FILE, PARTIAL = "secret", ".secret.partial"  # in the folder of a run
# What changes neither a model nor its noise, but for what does of it if it is not this.
APART = ("eval_every", "checkpoint_every", "checkpoint_keep", "download", "compute.")
DECIDING = {"compute.dtype": "float32", "compute.model_devices": 1}


class Secret:
    """32 bytes that are not shown by accident."""

    def __init__(self, raw: bytes):
        """Takes the `raw` bytes."""
        self._raw = raw

    def __repr__(self) -> str:
        """Says that there is something, and not what."""
        return "Secret(...)"

    def reveal(self) -> bytes:
        """Returns the bytes."""
        return self._raw


def roots(
    seed: int, secret: Secret | None, placed: jax.sharding.Sharding | None = None
) -> Roots:
    """Returns the roots of a run, placed on its devices.

    Args:
      seed: the source of everything that nobody has to be protected by.
      secret: the source of everything else; None: nobody is protected, and the seed
        decides all.
      placed: the sharding that they get.
    """
    if secret is None:
        one = jax.jit(jax.random.key, out_shardings=placed)(seed)
        return Roots(one, one)

    words = chacha.words_of(secret.reveal())
    return jax.jit(chacha.roots_with, out_shardings=placed)(seed, words)


def fresh() -> Secret:
    """Returns a secret of the operating system."""
    return Secret(os.urandom(chacha.KEY_BYTES))


def simulated(config: ConfigDict) -> Secret:
    """Returns a secret that follows from `config`: no secret at all.

    Configs that differ in anything that decides the run have unlike noise, so that
    what is wrong with sharing noise is not simulated either.
    """
    keys = flat(config)
    unlike = {key for key, plain in DECIDING.items() if keys[key] != plain}
    counted = {key for key in keys if not key.startswith(APART)} | unlike
    own = {key: keys[key] for key in sorted(counted)}
    return Secret(hashlib.sha256(json.dumps(own).encode()).digest())


def made_for(config: ConfigDict) -> Secret:
    """Returns a secret of the kind that `config` asks for."""
    return simulated(config) if config.privacy.randomness == "seed" else fresh()


def kept(folder: pathlib.Path) -> Secret | None:
    """Returns the secret in `folder`, if one is there.

    Raises:
      ValueError: for a file that is not a secret as it was written.
    """
    path = folder / FILE
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return None
    private = stat.S_ISREG(facts.st_mode) and not facts.st_mode & 0o077
    if not private or facts.st_uid != os.geteuid():
        msg = (
            f"Expected {path} to be a file that its owner alone can read, got "
            f"{stat.filemode(facts.st_mode)} of user {facts.st_uid}."
        )
        raise ValueError(msg)
    raw = path.read_bytes()
    if len(raw) != chacha.KEY_BYTES:
        msg = f"Expected {path} to hold {chacha.KEY_BYTES} bytes, got {len(raw)}."
        raise ValueError(msg)
    return Secret(raw)


def keep(folder: pathlib.Path, secret: Secret) -> None:
    """Writes `secret` to a new file in `folder`, for its owner alone, and to disk."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    partial = folder / PARTIAL
    partial.unlink(missing_ok=True)  # of a run that was killed while writing
    handle = os.open(partial, flags, 0o600)
    try:
        os.write(handle, secret.reveal())
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(partial, folder / FILE)
    files.flush(folder)


def forget(folder: pathlib.Path) -> None:
    """Deletes the secret in `folder`, of a run that is done."""
    for name in (FILE, PARTIAL):
        (folder / name).unlink(missing_ok=True)
