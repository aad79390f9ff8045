"""The run itself: rounds in blocks, an evaluation after each, a row for it."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fl_sketch.experiment.build import Experiment

Row = dict[str, Any]


class NotFinite(RuntimeError):
    """The loss or the model is no longer finite; says since when."""


def train(
    experiment: Experiment,
    *,
    rounds: int,
    eval_every: int,
    on_row: Callable[[Row], None] = lambda row: None,
) -> tuple[Any, list[Row]]:
    """Runs an experiment.

    Args:
      experiment: made by `build`.
      rounds: how many, in all.
      eval_every: how many in a block; the last block may be shorter.
      on_row: called with every row as soon as it is known.

    Returns:
      The last state, and a row for each evaluation.

    Raises:
      NotFinite: naming the first round whose training loss was not, or the block
        after which the test loss was not.
    """
    # Rounds overwrite their state: the experiment keeps its own, and leaves that share
    # a buffer (moments that all start as the same zeros) get one each.
    state = jax.tree.map(jnp.copy, experiment.state)
    rows, done, sent, received = [], 0, 0, 0
    d = experiment.facts["d"]
    while done < rounds:
        block = min(eval_every, rounds - done)
        begin = time.perf_counter()
        state, reports = experiment.rounds(
            state, experiment.key, experiment.data, rounds=block
        )
        reports = jax.device_get(reports)
        seconds = time.perf_counter() - begin
        people = reports.participants.astype(np.int64)
        sent += int(np.sum(people * -(-reports.bits_up.astype(np.int64) // 8)))
        received += int(np.sum(people)) * 4 * d
        losses = reports.diagnostics["loss"]
        _require_finite(losses, done)
        done += block
        row = {
            "round": done,
            "train_loss": float(np.mean(losses)),
            **experiment.evaluate(state.server.params),
            "bytes_up_total": sent,
            "bytes_down_total": received,
            "rounds_per_second": block / seconds,
        }
        if not np.isfinite(row["test_loss"]):
            msg = f"The test loss is {row['test_loss']} after round {done}."
            raise NotFinite(msg)
        rows.append(row)
        on_row(row)
    return state, rows


def _require_finite(losses: np.ndarray, done: int) -> None:
    bad = np.flatnonzero(~np.isfinite(losses))
    if bad.size:
        msg = (
            f"The training loss is {losses[bad[0]]} in round {done + bad[0] + 1}: "
            "a smaller client.rate or server.rate may help."
        )
        raise NotFinite(msg)
