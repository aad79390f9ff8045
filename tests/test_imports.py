"""Heavy libraries are imported by what needs them, not by every command."""

import subprocess
import sys

HEAVY = {
    "dp_accounting", "flax.nnx", "matplotlib", "pandas", "scipy", "sklearn",
    "tensorflow_datasets",
}  # fmt: skip


def test_a_run_and_the_python_door_import_little():
    code = (
        "import sys; import fl_sketch.run, fl_sketch.engine, fl_sketch.algorithms, "
        f"fl_sketch.models; print({HEAVY!r} & {{*sys.modules}} or 'none')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "none", done.stderr
