"""A model of one's own is as fast as ours, and faster than a loop of jitted steps."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from fl_sketch.experiments.bench import model_suite
from fl_sketch.experiments.bench.engine_forms import prepare
from fl_sketch.experiments.bench.workloads import WORKLOADS

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("name", model_suite.MODELS)
def test_all_forms_train_the_same_model(name):
    setting = prepare(WORKLOADS[name]._replace(cohort=2, steps=2), devices=1)
    forms = ("linen", "loop")
    timed = [model_suite._timed(setting, form) for form in forms]
    first, *ends = (one.call(one.start()) for one in timed)
    ends = [getattr(end, "server", end) for end in (first, *ends)]
    ends = [jax.tree.leaves(getattr(end, "params", end)) for end in ends]
    for end in ends[1:]:
        for ours, other in zip(ends[0], end, strict=True):
            np.testing.assert_allclose(ours, other, atol=2e-4)


def test_models_of_one_s_own_are_as_fast_as_ours(tmp_path):
    """In a process of its own: tests compile with little effort."""
    out, forms = tmp_path / "rows.jsonl", ("models", "linen", "nnx", "loop")
    chosen = [f"--model_forms={form}" for form in forms]
    options = "--suite=models", "--models=W2", "--rounds=9", "--cohort=10"
    command = sys.executable, "-m", "launch.benchmark", f"--out={out}", *options
    quiet = {key: os.environ[key] for key in os.environ if key != "XLA_FLAGS"}
    subprocess.run([*command, *chosen], check=True, env=quiet, cwd=ROOT)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["form"] for row in rows] == list(forms)
    ratios = {row["form"]: row["ratio"] for row in rows}
    assert max(ratios["linen"], ratios["nnx"]) < 1.2 < 1 / 0.6 < ratios["loop"]
