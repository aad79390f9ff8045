"""What `launch.calibrate` prints and refuses; see also tests/test_printed.py."""

import re

import pytest

from fl_sketch.privacy import accounting, noise_size
from fl_sketch.privacy.guarantee import promised
from tests.launching import launch

pytestmark = pytest.mark.slow

GOOD = {"epsilon": 2, "delta": 1e-5, "clients": 1000, "cohort": 50, "rounds": 200}
EXAMPLE = {"unit": "example", "epsilon": 3, "examples": 600, "batch": 60, "steps": 4}
EXAMPLE |= {"cohort": 10, "rounds": 100, "numbers": 6500}


def calibrated(flags):
    return launch("launch.calibrate", *(f"--{n}={v}" for n, v in flags.items()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": "0"}, "epsilon=0"),
        ({"epsilon": "abc"}, "epsilon=abc"),
        ({"cohort": "2000"}, "cohort=2000"),
        ({"sampling": "fixed"}, "relation=replace_one"),
        ({"unit": "example"}, "--examples"),
        ({"numbers": 100, "bits": 4}, "bits=4"),
    ],
    ids=str,
)
def test_bad_values_get_one_line(changes, words):
    done = calibrated(GOOD | changes)
    assert done.returncode == 2
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_the_noise_of_examples_keeps_the_target_and_is_said_to_drown_the_model():
    done = calibrated(EXAMPLE)
    assert done.returncode == 0, done.stderr
    z = float(re.search(r"multiplier by RDP: (\S+)", done.stdout)[1])
    plan = accounting.Plan(400, 60, 600, "fixed", relation="replace_one")
    plan = plan._replace(coordinates=6500)
    assert 2.99 < accounting.epsilon(plan, z, delta=1e-5) <= 3
    made = promised(
        plan, rounds=100, noise_multiplier=z, delta=1e-5, per_round=4, unit="example"
    )
    assert "hardly learn" in done.stdout
    assert [*noise_size.lines(made, clients=10)][1].partition(" epsilon")[0] in (
        done.stdout
    )
