"""The secret of a private run in a folder, and what it was used for.

A folder knows the noise and the plan by which its rounds were counted, and the program
by which they were played. Whatever else could get the same noise is refused.
"""

import json
from collections.abc import Callable

from fl_sketch.core.keys import roots_of
from fl_sketch.core.protocols import Roots
from fl_sketch.engine import multiprocess
from fl_sketch.engine.task import Task
from fl_sketch.workdir import checkpoint, odometer, secrets
from fl_sketch.workdir.folder import Workdir
from fl_sketch.workdir.odometer import RUN


def with_secret(folder: Workdir | None, task: Task) -> Task:
    """Returns the task with the secret and the noise with which it began.

    Raises:
      ValueError: for a folder that lacks them, or whose rounds were counted otherwise.
    """
    guarantee, fresh = task.known.guarantee, task.secret
    if guarantee is None or fresh is None:
        return task

    def begun(folder: Workdir) -> bytes:
        secret, entries = fresh, odometer.read(folder.folder)
        if guarantee.randomness != "simulated":
            secret = _secret_in(folder, fresh, entries)
        expected = guarantee.after(0)._replace(secret=secret.check)
        _require_same_plan(entries, expected, folder)
        z = guarantee.noise_multiplier
        if entries:
            z = entries[RUN].noise_multiplier
        else:
            with folder.writing():
                odometer.note(folder.folder, {RUN: expected})
        return json.dumps([secret.reveal().hex(), z]).encode()

    raw, z = json.loads(from_first(folder, begun))
    if z != guarantee.noise_multiplier:  # another version of the accountant chose it
        assert task.with_noise
        task = task.with_noise(z)
    return task._replace(secret=secrets.Secret(bytes.fromhex(raw)))


def _secret_in(
    folder: Workdir, fresh: secrets.Secret, entries: odometer.Entries
) -> secrets.Secret:
    """Returns the secret of the run in a folder, or a fresh one that is now kept."""
    place = folder.folder
    if not entries:  # no round was released, since they are counted beforehand
        if folder.has_rows or checkpoint.rounds(folder.checkpoints):
            msg = (
                f"Expected {odometer.FILE} in workdir={place}, to count the privacy of "
                "its rounds, got none: use another workdir."
            )
            raise ValueError(msg)
        with folder.writing():
            secrets.keep(place, fresh)
        return fresh
    kept = secrets.kept(place)
    if kept is None:
        msg = (
            f"Expected the secret of the run in workdir={place}, got none, as after "
            "the end of a run: its rounds would be released again with other noise. "
            "Use another workdir."
        )
        raise ValueError(msg)
    if entries[RUN].secret != kept.check:
        msg = (
            f"Expected {place / secrets.FILE} to be unchanged, got a damaged one: "
            "rounds would be released again with other noise. Use another workdir."
        )
        raise ValueError(msg)
    return kept


def roots_by_program(
    folder: Workdir | None, task: Task
) -> Callable[[str], Roots] | None:
    """Returns `(program) -> roots` of a run in a folder whose noise is secret.

    None for any other run. The function raises a ValueError if the run in the folder
    has another program.
    """
    guarantee, secret = task.known.guarantee, task.secret
    if guarantee is None or secret is None or guarantee.randomness == "simulated":
        return None

    def seal(program: str) -> Roots:
        def known(folder: Workdir) -> bytes:
            counted = odometer.read(folder.folder)[RUN].plan.steps > 0
            with folder.writing():
                secrets.keep_program(folder.folder, secret, program, counted=counted)
            return program.encode()

        # Other hosts may have another processor: all seal by the first one's program.
        first = from_first(folder, known).decode()
        return roots_of(task.roots(secret.sealed(first)))

    return seal


def _require_same_plan(entries, expected, folder: Workdir) -> None:
    """Raises if the rounds in a folder were counted otherwise than is expected."""
    for name, entry in entries.items():
        same = entry._replace(
            plan=entry.plan._replace(steps=0),
            rounds=expected.rounds,
            noise_multiplier=expected.noise_multiplier,
        )
        if name != RUN or same != expected:
            msg = (
                "Expected workdir to hold a run with the privacy plan of this one, got "
                f"another in {folder.folder}/{odometer.FILE}: use another workdir."
            )
            raise ValueError(msg)


def from_first(folder: Workdir | None, make: Callable[[Workdir], bytes]) -> bytes:
    """Returns what the first process makes of its folder, in all processes."""
    return multiprocess.from_first(make(folder) if folder else b"")
