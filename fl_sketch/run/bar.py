"""A bar that shows how many rounds are done, as a callback."""

import sys
import warnings

import numpy as np

from fl_sketch.engine.loop import Callback, Progress


class Bar(Callback):
    """Shows the rounds that are done of `rounds`; of several runs those of all."""

    def __init__(self, rounds: int, *, shown: bool | None = None, runs: int = 1):
        """Takes whether there is a bar; None: in terminals and notebooks."""
        with warnings.catch_warnings():  # in notebooks without widgets
            warnings.simplefilter("ignore")
            from tqdm import auto
        if shown is None:
            shown = "ipykernel" in sys.modules or sys.stderr.isatty()
        self._runs = runs
        self._bar = auto.tqdm(total=rounds * runs, unit="round", disable=not shown)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._bar.close()

    def on_compiled(self, progress: Progress) -> None:
        """Begins where the run continues from."""
        self._bar.update(progress.done * self._runs - self._bar.n)

    def on_chunk(self, done: int, loss: float) -> None:
        """Moves on."""
        self._bar.update(done * self._runs - self._bar.n)
        if np.isfinite(loss):
            self._bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
