"""What the processes of a run tell each other by words, beside what devices exchange.

jax connects them to a store of short texts, kept by the first. Through it they find out
that they were started alike, before anything is compiled, and that one of them has
failed, wherever the others are at that moment. Alone, a process agrees with itself.
"""

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax._src import distributed  # the store has no public name

ERROR, END, DONE = "fl_sketch/error", "fl_sketch/end", "fl_sketch/done"
PATIENCE = 600_000  # milliseconds; one of them may be preparing a data set
LAST_WORDS = 5_000  # milliseconds in which others hear of an error
EVERY = 0.5  # seconds from one look for an error to the next
_turns = itertools.count()


def require_same(given: Callable[[], Mapping[str, str]]) -> None:
    """Raises unless all processes of this run have the same values by the same names.

    All of them must call it, as often and in the same order.

    Args:
      given: `() -> texts`, short ones by the names of what they are; not called where
        there is one process.

    Raises:
      ValueError: naming the first difference from process 0.
    """
    client = distributed.global_state.client
    if client is None:
        return
    named = given()
    place, own = f"fl_sketch/same/{next(_turns)}", jax.process_index()
    client.key_value_set(f"{place}/{own}", json.dumps(dict(named)))
    first = json.loads(client.blocking_key_value_get(f"{place}/0", PATIENCE))
    for name in {**first, **named}:
        if first.get(name) != named.get(name):
            msg = (
                f"Expected one {name} in all processes, got {first.get(name)} in "
                f"process 0 and {named.get(name)} in process {own}."
            )
            raise ValueError(msg)
    client.wait_at_barrier(place, PATIENCE)


class Watch:
    """Looks out for the error of another process, in a thread of its own."""

    def __init__(self, heard: Callable[[str], None]):
        """Begins to look; `heard` is told the line of another process's error."""
        self._client: Any = distributed.global_state.client
        self._heard = heard
        self._over, self._ending = threading.Event(), threading.Lock()
        threading.Thread(target=self._look, daemon=True).start()

    def close(self) -> None:
        """Stops looking: this process ends by itself, unless it is being ended."""
        with self._ending:
            self._over.set()

    def tell(self, line: str) -> None:
        """Tells the others an error of this process in a `line`, and lets them hear."""
        self.close()
        said = f"process {jax.process_index()}: {line}"
        with contextlib.suppress(Exception):  # somebody was faster, or nobody is left
            self._client.key_value_set(ERROR, said)
        self.part()

    def finish(self) -> None:
        """Waits until all are done; the first one may write for a long time."""
        self._client.wait_at_barrier(DONE, PATIENCE)
        self.close()

    def part(self) -> None:
        """Waits until all know that the run is over, who hear it from process 0."""
        with contextlib.suppress(Exception):  # those who died do not come
            self._client.wait_at_barrier(END, LAST_WORDS)
        if jax.process_index() == 0:
            time.sleep(EVERY)  # the store goes with this process

    def last_words(self) -> str:
        """Returns the line of a process that has failed; empty if none has said it."""
        with contextlib.suppress(Exception):
            return self._client.blocking_key_value_get(ERROR, LAST_WORDS)
        return ""

    def _look(self) -> None:
        while not self._over.wait(EVERY):
            try:
                line = self._client.key_value_try_get(ERROR)
            except jax.errors.JaxRuntimeError as error:
                if "NOT_FOUND" in str(error):
                    continue
                return  # the store is gone; whoever waits for a device will know
            with self._ending:  # which is never left: the process is over
                if not self._over.is_set():
                    self._heard(line)
