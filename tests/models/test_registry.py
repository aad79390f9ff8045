"""Models by name: the nearest legal one is suggested, values are refused at once."""

import pytest

from fl_sketch import models
from tests.refusals import refused


def test_options_arrive():
    assert models.build("mlp", 10, hidden=[8, 4]).hidden == (8, 4)
    assert models.build("mlp", 10, hidden=()).hidden == ()
    assert models.build("resnet", 10, width=8).width == 8
    assert models.build("vit", 10, size="paper", patch=8).patch == 8


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("lenett", {}, ValueError, "Did you mean 'lenet'"),
        ("zzz", {}, ValueError, r"'lenet'.*model='zzz'\.$"),
        ("mlp", {"hiden": (3,)}, ValueError, "'mlp'.*hidden, width.*mean 'hidden'"),
        ("lenet", {"width": 3}, ValueError, "'lenet'.*width"),
        ("resnet", {"size": "paper", "width": 3}, ValueError, "'paper'.*norm.*width"),
        ("mlp", {"size": "paper"}, ValueError, "'mlp'.*size='paper'"),
        ("vit", {"size": "big"}, ValueError, "size='big'"),
        ("own.py:NAME", {"size": "paper"}, ValueError, "own.py:NAME.*size='paper'"),
        ("cnn", {"kernels": "glorot"}, ValueError, "kernels='glorot'.*glorot_uniform"),
        ("cnn", {"dropout": 1.0}, ValueError, "dropout=1.0"),
        ("vit", {"dropout": 1.0}, ValueError, "dropout=1.0"),
        ("vit", {"heads": 5}, ValueError, "width=64.*heads=5"),
        ("transformer", {"depth": 0}, ValueError, "depth=0"),
        ("transformer", {"vocabulary": 0}, ValueError, "vocabulary=0"),
        ("mlp", {"width": 0}, ValueError, "width=0"),
        ("cnn", {"width": -1}, ValueError, "width=-1"),
        ("cnn", {"classes": 0}, ValueError, "classes=0"),
        ("cnn", {"classes": 2.0}, TypeError, "classes=2.0"),
        ("logistic", {"classes": True}, TypeError, "classes=True"),
        ("mlp", {"hidden": (8, 0)}, ValueError, r"hidden\[1\]=0"),
        ("mlp", {"hidden": 8}, TypeError, "hidden=8"),
        ("mlp", {"hidden": "8"}, TypeError, "hidden"),
        ("resnet", {"width": -1}, ValueError, "width=-1"),
        ("resnet", {"blocks": 1.5}, TypeError, "blocks=1.5"),
        ("resnet", {"norm": "layer"}, ValueError, "norm='layer'"),
    ],
)
def test_bad_names_and_values_get_one_line(name, options, error, words):
    with refused(match=words, error=error):
        models.build(name, **{"classes": 10, **options})
