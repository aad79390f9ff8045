"""The run that a server's process plays, described by files in the run's folder."""

import json
import os
import pathlib
import time
from collections.abc import Callable, Sequence

from ml_collections import ConfigDict

from fl_sketch.data import npz
from fl_sketch.data.examples import Splits
from fl_sketch.models.losses import KINDS
from fl_sketch.network import run as network
from fl_sketch.network.coordinator import Rules, Send
from fl_sketch.run.run import Listeners

JOB = pathlib.Path(network.FOLDER) / "job.json"
TEST = pathlib.Path(network.FOLDER) / "test.npz"
LINES = pathlib.Path(network.FOLDER) / "lines"  # what the run prints
ENDED = "ended"  # begins the last of them
PAUSE = 0.2  # seconds between looks at them


def describe(
    workdir: pathlib.Path,
    config: ConfigDict,
    splits: Splits,
    sites: Sequence[str],
    rules: Rules,
    asks: Sequence[str],
) -> None:
    """Writes what `play` reads, and no training data."""
    (workdir / JOB).parent.mkdir(parents=True, exist_ok=True)
    test = {"test_inputs": splits.test.inputs, "test_targets": splits.test.targets}
    npz.write(workdir / TEST, test)
    said = {
        "config": config.to_dict(),
        "name": splits.name,
        "classes": splits.classes,
        "sites": [*sites],
        "rules": rules._asdict(),
        "asks": [*asks],
    }
    (workdir / JOB).write_text(json.dumps(said, indent=2))
    (workdir / LINES).unlink(missing_ok=True)


def play(workdir: pathlib.Path, send: Send) -> None:
    """Plays the run in a folder, and writes what it prints to a file there."""
    said = json.loads((workdir / JOB).read_text())
    config = ConfigDict(said["config"])
    with open(workdir / LINES, "w", buffering=1) as lines:

        def say(line: str) -> None:
            lines.write(" ".join(["line", *line.split("\n")]) + "\n")

        try:
            splits = _splits(workdir, config, said)
            network.run(
                config,
                splits,
                workdir,
                send,
                rules=Rules(**said["rules"]),
                asks=said["asks"],
                sites=said["sites"],
                told=Listeners(say=say),
                say=say,
            )
            lines.write(f"{ENDED} 0\n")
        except BaseException as error:
            text = " ".join(str(error).split()) or type(error).__name__
            lines.write(f"{ENDED} 1 {text}\n")
            raise
        finally:
            os.fsync(lines.fileno())


def _splits(workdir: pathlib.Path, config: ConfigDict, said: dict) -> Splits:
    targets = KINDS[config.model.loss].targets
    found = npz.one_part(workdir / TEST, "test", targets)
    return found._replace(name=said["name"], classes=said["classes"], learnt=())


def follow(
    workdir: pathlib.Path, playing: Callable[[], bool], say: Callable[[str], None]
) -> None:
    """Prints what the run in a folder prints, until it has ended.

    Args:
      workdir: the folder of the run.
      playing: `() -> bool`: whether its process is there.
      say: prints a line.

    Raises:
      ValueError: in one line, for a run that did not end well.
    """
    seen, last = 0, False
    while True:
        last = not playing()
        whole = (workdir / LINES).read_text() if (workdir / LINES).exists() else ""
        lines = whole.split("\n")[:-1]
        for line in lines[seen:]:
            kind, _, text = line.partition(" ")
            if kind != ENDED:
                say(text)
                continue
            code, _, text = text.partition(" ")
            if code != "0":
                raise ValueError(text)
            return
        seen = len(lines)
        if last:
            msg = f"Expected the server to end the run in {workdir}, got none. To "
            raise ValueError(msg + "continue, run the same command again.")
        time.sleep(PAUSE)
