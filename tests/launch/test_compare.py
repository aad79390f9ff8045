"""The commands for comparisons, as a user starts them."""

import pytest

from fl_sketch.sweep import comparison
from tests.launching import launch

pytestmark = pytest.mark.slow


def test_a_comparison_runs_and_ends_with_a_table(tmp_path):
    config = tmp_path / "compare_two.py"
    config.write_text(
        "from configs import default\n"
        "from fl_sketch.sweep.comparison import Comparison, Method\n"
        "def get_comparison():\n"
        "    two = {'SAFL': Method({}), 'FedAdam': Method({'algorithm': 'fedopt'})}\n"
        "    return Comparison(default.get_config(), two, seeds=(0, 1))\n"
    )
    done = launch(
        "launch.compare", f"--config={config}", f"--workdir={tmp_path / 'out'}",
        "--set=rounds=4", "--set=model.name=logistic",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| SAFL | " in done.stdout and "| FedAdam | " in done.stdout
    for name in ("comparison.csv", "standings.csv", "standings.md", "comparison.png"):
        assert (tmp_path / "out" / name).stat().st_size > 0


def test_what_is_no_comparison_is_refused_in_a_line():
    cases = {
        "configs/none.py": "to name a file",
        "configs/default.py": "with get_comparison",
        "configs/compare_private_safl.py:iid": "alone",
        "configs/compare_fedsketch.py:idd": "Expected iid or classes",
        "configs/compare_das.py:mnist,100": "fashion_mnist|features",
    }
    for config, words in cases.items():
        try:
            comparison.load(config)
        except (ValueError, FileNotFoundError) as error:
            assert words.split("|")[0] in str(error) and "\n" not in str(error)
        else:
            raise AssertionError(config)


def test_the_quadratics_of_das_run_in_small(tmp_path):
    done = launch(
        "launch.quadratics", f"--workdir={tmp_path}", "--rounds=3", "--seeds=1"
    )
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 19
    assert (tmp_path / "figures.png").stat().st_size > 0
