"""The commands for comparisons, as a user starts them."""

import pytest

from fl_sketch.sweep import comparison
from tests.launching import launch

pytestmark = pytest.mark.slow
CONFIG = """
from configs import default
from fl_sketch.sweep.comparison import Comparison, Method
def get_comparison():
    two = {'SAFL': Method({}), 'FedAdam': Method({'algorithm': 'fedopt'})}
    return Comparison(default.get_config(), two, seeds=(0, 1))
"""


def test_a_comparison_runs_and_ends_with_a_table(tmp_path):
    config, folder = tmp_path / "compare_two.py", tmp_path / "out"
    config.write_text(CONFIG)
    settings = ("--set=rounds=4", "--set=model.name=logistic")
    flags = (f"--config={config}", f"--workdir={folder}", *settings)
    done = launch("launch.compare", *flags)
    assert done.returncode == 0, done.stderr
    table = (folder / "standings.md").read_text()
    assert table in done.stdout and "| SAFL | " in table and "| FedAdam | " in table
    for name in ("comparison.csv", "standings.csv", "standings.md", "comparison.png"):
        assert (folder / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("configs/none.py", "to name a file"),
        ("README.md", "a Python file"),
        ("configs/default.py", "with get_comparison"),
        ("configs/compare_private_safl.py:iid", "without an argument"),
        ("configs/compare_fedsketch.py:idd", "Expected iid or classes"),
        ("configs/compare_das.py:mnist,100", "fashion_mnist"),
    ],
)
def test_what_is_no_comparison_is_refused_in_a_line(config, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        comparison.load(config)
    assert "\n" not in str(caught.value)
