"""Signals that stop a run, as a callback."""

import signal
import threading

from fl_sketch.engine.loop import Callback

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: no terminal


class Signals(Callback):
    """Asks a run to stop once one of the signals has come, while it is entered.

    A second SIGINT interrupts at once, as it would without this. SIGHUP is ignored if
    it was before, as under nohup.
    """

    def __init__(self):
        """Handles nothing yet."""
        self._came, self._before = [], {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():  # others may not
            self._before = {one: signal.signal(one, self._note) for one in SIGNALS}
            if self._before[signal.SIGHUP] == signal.SIG_IGN:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return self

    def __exit__(self, *error):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, frame):
        del frame
        if number == signal.SIGINT and number in self._came:
            raise KeyboardInterrupt
        self._came.append(number)

    def stop_requested(self) -> bool:
        """Returns whether a signal has come."""
        return bool(self._came)
