"""One command's worth: build, resume or begin, train, leave everything in a folder."""

import contextlib
import io
import json
from collections.abc import Callable, Collection
from typing import Any

import jax
from ml_collections import ConfigDict
from tqdm import tqdm

from fl_sketch.core import validate
from fl_sketch.core.mappings import flat
from fl_sketch.run import agreement, display, extension, nodes, processes, views
from fl_sketch.run.build import Experiment, build
from fl_sketch.run.loop import MESSY, NotFinite, Progress, Watch, begin, train
from fl_sketch.run.signals import asking
from fl_sketch.run.views import Looks
from fl_sketch.workdir import checkpoint, identity, odometer, secrets, trackers, weights
from fl_sketch.workdir import rows as names
from fl_sketch.workdir.folder import Workdir
from fl_sketch.workdir.kept_config import config_of
from fl_sketch.workdir.tensorboard import open_board, require_installed

RUN = "run"  # what the odometer calls it


def run(
    config: ConfigDict,
    workdir: str,
    data_dir: str | None = None,
    *,
    tensorboard: bool = False,
    extend: bool = False,
    accept: Collection[str] = (),
    tracker: str = "",
    on_row: Callable[[dict[str, Any]], None] | None = None,
    say: Callable[[str], None] = tqdm.write,
) -> dict[str, Any]:
    """Runs a config to its end, from where an earlier run in the folder came to.

    Args:
      config: a config as `configs/default.py` has it.
      workdir: the folder of the run.
      data_dir: the folder of raw data sets.
      tensorboard: whether to write events for TensorBoard too.
      extend: whether a run of fewer rounds in the folder becomes this one.
      accept: names of what may differ from the run's beginning, of "versions" and
        "devices".
      tracker: the service that rows are sent to, one of `trackers.NAMES`; empty: none.
      on_row: what is called with every row; None: nothing.
      say: what prints a line.

    Returns:
      What summary.json holds.

    Raises:
      ValueError, TypeError, FileNotFoundError: in one line, before anything runs.
      NotFinite: if the training diverges.
      Stopped: on SIGINT, SIGTERM or SIGHUP, after the progress is saved.
      checkpoint.Unreadable: if the folder's checkpoints are all damaged.
    """
    if tensorboard:
        require_installed()
    if tracker:
        trackers.require_installed(tracker)
    for name in accept:
        validate.one_of(tuple(identity.ACCEPTED), accept=name)
    flags = {"flag --extend": str(extend), "accept": str([*accept])}
    agreement.require_same(lambda: flags)
    experiment = build(config, data_dir)
    config = experiment.config
    say = say if processes.is_first() else _say_nothing
    if extend:
        extension.require(_before(workdir, config), experiment, data_dir)
    with _opened(workdir, experiment, longer=extend, accept=accept) as folder:
        for line in display.plan(config, experiment):
            say(line)
        said = _from_first(folder, lambda own: json.dumps(own.summary()).encode())
        ended = json.loads(said)
        if ended:
            for line in display.done_before(ended, experiment, workdir):
                say(line)
            if folder:
                _leave(folder, ended["rounds"], experiment)
            return ended
        experiment = _with_secret(config, data_dir, experiment, folder)
        if folder:
            folder.become_longer()
        with _told(tracker, folder, config, on_row) as told:
            summary = _played(config, experiment, folder, tensorboard, told, say)
    for line in display.result(summary, workdir):
        say(line)
    return summary


def _opened(workdir: str, experiment: Experiment, **options) -> Any:
    """Returns the folder of the run, as a context; None in all processes but one."""
    if not processes.is_first():
        return contextlib.nullcontext()
    keys = experiment.config.to_dict()
    return Workdir(workdir, keys, identity=experiment.identity, **options)


def _played(config, experiment, folder: Workdir | None, tensorboard, told, say):
    """Plays a run to its end, and leaves what it came to; returns its summary."""
    try:
        summary = _train(config, experiment, folder, tensorboard, told, say)
    except NotFinite:  # it would come to the same again
        if folder:
            secrets.forget(folder.folder)
        raise
    if folder:
        weights.take_away(folder.folder, summary["rounds"], experiment.model)
        summary = folder.finish(summary)
        secrets.forget(folder.folder)
    return summary


def _leave(folder: Workdir, last: int, experiment: Experiment) -> None:
    """Leaves what is lacking of a run that has ended, after a round, the `last`."""
    secrets.forget(folder.folder)  # it may have been killed in its last moment
    if not (folder.folder / weights.FILE).exists():
        weights.take_away(folder.folder, last, experiment.model)


def _before(workdir: str, config: ConfigDict) -> ConfigDict:
    """Returns the config of the run in a folder, in all processes."""
    own = config_of(workdir, config).to_json() if processes.is_first() else ""
    before = config.copy_and_resolve_references()
    before.update(json.loads(processes.from_first(own.encode())))
    return before


def _with_secret(config, data_dir, experiment: Experiment, folder: Workdir | None):
    """Returns the experiment with the secret and the noise with which it began.

    The first process reads both from the folder, or writes them there, and tells the
    others. Where nobody is protected there are none.
    """
    guarantee, fresh = experiment.guarantee, experiment.secret
    if guarantee is None or fresh is None:
        return experiment
    z = guarantee.noise_multiplier

    def begun(folder: Workdir) -> bytes:
        secret = _secret_in(folder, config, fresh)
        entries, own = odometer.read(folder.folder), odometer.entry(RUN, guarantee, 0)
        _require_same_plan(entries, own, folder)
        kept = checkpoint.peek(folder.checkpoints, "noise_multiplier")
        if kept is None:
            kept = entries[0].noise_multiplier if entries else z
        if not entries:
            odometer.note(folder.folder, [own])
        return json.dumps([secret.reveal().hex(), float(kept)]).encode()

    secret, kept = json.loads(_from_first(folder, begun))
    if kept != z:  # by another version of the accountant
        experiment = build(config, data_dir, noise_multiplier=kept)
    return experiment.keyed(secrets.Secret(bytes.fromhex(secret)))


def _secret_in(folder: Workdir, config, fresh: secrets.Secret) -> secrets.Secret:
    """Returns the secret of the run in a folder; of a new one, keeps a fresh one there.

    Raises:
      ValueError: if the run has begun and its secret is gone.
    """
    if config.privacy.randomness == "seed":
        return fresh
    # One that no run here has used yet is nobody's: of a killed start, or of others.
    counted = odometer.read(folder.folder)
    begun = counted or checkpoint.rounds(folder.checkpoints)
    if folder.has_rows and not counted:  # rounds are counted before they are played
        msg = (
            f"Expected {odometer.FILE} in workdir={folder.folder}, which counts what "
            "its rows gave away, got none: take another workdir."
        )
        raise ValueError(msg)
    kept = secrets.kept(folder.folder) if begun else None
    if kept is None:
        if begun:
            msg = (
                f"Expected the secret of the run in workdir={folder.folder}, without "
                "which rounds would be released again with other noise, and it is "
                "gone, as after the end of a run: take another workdir."
            )
            raise ValueError(msg)
        kept = fresh
        secrets.keep(folder.folder, kept)
    return kept


def _require_same_plan(entries, own: odometer.Entry, folder: Workdir) -> None:
    """Raises if what was released here was of other rounds than are to be played."""
    for one in entries:
        before = one._replace(plan=one.plan._replace(steps=0))
        if before != own._replace(noise_multiplier=one.noise_multiplier):
            msg = (
                "Expected workdir to hold a run that was counted as this one is, got "
                f"another in {folder.folder}/{odometer.FILE}: take another workdir."
            )
            raise ValueError(msg)


@contextlib.contextmanager
def _told(tracker: str, folder: Workdir | None, config: ConfigDict, on_row):
    """Yields what is told of every row, in the process that has the folder."""
    own = [on_row] if on_row and folder else []
    with contextlib.ExitStack() as stack:
        if tracker and folder:
            keys = flat(config.to_dict())
            opened = trackers.tracking(tracker, folder.folder, keys)
            own.append(stack.enter_context(opened))
        yield own


def _train(config, experiment, folder: Workdir | None, tensorboard: bool, told, say):
    """Trains from where the folder stands; returns what is to be summed up."""
    with asking() as asked:  # from here on, so that compiling is not cut short
        progress = _resume(folder, begin(experiment, config.eval_every), say)
        done = int(progress.state.server.round)
        compiled = experiment.compile()
        say(display.head(experiment))
        last = dict(folder.rows[-1]) if folder and folder.rows else {}
        looks = Looks(experiment, folder, done)
        shown = display.bar(experiment.rounds, done, hidden=folder is None)
        with shown as move:
            watch = Watch(last.update, rounds=move, asked=asked, agree=processes.agree)
            if folder:
                path = folder.folder / "tensorboard"
                told = [*told, open_board(path, done)] if tensorboard else told
                watch = _leaving(watch, experiment, folder, told, say)
            progress = train(
                experiment,
                compiled,
                progress,
                checkpoint_every=config.checkpoint_every,
                watch=watch._replace(look=looks.at),
            )
        seen = looks.at_end(experiment.rounds, progress.state.server.params)
        plain = names.plain(last)
        seen |= {name: float(plain[name]) for name in MESSY if name in plain}
        if folder and MESSY[0] in plain:
            views.write_participation(
                folder.folder, progress.ledger, experiment.private
            )
        return summary_of(experiment, progress, last, compiled.seconds, seen)


def _leaving(watch: Watch, experiment: Experiment, folder: Workdir, told, say) -> Watch:
    """Returns a watch that also prints rows and leaves everything in a folder."""
    first = watch.row

    def on_row(row):
        first(row)
        folder.add(row)  # before it is said, which may fail
        if experiment.relay:
            total = int(row["bytes_up_total"])
            nodes.write_edges(folder.folder, experiment.relay, total)
        say(display.row(row))
        for tell in told:
            tell(row)

    def on_save(done, progress):
        keep, ends = experiment.config.checkpoint_keep, done == experiment.rounds
        _save(folder, done, progress, keep, say, ends=ends)

    def count(last):
        if experiment.private and experiment.guarantee:
            own = odometer.entry(RUN, experiment.guarantee, last)
            odometer.note(folder.folder, [own])

    return watch._replace(row=on_row, save=on_save, ahead=count)


def summary_of(
    experiment: Experiment,
    progress: Progress,
    last: dict[str, Any],
    compile_seconds: float,
    seen: dict[str, Any],
) -> dict[str, Any]:
    """Returns the facts of `experiment` and what it came to, by their names in a file.

    Its `progress` at the end has the bytes, its `last` row the losses and epsilon;
    `compile_seconds` and what was `seen` of clients are handed on.
    """
    up, down = int(progress.ledger.up.sum()), int(progress.ledger.down.sum())
    promise = experiment.guarantee if experiment.private else None
    last = names.plain(last)
    whole = {
        **experiment.facts,
        "rounds": int(progress.state.server.round),
        **names.measured(last),
        **seen,
        "train_loss": float(last["train_loss"]),
        **{name: float(last[name]) for name in experiment.noised},
        "bytes_up_per_client_round": up / max(1, int(progress.ledger.answered.sum())),
        "bytes_down_per_client_round": down / max(1, int(progress.ledger.asked.sum())),
        "bytes_up_total": up,
        "bytes_down_total": down,
        "epsilon": promise and float(last["epsilon"]),
        "delta": promise and promise.delta,
        "rounds_per_second": float(last["rounds_per_second"]),
        "compile_seconds": compile_seconds,
    }
    return names.marked(whole, experiment.private)


def _resume(folder: Workdir | None, fresh: Progress, say) -> Progress:
    """Returns the newest progress in the folder, in all processes, or the fresh one."""

    def found(folder: Workdir) -> bytes:
        saved = checkpoint.newest(folder.checkpoints, fresh, say)
        packed, beside = io.BytesIO(), saved.beside if saved else {}
        if saved:
            path = checkpoint.path_of(folder.checkpoints, saved.number)
            folder.require_own(path, beside)
        if not folder.restore(beside):
            say(f"rows in {folder.folder} were changed: they are as the run left them")
        if saved:
            say(f"going on after round {saved.number}")
            checkpoint.write(packed, saved.tree)
        return packed.getvalue()

    packed = _from_first(folder, found)
    if not packed:
        return fresh
    progress = checkpoint.read(io.BytesIO(packed), fresh)
    placed = jax.tree.map(_like, progress.state, fresh.state)
    return progress._replace(state=placed)


def _like(saved, leaf):
    """Returns what was saved where the other is: on devices, or on the host."""
    return (
        jax.device_put(saved, leaf.sharding) if isinstance(leaf, jax.Array) else saved
    )


def _from_first(folder: Workdir | None, make: Callable[[Workdir], bytes]) -> bytes:
    return processes.from_first(make(folder) if folder else b"")


def _say_nothing(line: str) -> None:
    del line


def _save(
    folder: Workdir, done: int, progress: Progress, keep: int, say, *, ends: bool
) -> None:
    """Saves progress; where it cannot be, only the last one is an error."""
    try:
        beside = folder.beside()
        checkpoint.save(folder.checkpoints, done, progress, keep=keep, beside=beside)
    except OSError as error:
        if ends:
            msg = (
                f"Expected room in {folder.checkpoints} for the model after round "
                f"{done}, got {error.strerror}: the same command goes on."
            )
            raise ValueError(msg) from None
        last = checkpoint.rounds(folder.checkpoints)
        kept = f"the last one is of round {last[-1]}" if last else "there is none yet"
        say(
            f"The checkpoint of round {done} could not be written "
            f"({error.strerror}); going on, {kept}."
        )
