"""A plan says what a run will send, and says it before anything is compiled."""

import re

import pytest

from fl_sketch.core.shown import sized
from fl_sketch.run import plan, prepare
from tests.run.configs import config_with, rows_of

MESSAGE = 4 * 32 + 4
HEAVY = {"algorithm": "fedsketch", "sketch__query": "heaprix", "sketch__heavy": 10}


def lines(graph="", **changes):
    return plan.lines(prepare(config_with(**changes)), graph)


@pytest.mark.slow
def test_the_bytes_planned_are_the_bytes_sent():
    changes = {"rounds": 3, "download": "model"}
    (row,) = rows_of(eval_every=3, **changes)
    up, down = row["bytes_up_total"], row["bytes_down_total"]
    sent = f"per round: {up // 3} bytes up, {down // 3} down; 3 rounds: "
    sent += f"{sized(up)} up, {sized(down)} down"
    assert sent in lines(**changes)


@pytest.mark.parametrize(
    ("graph", "changes", "found"),
    [
        # 20 nodes on a ring: every message crosses every edge once or twice.
        ("ring", {}, "without a server: 20 edges; flood: .* in 10 hops; per round: "
         f"{20 * 20 * MESSAGE} bytes in total, at most {10 * MESSAGE} over"),
        ("grid:4x5", {}, "tree: .* 38 messages per exchange in 8 hops; per round: "
         f"{38 * 4 * 32} bytes in total, at most {4 * 32} over"),  # node 7 is the root
        ("ring", {"algorithm": "ef21"}, "tree: impossible"),
        # A flood sends its origin with both exchanges.
        ("ring", HEAVY, f"{20 * 20 * (4 * 32 + 4 * 10 + 2 * 4)} bytes in total"),
        ("", {"privacy__bound": "clip", "privacy__noise_multiplier": 1.0,
                "privacy__relation": "replace_one"}, "noise multiplier 1"),
    ],
)  # fmt: skip
def test_a_plan_has_the_bytes_of_its_network_and_its_privacy(graph, changes, found):
    printed = lines(graph=graph, **changes)
    assert any(re.search(found, line) for line in printed)
