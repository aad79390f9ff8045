"""A bar that shows how many rounds are done."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator

import numpy as np


@contextlib.contextmanager
def shown(
    rounds: int, done: int, *, shown: bool | None = None
) -> Iterator[Callable[[int, float], None]]:
    """Shows `done` of `rounds`; yields `(rounds done, last training loss) -> None`.

    Args:
      shown: whether there is a bar; None: in terminals and notebooks.
    """
    with warnings.catch_warnings():  # in notebooks without widgets
        warnings.simplefilter("ignore")
        from tqdm import auto
    if shown is None:
        shown = "ipykernel" in sys.modules or sys.stderr.isatty()
    with auto.tqdm(total=rounds, initial=done, unit="round", disable=not shown) as bar:

        def move(done: int, loss: float) -> None:
            bar.update(done - bar.n)
            if np.isfinite(loss):
                bar.set_postfix(loss=f"{loss:.4f}", refresh=False)

        yield move
