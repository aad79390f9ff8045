"""The end of a process in which threads of a library still run.

Python waits for such threads. Those of NVFlare wait for a server, which may have ended.
"""

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn


def after(command: Callable[[], None]) -> NoReturn:
    """Runs a command and ends the process, whatever threads still run."""
    code: object = 0
    try:
        command()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:  # printed as Python would
        traceback.print_exc()
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
