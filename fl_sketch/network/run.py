"""A run whose clients are elsewhere: its folder is that of `launch.train`.

Rows, checkpoints, the ledger, the odometer and resuming are those of a run in one
program: only what advances the state is another. Clients' states are at the sites. A
checkpoint is saved after every round, so that a coordinator that was stopped asks for
no round twice.
"""

import os
import pathlib
import secrets as system
from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch.core import files
from fl_sketch.core.protocols import Roots
from fl_sketch.data.examples import Splits
from fl_sketch.engine import rounds
from fl_sketch.engine.experiment import Experiment
from fl_sketch.engine.round import State
from fl_sketch.engine.rounds import Advance
from fl_sketch.network import job, policy
from fl_sketch.network.coordinator import Coordinator, Rules, Send
from fl_sketch.network.messages import Message
from fl_sketch.network.site import Part, Site
from fl_sketch.run.run import in_folder

Say = Callable[[str], None]
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
    say: Say = tqdm.write,
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

    def played(experiment: Experiment, state: State, roots: Roots, seal) -> Advance:
        # Noise is a function of secret, round and sum, whatever the program is.
        del state, seal
        one = Coordinator(
            job.programs_of(setup),
            experiment.cohort,
            roots,
            send,
            run=(folder / RUN).read_text(),
            names=names,
            terms=job.terms_of(setup, names),
            rules=rules,
            folder=folder,
            secret=experiment.private and config.privacy.randomness != "seed",
            before_round=before_round,
            say=say,
        )
        coordinators.append(one)
        return rounds.one_by_one(
            lambda state, number: one.one_round(jax.device_get(state), number)
        )

    summary = in_folder(setup, str(place), say=say, compiled=played)
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
    say: Say = tqdm.write,
) -> dict[str, Any]:
    """Splits a data set among folders of sites, and runs with them in this process."""
    folder = workdir / FOLDER / "sites"
    for name in names if (workdir / FOLDER / RUN).exists() else ():
        if not (folder / name / job.DATA).exists():
            say(f"warning: {name} lost its folder: its data and its ledger begin anew")
    splits = job.split(config, data_dir, folder, names)
    sites = [site_of(folder / name, say) for name in names]

    def send(data, seconds):
        del seconds
        return {client: sites[client].receive(one) for client, one in data.items()}

    options = {"names": names, "rules": rules, "say": say}
    return run(config, splits, workdir, send, **options)


def site_of(kit: pathlib.Path, say: Say = print) -> Site:
    """Returns the site whose site.toml and identity are in a folder."""

    def join(terms: Message) -> Part:
        return job.join(policy.read(kit / policy.FILE), terms, kit)

    return Site(join, say)
