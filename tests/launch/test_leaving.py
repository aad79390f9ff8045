"""A process ends with its command, also where a library has left threads."""

import subprocess
import sys

import pytest

from tests.launching import ENVIRONMENT, ROOT

PROGRAM = """
import sys, threading
from launch import leaving

def command():
    threading.Thread(target=threading.Event().wait).start()  # which never ends
    print("done")
    {}

leaving.after(command)
"""


@pytest.mark.parametrize(
    ("last", "code", "error"),
    [
        ("", 0, ""),
        ("sys.exit(4)", 4, ""),
        ("raise ValueError('a fault')", 1, "ValueError: a fault\n"),
    ],
)
def test_a_process_ends_although_a_thread_waits(last, code, error):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(last)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (code, "done\n")
    assert done.stderr.endswith(error)
