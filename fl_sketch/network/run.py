"""A run whose clients are elsewhere: its folder is that of `launch.train`.

Rows, checkpoints, the ledger, the odometer and resuming are those of a run in one
program: only what advances the state is another. Clients' states are at the sites. A
checkpoint is saved after every round, so that a coordinator that was stopped asks for
no round twice.
"""

import functools
import os
import pathlib
import secrets as system
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from fl_sketch.core import files
from fl_sketch.core.constants import jitted
from fl_sketch.core.protocols import Key, Roots
from fl_sketch.data.examples import Splits
from fl_sketch.engine import rounds
from fl_sketch.engine.loop import Compiled
from fl_sketch.engine.round import State
from fl_sketch.engine.task import Task
from fl_sketch.network import job, policy
from fl_sketch.network.coordinator import Coordinator, Rules, Send
from fl_sketch.network.messages import Message
from fl_sketch.network.site import Part, Site
from fl_sketch.run import task as tasks
from fl_sketch.run.run import Listeners, in_folder
from fl_sketch.run.setup import Setup
from fl_sketch.workdir import secrets

FOLDER, RUN = "network", "run"  # in the folder of a run: the name of the run


def run(
    config: ConfigDict,
    splits: Splits,
    workdir: str | os.PathLike,
    send: Send,
    *,
    names: Sequence[str],
    rules: Rules = Rules(),  # noqa: B008 - immutable
    before_round: Callable[[], None] = lambda: None,
    listeners: Listeners = Listeners(),  # noqa: B008 - immutable
) -> dict[str, Any]:
    """Runs a config with sites, from where an earlier run in the folder was stopped.

    Args:
      splits: the test data, and the number of classes.
      names: the names of the sites, in the order of clients.
      before_round: is called before anything of a round is released; may raise.

    Returns:
      The contents of summary.json.
    """
    setup = job.of_coordinator(config, splits)
    place = files.writable_folder(workdir)
    folder = place / FOLDER
    folder.mkdir(exist_ok=True)
    if not (folder / RUN).exists():
        files.write_text(folder / RUN, system.token_hex(16))
    coordinators: list[Coordinator] = []

    def coordinator(setup: Setup, roots: Roots) -> Coordinator:
        one = Coordinator(
            job.programs_of(setup),
            setup.sampler,
            roots,
            send,
            run=(folder / RUN).read_text(),
            names=names,
            terms=job.terms_of(setup, names),
            rules=rules,
            folder=folder,
            secret=setup.private and config.privacy.randomness != "seed",
            before_round=before_round,
            say=listeners.say,
        )
        coordinators.append(one)
        return one

    def task(setup: Setup) -> Task:
        secret = setup.secret()

        @functools.cache
        def roots(secret: secrets.Secret | None) -> Roots:
            return secrets.roots(setup.config.seed, secret)

        def start(key: Key | Roots) -> State:
            first = jitted(lambda key: setup.start(setup.numbers, key))(key)
            return State(first.server, ())

        def compiled(key: Any, seal: Any = None) -> Compiled:
            del seal  # noise is a function of secret, round and sum
            begin = time.perf_counter()
            shapes = setup.placed(jax.eval_shape(start, key))
            where = jax.tree.map(lambda leaf: leaf.sharding, shapes.server.params)
            measure = tasks.measuring(setup, shapes)

            def measured(state: State) -> dict[str, float]:
                params = jax.device_put(state.server.params, where)
                return measure(State(state.server._replace(params=params), ()))

            advance = rounds.one_by_one(coordinator(setup, key).one_round)
            return Compiled(advance, measured, time.perf_counter() - begin)

        described = tasks.described(
            setup,
            start=start,
            compile=compiled,
            roots=roots,
            known=tasks.known_of(setup)._replace(absences=True),
            secret=secret,
            with_noise=lambda z: task(setup.with_noise(z)),
        )
        return described._replace(save_every=1, keep=2)

    summary = in_folder(setup, task(setup), str(place), listeners)
    for one in coordinators[-1:]:
        one.end_rounds(summary["rounds"])
    return summary


def in_one_process(
    config: ConfigDict,
    workdir: pathlib.Path,
    data_dir: str | None = None,
    *,
    names: Sequence[str],
    rules: Rules = Rules(),  # noqa: B008 - immutable
    listeners: Listeners = Listeners(),  # noqa: B008 - immutable
) -> dict[str, Any]:
    """Splits a data set among folders of sites, and runs with them in this process."""
    folder = workdir / FOLDER / "sites"
    splits = job.split(config, data_dir, folder, names)
    sites = [site_of(folder / name, listeners.say) for name in names]

    def send(data, seconds):
        del seconds
        return {client: sites[client].receive(one) for client, one in data.items()}

    options = {"names": names, "rules": rules, "listeners": listeners}
    return run(config, splits, workdir, send, **options)


def site_of(kit: pathlib.Path, say: Callable[[str], None] = print) -> Site:
    """Returns the site whose site.toml and identity are in a folder."""

    def join(terms: Message) -> Part:
        return job.join(policy.read(kit / policy.FILE), terms, kit)

    return Site(join, say)
