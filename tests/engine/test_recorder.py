"""Rows say what was measured in their rounds, and whose eyes it is for."""

import json

import jax
import numpy as np
import pytest

from fl_sketch.core.protocols import Server
from fl_sketch.engine import loop
from fl_sketch.engine.costs import Prices
from fl_sketch.engine.ledger import empty
from fl_sketch.engine.recorder import Recorder
from fl_sketch.engine.round import Report, SimulatorOnly, State
from fl_sketch.privacy.accounting import Plan
from fl_sketch.privacy.guarantee import promised

pytestmark = pytest.mark.fast

PLAN = Plan(steps=10, sample=2, population=4, relation="replace_one")
NOISY = promised(PLAN, rounds=10, delta=1e-5, noise_multiplier=2.0)
QUIET = promised(PLAN, rounds=10, delta=1e-5)


def report(loss, answered=(True, True), **released):
    shown = SimulatorOnly(
        np.array([0, 3]), np.array(answered), 8, 0, {"loss": loss, "far": 2 * loss}
    )
    return Report(released, shown)


def recorder(guarantee=None, every=2):
    return Recorder(every, Prices(100), empty(4), guarantee, absences=True)


def test_a_row_has_means_of_its_rounds_and_totals_of_all():
    one = recorder()
    for number, loss in enumerate((1.0, 3.0)):
        one.record(number, report(loss, test_released=loss))
    first = one.row(2, {"test_loss": 0.5})
    one.forget()
    one.record(2, report(7.0, answered=(False, False)))
    one.record(3, report(5.0, answered=(True, False)))
    second = one.row(4, {"test_loss": 0.25})
    assert first == {
        "round": 2, "train_loss": 2.0, "train_far": 4.0, "test_loss": 0.5,
        "test_released": 2.0, "bytes_up_total": 32, "bytes_down_total": 400,
        "asked": 4, "answered": 4, "epsilon": None,
    }  # fmt: skip
    # Of a round without an answer nothing was measured.
    assert second["train_loss"] == 5.0 and second["bytes_up_total"] == 40
    assert (second["asked"], second["answered"]) == (8, 5)


def test_a_row_of_a_private_run_says_for_which_epsilon():
    one = recorder(NOISY)
    one.record(0, report(1.0, released=3.0))
    row = one.row(1, {"test_loss": 0.5})
    assert row["delta"] == NOISY.delta and row["randomness"] == "system"
    assert row["epsilon"] == NOISY.epsilon(1) > 0
    quiet = recorder(QUIET)
    quiet.record(0, report(1.0))
    assert quiet.row(1, {})["asked"] == 2 and quiet.row(1, {})["epsilon"] is None


def test_what_clients_measured_is_shown_and_decides_in_public_runs_alone():
    """The loss that a record returns is that of the progress bar."""
    for guarantee, diverged in ((None, 2), (NOISY, 0)):
        one, losses = recorder(guarantee), (1.0, np.nan, np.inf)
        shown = [one.record(number, report(x)) for number, x in enumerate(losses)]
        np.testing.assert_array_equal(shown, [np.nan] * 3 if diverged == 0 else losses)
        assert one.diverged == diverged


def test_what_is_kept_of_a_record_is_all_of_it():
    whole, part = recorder(every=4), recorder(every=4)
    for number in range(3):
        whole.record(number, report(number + 1.0))
    for number in range(2):
        part.record(number, report(number + 1.0))
    again = recorder(every=4)
    again.resume(part.arrays())
    again.record(2, report(3.0))
    assert json.dumps(again.row(3, {})) == json.dumps(whole.row(3, {}))


def test_a_row_of_a_round_whose_loss_was_lost_says_so_in_public_runs_alone():
    for guarantee, losses, expected in (
        (None, (1.0, np.nan), np.nan),
        (None, (np.inf, 3.0), np.nan),
        (None, (1.0, 3.0), 2.0),
        (NOISY, (1.0, np.nan), 1.0),
    ):
        one = recorder(guarantee)
        for number, loss in enumerate(losses):
            one.record(number, report(loss))
        again = recorder(guarantee)
        again.resume(one.arrays())
        row = again.row(2, {})
        np.testing.assert_equal(row["train_loss"], expected)
        again.forget()
        again.record(2, report(5.0))
        assert again.row(3, {})["train_loss"] == 5.0


def test_a_record_is_as_long_as_the_rounds_so_far():
    one = recorder(every=50_000_000)
    for number in range(40):
        one.record(number, report(number + 1.0))
    assert one.row(40, {})["train_loss"] == 20.5
    assert all(leaf.size < 100 for leaf in one.arrays().values())


def test_a_run_ends_with_the_round_that_lost_its_loss_and_does_not_save_it():
    saved, state = [], State(Server((), (), (), 0), ())

    class Saving(loop.Callback):
        def on_checkpoint(self, progress):
            saved.append(progress.done)

    def advance(state, done, count):
        assert count == 1
        one = jax.tree.map(lambda x: np.array([x]), report((1.0, np.nan)[done]))
        return State(state.server._replace(round=done + 1), ()), one

    progress = loop.Progress(state, [recorder(every=10)], [])
    with pytest.raises(loop.NotFinite, match="round 2: less"):
        loop.play(
            progress, advance, lambda state: [{}], last=2, save_every=1,
            callbacks=[Saving()], advice="less",
        )  # fmt: skip
    assert saved == [1]
