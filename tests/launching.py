"""Commands as a user starts them, but compiled as `conftest.py` says.

Importing takes a process two seconds. So one process imports what all commands need,
and a command is a copy of it, made by a fork before jax looks for devices. What such a
copy shares with others, the seed of hashes and what is read while importing, is its
own in `launch_anew`.
"""

import multiprocessing
import os
import pathlib
import runpy
import shutil
import subprocess
import sys
import tempfile

from tests import effort

ROOT = pathlib.Path(__file__).parent.parent
# Without the eight devices of the tests' own process.
ENVIRONMENT = os.environ | effort.CACHE | {"XLA_FLAGS": effort.flags()}

COPIES = multiprocessing.get_context("forkserver")
COPIES.set_forkserver_preload(["pytest", "tests.imported"])


def launch(*arguments, **variables):
    """Runs `python -m ...` to its end; variables that are None are taken away."""
    return launch_python("-m", *arguments, **variables)


def launch_python(*arguments, **variables):
    """Runs python with arguments to its end."""
    if any(name.startswith(("JAX_", "XLA_")) for name in variables):
        return launch_anew(*arguments, **variables)
    with Started(*arguments, **variables) as command:
        code = command.wait()
        return subprocess.CompletedProcess(arguments, code, *command.said())


def launch_anew(*arguments, **variables):
    """Runs python with arguments to its end, in a process that imports by itself."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=_environment(variables),
        cwd=ROOT,
    )


class Started:
    """A command that has been started; leaving its context kills it."""

    def __init__(self, *arguments, cores=(), **variables):
        """Starts python with arguments, on all cores or on some."""
        self._folder = pathlib.Path(tempfile.mkdtemp())
        files = self._out, self._err = self._folder / "out", self._folder / "err"
        for file in files:
            file.touch()
        work = (arguments, files, _environment(variables), cores)
        self._process = COPIES.Process(target=_work, args=work)
        self._process.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.join()
        self._process.close()
        shutil.rmtree(self._folder)

    def send(self, number):
        """Sends a signal."""
        os.kill(self._process.pid, number)

    def runs(self):
        """Returns whether it has not ended."""
        return self._process.is_alive()

    def wait(self, seconds=None):
        """Returns the exit code; minus its number for a signal."""
        self._process.join(seconds)
        assert not self.runs(), self.said()
        return self._process.exitcode

    def said(self):
        """Returns what was printed and what was said of errors, up to now."""
        return self._out.read_text(), self._err.read_text()


def _environment(variables):
    return {k: v for k, v in (ENVIRONMENT | variables).items() if v is not None}


def _work(arguments, files, environment, cores):
    """Does in a copy what python does with its arguments."""
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    if cores:
        os.sched_setaffinity(0, cores)
    kind, what, *rest = arguments
    sys.argv = [kind, *rest]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
