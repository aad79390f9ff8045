"""A plan says what a run will send, and says it before anything is compiled."""

import pytest

from fl_sketch.core.shown import sized
from fl_sketch.run import plan, prepare
from tests.run.configs import config_with, rows_of


def lines(**changes):
    return plan.lines(prepare(config_with(**changes)))


@pytest.mark.slow
def test_the_bytes_planned_are_the_bytes_sent():
    changes = {"rounds": 3, "download": "model"}
    (row,) = rows_of(eval_every=3, **changes)
    up, down = row["bytes_up_total"], row["bytes_down_total"]
    sent = f"per round: {up // 3} bytes up, {down // 3} down; 3 rounds: "
    sent += f"{sized(up)} up, {sized(down)} down"
    assert sent in lines(**changes)


def test_a_plan_says_what_noise_a_private_run_will_have():
    keys = {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0}
    found = "\n".join(lines(**keys, privacy__relation="replace_one"))
    assert "noise multiplier 1, " in found
