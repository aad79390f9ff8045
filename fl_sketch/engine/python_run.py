"""A run that Python described, in a folder: the same files as of a config's run."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fl_sketch.core import chacha, files, trees
from fl_sketch.core.keys import roots_of
from fl_sketch.core.protocols import Key, Roots, Tree
from fl_sketch.data import Clients
from fl_sketch.engine import progress_bar, resumable
from fl_sketch.engine.costs import Traffic
from fl_sketch.engine.loop import Watch
from fl_sketch.engine.mesh import mesh_over, name_of
from fl_sketch.engine.recorder import Row
from fl_sketch.engine.task import Task
from fl_sketch.models import params_io
from fl_sketch.workdir.folder import METRICS
from fl_sketch.workdir.identity import identity_of
from fl_sketch.workdir.secrets import Secret

DOOR = "engine.simulate"  # in config.json, what made the folder


def described(
    task: Task,
    key: Key | Roots,
    params: Tree,
    clients: Clients,
    talk: Traffic,
    about: Mapping[str, Any],
) -> Task:
    """Returns a task with what a folder needs: a description, digests and a secret.

    Args:
      key: the root of everything random.
      about: the options of the run, for config.json.
    """
    roots, digests = roots_of(key), _digests(clients)
    model = {name: np.asarray(leaf) for name, leaf in trees.named_leaves(params)}
    public = np.asarray(jax.random.key_data(roots.public)).tobytes()
    config = {
        **about,
        "made_by": DOOR,
        "model": {"digest": params_io.digest(model)},
        "data": {"name": DOOR, "public": False, "clients": clients.population},
        "key": public.hex(),
    }
    known, guarantee = task.known, task.known.guarantee
    if guarantee:
        guarantee = guarantee._replace(partition=digests["partition"])
    facts = {
        "made_by": DOOR,
        "d": trees.size(trees.trained(params)),
        "sketch_size": sum(talk.sent),
        "clients": clients.population,
        "exchanges": len(talk.sent),
        **(guarantee.facts if guarantee else {}),
        **dict.fromkeys(("bound", "noise"), "one's own"),
        "threshold": "as it says",
        "noised": [],
    }
    devices = name_of(mesh_over(jax.devices()))
    return task._replace(
        config=config,
        identity=identity_of(digests, devices, keyed=task.private),
        known=known._replace(guarantee=guarantee),
        facts=facts,
        model={"model": DOOR, "algorithm": DOOR, "dataset": DOOR, "public": False},
        secret=_secret(roots) if task.private else None,
        roots=lambda secret: _with(roots, secret),
    )


def _digests(clients: Clients) -> dict[str, str]:
    """Returns digests of the examples, and of who has which."""
    digests = {
        f"train_{name}": params_io.digest({"": np.asarray(leaf)})
        for name, leaf in trees.named_leaves(clients.examples)
    }
    shares = clients.partition
    dealt = {"indices": shares.indices, "starts": shares.starts}
    return digests | {"partition": params_io.digest(dealt)}


def _secret(roots: Roots) -> Secret:
    """Returns the secret of a private run; a simulated one's follows from the key."""
    raw = np.asarray(jax.random.key_data(roots.secret)).tobytes()
    return Secret(
        raw if chacha.is_secret(roots.secret) else hashlib.sha256(raw).digest()
    )


def _with(roots: Roots, secret: Secret | None) -> Roots:
    """Returns `roots` with the secret that the folder kept."""
    if secret is None or not chacha.is_secret(roots.secret):
        return roots
    return roots._replace(secret=chacha.key_of(secret.reveal()))


def in_folder(
    task: Task,
    workdir: str | os.PathLike,
    told: Sequence[Callable[[Row], None]],
    bar: bool | None,
) -> tuple[resumable.Progress, list[Row]]:
    """Plays a run in a folder, from where it was stopped; returns all rows as well."""
    with resumable.opened(workdir, task) as folder:
        assert folder
        summary = folder.summary()
        if summary is None:
            task = resumable.with_secret(folder, task)
        else:
            task = task._replace(secret=None)  # it is forgotten, and no longer needed
        progress = resumable.resumed(folder, task, lambda line: None)
        with progress_bar.shown(task.last, progress.done, shown=bar) as move:
            if summary is None:
                compiled = task.compile(task.roots(task.secret))
                progress = resumable.play_on(
                    task,
                    progress,
                    compiled,
                    folder,
                    told=told,
                    watch=Watch(rounds=move),
                )
                last = folder.rows[-1]
                resumable.finish(
                    folder,
                    task,
                    resumable.summary_of(
                        task, progress, last, compile_seconds=compiled.seconds
                    ),
                )
        return progress, [
            _read(row) for row in files.read_rows(folder.folder / METRICS)
        ]


def _read(row: Mapping[str, str]) -> Row:
    """Returns a row of a csv file with numbers, as Python has it."""
    return {name: _number(text) for name, text in row.items()}


def _number(text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        try:
            return float(text)  # nan and inf
        except ValueError:
            return text
