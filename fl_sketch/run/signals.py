"""Signals that ask something of a run, as a callback."""

import signal
import threading

from fl_sketch.engine.loop import Callback, Request

SIGNALS = {
    signal.SIGINT: Request.STOP,
    signal.SIGTERM: Request.STOP,
    signal.SIGHUP: Request.STOP,  # the terminal is gone
    signal.SIGUSR1: Request.SAVE,  # as SLURM may send it some time before the end
}


class Signals(Callback):
    """Asks a run for what signals have asked for, while it is entered.

    To be stopped stays asked. A second SIGINT interrupts at once, as it would without
    this. SIGHUP is ignored if it was before, as under nohup.
    """

    def __init__(self):
        """Handles nothing yet."""
        self._came: list[int] = []
        self._wish, self._before = Request.NOTHING, {}

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
        self._wish = max(self._wish, SIGNALS[number])

    def requested(self) -> Request:
        """Returns what was asked for since this was called last."""
        wish = self._wish
        self._wish = Request.STOP if wish == Request.STOP else Request.NOTHING
        return wish
