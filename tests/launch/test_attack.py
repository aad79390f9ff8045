"""The attack on a config, as a user starts it."""

import csv

import pytest

from tests.launching import launch

pytestmark = pytest.mark.slow

SMALL = (
    "--images=2", "--steps=40", "--config.data.name=digits", "--config.rounds=1",
    "--config.model.name=logistic",
)  # fmt: skip


def test_settings_are_attacked_and_judged(tmp_path):
    done = launch(
        "launch.attack", "--config=configs/attack_mnist.py", f"--workdir={tmp_path}",
        *SMALL, "--over=sketch.compression=1,50", "--theory=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, theory, second = done.stdout.splitlines()[:3]
    assert theory.startswith("image 0: ") and "Jacobian" in theory
    assert first.startswith("sketch.compression=1: LEAKS")
    assert second.startswith("sketch.compression=50: this attack found no more")
    with open(tmp_path / "attack.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["psnr_median"]) > 20 > float(rows[1]["psnr_median"])
    with open(tmp_path / "theory.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["sketch.compression"] for row in rows] == ["1.0", "50.0"]
    for row in rows:
        assert float(row["promised"]) <= float(row["measured"])
    for name in ("images.png", "attack_curves.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_who_shrinks_is_drawn_beside(tmp_path):
    for name, *flags in (
        ("first",),
        ("second", "--prior=gaussian", f"--beside={tmp_path}/first"),
    ):
        done = launch(
            "launch.attack", "--config=configs/attack_mnist.py",
            f"--workdir={tmp_path}/{name}", *SMALL, "--config.privacy.bound=clip",
            "--over=privacy.noise_multiplier=0.1,10", *flags,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    with open(tmp_path / "second" / "attack.csv", newline="") as file:
        little, much = csv.DictReader(file)
    assert little["prior"] == "gaussian" and float(much["epsilon"]) < 1
    assert float(little["psnr_mean"]) > float(much["psnr_mean"])
    assert abs(float(much["over_guess_mean"])) < 0.1
    picture = (tmp_path / "second" / "attack_curves.png").read_bytes()
    assert len(picture) > len((tmp_path / "first" / "attack_curves.png").read_bytes())
