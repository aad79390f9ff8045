"""Clients that compute in bfloat16 against clients in float32.

Command: python -m launch.compare --config=configs/compare_dtype.py:fashion_mnist \
--workdir=/tmp/dtype --data_dir=DATA
Expect: the table of results/accelerators about bfloat16.

  fashion_mnist   SAFL on images, a LeNet, clients of two classes each
  shakespeare     SAFL on characters, a language model, one client per speaker

Both types use the rates of the tasks' own configs. The question is whether the same run
ends elsewhere, and not how good each type is after tuning.
"""

from configs import safl_fashion_mnist, shakespeare
from fl_sketch.sweep.comparison import Comparison, Method

TASKS = {"fashion_mnist": safl_fashion_mnist, "shakespeare": shakespeare}


def get_comparison(which: str = "fashion_mnist"):
    """Returns SAFL on a task in each type of number.

    Args:
      which: one of `TASKS`.

    Raises:
      ValueError: for any other text, in one line.
    """
    if which not in TASKS:
        msg = f"Expected configs/compare_dtype.py:{'|'.join(TASKS)}, got {which}."
        raise ValueError(msg)
    base = TASKS[which].get_config()
    base.algorithm = "safl"
    base.sketch.compression = 20.0
    dtypes = ("float32", "bfloat16")
    return Comparison(base, {of: Method({"compute.dtype": of}) for of in dtypes})
