"""Signals that ask a run to stop, turned into a question the loop can ask."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether SIGINT or SIGTERM has come.

    A second SIGINT interrupts at once, as it would without this.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread may handle signals
        return
    came = []

    def note(number, frame):
        del frame
        if came and number == signal.SIGINT:
            raise KeyboardInterrupt
        came.append(number)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
