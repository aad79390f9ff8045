"""A model of one's own is as fast as ours, and faster than a loop of jitted steps."""

import jax
import numpy as np
import pytest

from fl_sketch.experiments.bench import model_suite
from fl_sketch.experiments.bench.engine_forms import WORKLOADS, prepare

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", model_suite.MODELS)
def test_all_forms_train_the_same_model(name):
    setting = prepare(WORKLOADS[name]._replace(cohort=2, steps=2), devices=1)
    forms = ("linen", "as_written", "loop")
    timed = [model_suite._timed(setting, form) for form in forms]
    first, *ends = (one.call(one.start()) for one in timed)
    ends = [getattr(end, "server", end) for end in (first, *ends)]
    ends = [jax.tree.leaves(getattr(end, "params", end)) for end in ends]
    for end in ends[1:]:
        for ours, other in zip(ends[0], end, strict=True):
            np.testing.assert_allclose(ours, other, atol=2e-4)


def test_models_of_one_s_own_are_as_fast_as_ours():
    forms = ("models", "linen", "nnx", "loop")
    rows = list(model_suite.run(["W2"], forms, rounds=9, cohort=4))
    assert [row.form for row in rows] == list(forms)
    ratios = {row.form: row.ratio for row in rows}
    assert max(ratios["linen"], ratios["nnx"]) < 1.2 < 1 / 0.6 < ratios["loop"]
