"""Runs a config: begins or resumes, trains, and leaves everything in a folder."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch import engine
from fl_sketch.config import arguments
from fl_sketch.core.mappings import flat
from fl_sketch.engine import multiprocess, rounds
from fl_sketch.engine.first_row import FirstRow
from fl_sketch.engine.loop import Callback, Progress
from fl_sketch.engine.recorder import Row
from fl_sketch.run import clients, display, facts
from fl_sketch.run.bar import Bar
from fl_sketch.run.folder import Folder
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.run.signals import Signals
from fl_sketch.workdir import trackers

OnRow = Callable[[Row], None]
Say = Callable[[str], None]


class Terminal(Callback):
    """Prints a table of rows, and gives them to functions."""

    def __init__(self, setup: Setup, say: Say, functions: Sequence[OnRow]):
        """Takes a setup, what prints a line, and functions of a row."""
        self._setup, self._say, self._functions = setup, say, functions

    def on_start(self, progress: Progress) -> Progress:
        """Says where the run continues."""
        if progress.done:
            self._say(f"resuming after round {progress.done}")
        return progress

    def on_compiled(self, progress: Progress) -> None:
        """Prints the head of the table."""
        del progress
        self._say(display.head(self._setup))

    def on_row(self, row: Row, progress: Progress) -> None:
        """Prints a row."""
        del progress
        self._say(display.row(row))
        for function in self._functions:
            function(dict(row))


def run(
    config: ConfigDict,
    workdir: str,
    data_dir: str | None = None,
    *,
    tensorboard: bool = False,
    wandb: bool = False,
    on_row: OnRow | None = None,
    say: Say = tqdm.write,
) -> dict[str, Any]:
    """Runs a config to its end, from where an earlier run in the folder was stopped.

    A run that has ended continues if `config.rounds` has grown, unless what was played
    depends on it.

    Args:
      config: a config as `configs/default.py` has it.
      workdir: the folder of the run.
      data_dir: the folder of raw data sets.
      tensorboard: whether to write events for TensorBoard too.
      wandb: whether to send rows to wandb.
      on_row: is called with every row.
      say: prints a line.

    Returns:
      The contents of summary.json.

    Raises:
      NotFinite: if the training diverges.
      Stopped: on SIGINT, SIGTERM or SIGHUP, after the progress is saved.
    """
    asked = {trackers.TENSORBOARD: tensorboard, trackers.WANDB: wandb}
    for name in filter(asked.get, asked):
        trackers.require_installed(name)
    setup, first = prepare(config, data_dir), multiprocess.is_first()
    to = {"tensorboard": tensorboard, "wandb": wandb, "on_row": on_row}
    return in_folder(setup, workdir, **to, say=say if first else lambda line: None)


def fixed_by(setup: Setup, before: int) -> str:
    """Returns what depends on the number of rounds, which was `before`; empty: nothing.

    With more rounds it would then be another run from the first round on.
    """
    for key in arguments.by_length(setup.config):
        return key
    longer, shorter = setup.experiment, setup.longer(before).experiment
    if longer.private:
        assert longer.guarantee and shorter.guarantee
        if setup.config.privacy.randomness == "seed":
            return "privacy.randomness=seed"
        z = shorter.guarantee.noise_multiplier
        if z != longer.guarantee.noise_multiplier:
            return "privacy.target_epsilon, which chose the noise"
    if longer.prices.followed != shorter.prices.followed:
        return f"download={setup.config.download}"
    return ""


def in_folder(
    setup: Setup,
    workdir: str,
    *,
    tensorboard: bool = False,
    wandb: bool = False,
    on_row: OnRow | None = None,
    say: Say = tqdm.write,
    compiled: Callable[..., rounds.Advance] = rounds.compile_rounds,
) -> dict[str, Any]:
    """Runs a setup to its end in a folder; returns and raises what `run` does.

    The rounds may be played elsewhere: see `engine.run`.
    """
    experiment, private = setup.experiment, setup.experiment.private
    own = {"keep": setup.config.checkpoint_keep, "say": say}
    own["fixed_by"] = lambda before: fixed_by(setup, before)
    with Folder(workdir, experiment, facts.about(setup), **own) as folder:
        for line in display.plan(setup):
            say(line)
        if ended := folder.ended:
            say(f"{workdir} already has this run, finished; its last row:")
            say(display.head(setup))
            say(display.row({**ended, "round": ended["rounds"]}))
            folder.complete()
            return ended
        # Signals are handled from here on, so that compiling is not cut short.
        with Signals() as signals, contextlib.ExitStack() as stack:
            here = folder.workdir
            bar = Bar(experiment.last, shown=None if here else False)
            callbacks = [folder, signals, stack.enter_context(bar)]
            if here:
                functions = [on_row] if on_row else []
                if tensorboard:
                    board = trackers.tensorboard(here.folder, folder.done(), private)
                    functions.append(stack.enter_context(board))
                if wandb:
                    sent = trackers.wandb(here.folder, flat(setup.config), private)
                    functions.append(stack.enter_context(sent))
                callbacks.append(Terminal(setup, say, functions))
            callbacks.append(FirstRow(experiment, setup.splits.test))
            options = {"callbacks": callbacks, "compiled": compiled}
            result = engine.run(experiment, key=setup.roots(), **options)
        more = clients.write(setup, here.folder, result) if here else {}
        summary = folder.finish(result, more)
    for line in display.result(summary, workdir):
        say(line)
    return summary
