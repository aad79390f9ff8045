"""Signals that ask something of a run, turned into a question the loop can ask."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from fl_sketch.engine.loop import Ask

SIGNALS = {
    signal.SIGINT: Ask.STOP,
    signal.SIGTERM: Ask.STOP,
    signal.SIGHUP: Ask.STOP,  # the terminal is gone
    signal.SIGUSR1: Ask.SAVE,  # as SLURM may send it some time before the end
}


@contextlib.contextmanager
def asking() -> Iterator[Callable[[], Ask]]:
    """Gives a function that says what signals have asked for since it was asked last.

    To be stopped stays asked. A second SIGINT interrupts at once, as it would without
    this. SIGHUP is ignored if it was before, as under nohup.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: Ask.NOTHING  # only the main thread may handle signals
        return
    came: list[signal.Signals] = []
    wish = Ask.NOTHING

    def note(number, frame):
        del frame
        if number == signal.SIGINT and number in came:
            raise KeyboardInterrupt
        nonlocal wish
        came.append(number)
        wish = max(wish, SIGNALS[number])

    def asked() -> Ask:
        nonlocal wish
        found = wish
        wish = Ask.STOP if found == Ask.STOP else Ask.NOTHING
        return found

    before = {number: signal.signal(number, note) for number in SIGNALS}
    if before[signal.SIGHUP] == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
