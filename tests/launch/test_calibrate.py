"""What `launch.calibrate` refuses; its table is compared in tests/test_printed.py."""

import pytest

from tests.launching import launch

pytestmark = pytest.mark.slow

GOOD = {
    "epsilon": "2",
    "delta": "1e-5",
    "clients": "1000",
    "cohort": "50",
    "rounds": "200",
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": "0"}, "epsilon=0"),
        ({"epsilon": "abc"}, "epsilon=abc"),
        ({"cohort": "2000"}, "cohort=2000"),
        ({"sampling": "fixed"}, "relation=replace_one"),
    ],
    ids=str,
)
def test_bad_values_get_one_line(changes, words):
    flags = [f"--{name}={value}" for name, value in (GOOD | changes).items()]
    done = launch("launch.calibrate", *flags)
    assert done.returncode == 2
    assert words in done.stderr and done.stderr.count("\n") == 1
    assert not done.stdout
