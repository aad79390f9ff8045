"""Which arrays train is said in a few words, and refused in one line."""

import pytest

from fl_sketch.transforms.trains import Chosen, chosen
from tests.refusals import refused

pytestmark = pytest.mark.fast

SHAPES = {
    "block1/attention/query/kernel": (32, 4, 8),
    "block1/attention/query/bias": (4, 8),
    "block1/norm/scale": (32,),
    "block1/dense1/kernel": (32, 128),
    "block1/dense1/bias": (128,),
    "dense/kernel": (32, 10),
    "dense/bias": (10,),
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("all", Chosen(tuple(SHAPES), {})),
        ("head", Chosen(("dense/kernel", "dense/bias"), {})),
        ("norm|query/bias", Chosen(
            ("block1/attention/query/bias", "block1/norm/scale"), {})),
        ("lora(rank=4, alpha=8, on=query/kernel)",
         Chosen((), {"block1/attention/query/kernel": 4}, 2.0)),
        ("lora( rank=4,alpha=8.0 , on=(a|dense1)/kernel )+head",
         Chosen(("dense/kernel", "dense/bias"), {"block1/dense1/kernel": 4}, 2.0)),
        ("lora(rank=4)+head", Chosen(  # all matrices that do not train themselves
            ("dense/kernel", "dense/bias"),
            {"block1/attention/query/kernel": 4, "block1/dense1/kernel": 4})),
    ],
)  # fmt: skip
def test_arrays_are_chosen_by_their_names(text, found):
    assert chosen(text, SHAPES) == found


@pytest.mark.parametrize(
    ("names", "head"),
    [
        (["dense1/kernel", "dense2/kernel", "dense10/kernel"], "dense10/kernel"),
        (["Dense_0/kernel", "Dense_1/kernel"], "Dense_1/kernel"),
        (["dense/kernel", "linear3/kernel", "classifier/kernel"], "classifier/kernel"),
        (["encoder/dense9/w", "lm_head/w"], "lm_head/w"),
        (["first.weight", "fc2.weight"], "fc2.weight"),
        (["dense1", "dense2"], "dense2"),
        (["params/norm/scale", "params/head/kernel"], "params/head/kernel"),
    ],
)
def test_the_last_layer_is_known_by_its_name(names, head):
    shapes = dict.fromkeys(names, (3, 3))
    assert chosen("head", shapes).wholly == (head,)


@pytest.mark.parametrize(
    "text",
    ["", "lora(", "lora(rank=2.5)", "lora(rank=2, alpha=nan)", "(", "qery", ".",
     "lora(rank=0)", "lora(rank=33, on=query)", "lora(rank=2, on=norm|query/bias)",
     "lora(rank=2, on=^dense)+head"],
)  # fmt: skip
def test_other_words_and_what_does_not_fit_a_model_are_refused(text):
    with refused():
        chosen(text, SHAPES)
    with refused("pattern"):  # which names a head that has no known name
        chosen("head", dict.fromkeys(["layers/0/weight", "layers/1/weight"], (2, 2)))
