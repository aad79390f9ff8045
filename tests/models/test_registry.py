"""Models by name: the nearest legal one is suggested, values are refused at once."""

import pytest

from fl_sketch import models
from fl_sketch.models import registry


@pytest.mark.parametrize("name", registry.MODELS)
def test_every_name_builds(name):
    assert models.build(name, 3).classes == 3


def test_options_arrive():
    assert models.build("mlp", 10, hidden=[8, 4]).hidden == (8, 4)
    assert models.build("mlp", 10, hidden=()).hidden == ()
    assert models.build("resnet", 10, width=8).width == 8


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: models.build("lenett", 10), ValueError, "Did you mean 'lenet'"),
        (lambda: models.build("zzz", 10), ValueError, r"'lenet'.*got model='zzz'\.$"),
        (
            lambda: models.build("mlp", 10, hiden=(3,)),
            ValueError,
            "'mlp' has no option 'hiden', only hidden, width. Did you mean 'hidden'",
        ),
        (
            lambda: models.build("lenet", 10, width=3),
            ValueError,
            "'lenet' has no option 'width', and no other",
        ),
        (
            lambda: models.build("resnet", 10, size="paper", width=3),
            ValueError,
            "'resnet' of size 'paper' has no option 'width', only norm",
        ),
        (
            lambda: models.build("cnn", 10, kernels="glorot"),
            ValueError,
            "kernels='glorot'. Did you mean 'glorot_uniform'",
        ),
        (lambda: models.build("mlp", 10, width=0), ValueError, "width=0"),
        (lambda: models.build("cnn", 10, width=-1), ValueError, "width=-1"),
        (lambda: models.build("cnn", 0), ValueError, "classes=0"),
        (lambda: models.build("cnn", 2.0), TypeError, "classes=2.0"),
        (lambda: models.build("logistic", True), TypeError, "classes=True"),
        (lambda: models.build("mlp", 10, hidden=(8, 0)), ValueError, r"hidden\[1\]=0"),
        (lambda: models.build("mlp", 10, hidden=8), TypeError, "hidden=8"),
        (lambda: models.build("mlp", 10, hidden="8"), TypeError, "hidden"),
        (lambda: models.build("resnet", 10, width=-1), ValueError, "width=-1"),
        (lambda: models.build("resnet", 10, blocks=1.5), TypeError, "blocks=1.5"),
    ],
)
def test_bad_names_and_values_get_one_line(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
