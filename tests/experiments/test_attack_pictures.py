"""Curves of attacks stand beside those of other attacks, a panel for each prior."""

import matplotlib.figure
import pytest

from fl_sketch.core import files
from fl_sketch.experiments import attack_pictures

pytestmark = pytest.mark.fast


def rows(prior, levels=(0.1, 1.0), **keys):
    numbers = {"images": 2, "psnr_mean": 14.0, "psnr_half_width": 1, "guess_mean": 12.0}
    return [{"privacy.z": z, **keys, "prior": prior, **numbers} for z in levels]


@pytest.fixture
def panels(monkeypatch):
    """Returns what is drawn, once it is: (title, legend) of every panel."""
    drawn = []

    def kept(_, figure):
        assert isinstance(figure, matplotlib.figure.Figure)
        for panel in figure.axes:
            words = [text.get_text() for text in panel.get_legend().get_texts()]
            drawn.append((panel.get_title(), panel.get_xlabel(), sorted(words)))

    monkeypatch.setattr(files, "write_figure", kept)
    return drawn


def test_attacks_are_named_by_their_folders(tmp_path, panels):
    for name, prior in (("plain", "none"), ("other", "gaussian")):
        (tmp_path / name).mkdir()
        files.write_rows(tmp_path / name / "attack.csv", rows(prior))
    beside = attack_pictures.rows_of([str(tmp_path / "plain"), tmp_path / "other"])
    own = rows("gaussian")
    path = tmp_path / "here" / "attack_curves.png"
    attack_pictures.draw_curves(own, path, beside)
    assert panels == [
        ("prior=none", "privacy.z", ["a guess", "plain"]),
        ("prior=gaussian", "privacy.z", ["a guess", "here", "other"]),
    ]


def test_one_attack_has_a_panel_for_every_number_and_no_name(tmp_path, panels):
    own = [*rows("none", size=1), *rows("none", size=2)]
    attack_pictures.draw_curves(own, tmp_path / "x.png")
    assert panels == [
        ("", "privacy.z", ["a guess", "size=1", "size=2"]),
        ("", "size", ["a guess", "privacy.z=0.1", "privacy.z=1"]),
    ]


def test_of_one_setting_there_is_no_picture(tmp_path, panels):
    attack_pictures.draw_curves(rows("none", levels=(1.0,)), tmp_path / "x.png")
    assert not panels


def test_a_folder_without_an_attack_is_refused(tmp_path):
    with pytest.raises(ValueError, match=f"the folder of an attack, got {tmp_path}"):
        attack_pictures.rows_of([tmp_path])
