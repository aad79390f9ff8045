"""Says whether the project still does what it did: to the bit, on this machine.

    python -m tests.net             compares with the file of this machine
    python -m tests.net --write     writes that file
    python -m tests.net safl run    compares the cases whose names begin so

What is kept of a case: a digest of its last model, its rows without times, its bytes
both ways and its epsilon. A machine of another kind rounds in another way: there, run
`--write` in a checkout of an earlier commit, and copy the file.
"""

import hashlib
import json
import pathlib
import signal
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from safetensors.numpy import load_file

from fl_sketch.core import files
from fl_sketch.workdir import rows as rows_of
from fl_sketch.workdir.folder import summary_in
from tests.data import fake_raw
from tests.launching import Started
from tests.net.cases import CASES, KILLED, TWO_PROCESSES
from tests.net.machine import kind_of_machine

EXPECTED = pathlib.Path(__file__).parent / "expected" / f"{kind_of_machine()}.json"
TIMES = ("rounds_per_second", "seconds")
TABLES = ("metrics.csv", "sweep.csv", "comparison.csv", "clients.csv")
TABLES += ("standings.csv", "search.csv")
TOTALS = ("bytes_up_total", "bytes_down_total", "epsilon", "rounds")
MARK = "simulator_only_"
# What differs from d30995e, whose file is kept, and why.
RENAMED = {  # columns of `simulate`, which are those of a config's run now
    "loss": "train_loss",
    "bytes_up": "bytes_up_total",
    "bytes_down": "bytes_down_total",
}
OLD_FACTS = ("noise_energy", "rejected", "signal_energy")
VALUES = {"secret": "system"}  # of randomness, by its name in a config's run
SPLIT = "private runs split examples by a seed of their own"
DENSE = "the small dense layer of a transformer is a plain product"
REASONS = {  # by case, the reason and what differs
    "run words": (DENSE, {"model .", "metrics.csv"}),
    "compare": (SPLIT, {"comparison.csv", "private/seeds/sweep.csv", "standings.csv"}),
}


def main(arguments):
    """Runs the cases that the arguments name; returns the exit code."""
    write = "--write" in arguments
    starts = tuple(name for name in arguments if name != "--write") or ("",)
    with tempfile.TemporaryDirectory() as place:
        found = _all_of(pathlib.Path(place), starts)
    if write:
        EXPECTED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        return 0
    if not EXPECTED.exists():
        print(f"Expected {EXPECTED}: run --write in a checkout of an earlier commit.")
        return 2
    kept = json.loads(EXPECTED.read_text())
    expected = {name: own for name, own in kept.items() if name.startswith(starts)}
    unlike = [
        name for name in {**expected, **found} if not _same(name, expected, found)
    ]
    print(f"{len(found) - len(unlike)} of {len(found)} cases are as they were")
    return 1 if unlike else 0


def _all_of(place, starts):
    raw = place / "raw"
    raw.mkdir()
    fake_raw.write(raw)
    works = {name: _commands for name in CASES}
    works |= {"killed": _killed, "two processes": _two_processes}
    works["simulated"] = _simulated
    names = [name for name in works if name.startswith(starts)]
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(works[name], name, place) for name in names]
        return {n: one.result() for n, one in zip(names, done, strict=True)}


def _run(command, place, folder, *, cores=()):
    words = [word.format(folder=folder, raw=place / "raw") for word in command]
    return Started("-m", *words, cores=cores, XDG_CACHE_HOME=str(place / "cache"))


def _finished(command, place, folder):
    with _run(command, place, folder) as started:
        code = started.wait()
        return started.said()[0] if code == 0 else _failed(command, started)


def _failed(command, started):
    print(f"{' '.join(command)} ended with {started.wait()}:")
    print(started.said()[1][-2000:])
    sys.exit(2)


def _commands(name, place):
    folder = place / name.replace(" ", "_")
    for command in CASES[name]:
        _finished(command, place, folder)
    return _found(folder)


def _killed(name, place):
    folder = place / name
    with _run(KILLED, place, folder) as started:
        while len(list((folder / "checkpoints").glob("round_*.npz"))) < 2:
            time.sleep(0.01)
        started.send(signal.SIGKILL)
        started.wait()
    assert not (folder / "summary.json").exists()
    _finished(KILLED, place, folder)
    return _found(folder)


def _two_processes(name, place):
    del name
    folder = place / "two"
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    join = [f"--coordinator=localhost:{port}", "--num_processes=2"]
    commands = [[*TWO_PROCESSES, *join, f"--process_id={n}"] for n in range(2)]
    with (
        _run(commands[0], place, folder, cores={0}) as one,
        _run(commands[1], place, folder, cores={1}) as other,
    ):
        for command, started in zip(commands, (one, other), strict=True):
            if started.wait():
                _failed(command, started)
    return _found(folder)


def _simulated(name, place):
    return json.loads(_finished(["tests.net.simulated"], place, place / name))


def _found(folder):
    """Returns what is kept of a folder of results."""
    found = {}
    for path in sorted(folder.rglob("params.safetensors")):
        arrays = load_file(path)
        digest = hashlib.sha256()
        for key in sorted(arrays):
            digest.update(f"{key} {arrays[key].dtype}{arrays[key].shape} ".encode())
            digest.update(arrays[key].tobytes())
        found[f"model {path.relative_to(folder).parent}"] = digest.hexdigest()
    for path in sorted(folder.rglob("*.csv")):
        if path.name in TABLES:
            name = str(path.relative_to(folder)).replace("simulator/", "")
            found[name] = _rows(path)
    if summary := summary_in(folder):
        found["totals"] = {key: summary.get(key) for key in TOTALS}
    return found


def _rows(path):
    both = path.name in ("metrics.csv", "sweep.csv")
    rows = rows_of.read(path) if both else files.read_rows(path)
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def _same(name, expected, found):
    """Returns whether a case is as it was; prints what differs."""
    one, other = _plain(expected.get(name) or {}), found.get(name) or {}
    unlike = [k for k in {**one, **other} if not _alike(name, one.get(k), other.get(k))]
    if unlike and name in REASONS:
        reason, explained = REASONS[name]
        print(f"{name}: differs, since {reason}")
        unlike = [key for key in unlike if key not in explained]
    for key in unlike:
        print(f"{name}: {key}\n    was {one.get(key)}\n    is  {other.get(key)}")
    return not unlike


def _plain(was):
    """Returns what is expected by the names of today: none has a mark."""
    if isinstance(was, list):
        return [_plain(one) for one in was]
    if not isinstance(was, dict):
        return was
    kept = {k: v for k, v in was.items() if k != "best/metrics.csv"}  # a model alone
    return {key.replace(MARK, ""): _plain(one) for key, one in kept.items()}


def _alike(name, was, now):
    """Returns whether all that was is still there; columns may have been added."""
    if name == "simulated" and was and now:
        rows = [_renamed(row) for row in was["history"]], now["history"]
        return was["params"] == now["params"] and _rows_alike(*rows)
    if isinstance(was, list) and isinstance(now, list):
        return _rows_alike(was, now)
    return was == now


def _rows_alike(was, now):
    both = zip(was, now, strict=False)
    inside = all(
        key in row and row[key] == old[key] for old, row in both for key in old
    )
    return len(was) == len(now) and inside


def _renamed(row):
    """Returns a row of d30995e by today's names, as json keeps it."""
    plain = {}
    for key, value in row.items():
        if key in OLD_FACTS:
            continue  # facts of a mechanism have names of their own now
        plain[RENAMED.get(key, key)] = VALUES.get(value, value)
    return plain


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
