"""Models by name, for configs.

>>> build("mlp", 10, hidden=(32,))
Mlp(
    # attributes
    classes = 10
    hidden = (32,)
)
>>> build("lenett", 10)
Traceback (most recent call last):
ValueError: Expected model to be one of 'logistic', 'mlp', 'lenet', 'cnn', 'resnet', \
got model='lenett'. Did you mean 'lenet'?
"""

import inspect
from typing import Any

import flax.linen as nn

from fl_sketch import validate
from fl_sketch.models import classifiers

MODELS = {
    "logistic": classifiers.logistic,
    "mlp": classifiers.mlp,
    "lenet": classifiers.lenet,
    "cnn": classifiers.cnn,
    "resnet": classifiers.resnet,
}


def build(name: str, classes: int, **options: Any) -> nn.Module:
    """Returns the model of that name; options are those of its function.

    Raises:
      ValueError: for a name or an option that does not exist, with the nearest
        that does, or for a value that is not allowed.
      TypeError: for a value of another type.
    """
    validate.one_of(tuple(MODELS), model=name)
    legal = options_of(name)
    for option in options:
        if option not in legal:
            has = f"only {', '.join(legal)}" if legal else "none"
            msg = f"Model {name!r} has no option {option!r}, {has}."
            raise ValueError(msg + validate.nearest(option, legal))
    return MODELS[name](classes, **options)


def options_of(name: str) -> tuple[str, ...]:
    """Returns the options of a model.

    >>> options_of("resnet")
    ('width', 'blocks')
    """
    return tuple(inspect.signature(MODELS[name]).parameters)[1:]
