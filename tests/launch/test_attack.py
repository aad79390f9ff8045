"""The attack on a config, as a user starts it."""

import pytest

from fl_sketch.core import files
from tests.launching import launch

pytestmark = pytest.mark.slow

SMALL = (
    "--config=configs/attack_mnist.py", "--images=2", "--steps=40",
    "--config.data.name=digits", "--config.rounds=1", "--config.model.name=logistic",
)  # fmt: skip


def attacked(folder, *flags):
    done = launch("launch.attack", f"--workdir={folder}", *SMALL, *flags)
    assert done.returncode == 0, done.stderr
    assert (folder / "images.png").read_bytes().startswith(b"\x89PNG")
    return done.stdout.splitlines(), files.read_rows(folder / "attack.csv")


def test_settings_are_attacked_and_judged(tmp_path):
    lines, rows = attacked(tmp_path, "--over=sketch.compression=1,50")
    assert lines[0].startswith("sketch.compression=1: LEAKS")
    assert lines[1].startswith("sketch.compression=50: this attack found no more")
    assert float(rows[0]["psnr_median"]) > 20 > float(rows[1]["psnr_median"])
    assert (tmp_path / "attack_curves.png").exists()


def test_an_attacker_with_a_prior_moves_to_the_mean_and_is_drawn_beside(tmp_path):
    noise = "--config.privacy.bound=clip", "--over=privacy.noise_multiplier=0.1,10"
    attacked(tmp_path / "first", *noise)
    more = "--prior=gaussian", f"--beside={tmp_path}/first"
    _, (little, much) = attacked(tmp_path / "second", *noise, *more)
    assert little["prior"] == "gaussian" and float(much["epsilon"]) < 1
    assert float(little["psnr_mean"]) > float(much["psnr_mean"])
    assert abs(float(much["over_guess_mean"])) < 0.1
    first, second = (tmp_path / n / "attack_curves.png" for n in ("first", "second"))
    assert second.stat().st_size > first.stat().st_size
