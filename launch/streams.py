"""Output streams that may break while a command runs.

`launch.train ... | head` closes the pipe after ten lines, a terminal goes with its
window, and a disk fills up. The work goes on then, in silence.
"""

import os
import sys
from typing import Any, TextIO


class Patient:
    """A stream of text that may break, and is silent from then on."""

    def __init__(self, stream: TextIO):
        """Takes the `stream` that it writes to."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes a `text`; returns its length."""
        try:
            self._stream.write(text)
        except UnicodeEncodeError as error:  # of a stream that knows no such letter
            known = text.encode(error.encoding, "backslashreplace")
            self.write(known.decode(error.encoding))
        except (OSError, ValueError):  # the latter of a closed stream
            self._go_silent()
        return len(text)

    def flush(self) -> None:
        """Hands on what is kept so far."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._go_silent()

    def _go_silent(self) -> None:
        # What is still kept is discarded as well, and causes no error at the end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, self._stream.fileno())
        except (OSError, ValueError):
            self._stream = open(os.devnull, "w")  # noqa: SIM115 - until the end
        finally:
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        """Returns what the stream has by this `name`."""
        return getattr(self._stream, name)


def made_patient() -> None:
    """Lets this process print into what breaks; without a stream, nowhere."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed when the process began
            stream = open(os.devnull, "w")  # noqa: SIM115 - until the end
        setattr(sys, name, Patient(stream))
