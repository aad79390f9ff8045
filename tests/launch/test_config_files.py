"""A config file that fails says where, in one line."""

import pytest

from tests.launching import launch

FILES = {
    "zero": (
        "def get_config():\n    return 1 / 0\n",
        "zero.py, line 2: ZeroDivisionErr",
    ),
    "lacks": (
        "import nothing_of_it\ndef get_config(): pass\n",
        "lacks.py, line 1: Modul",
    ),
    "name": (
        "def get_config():\n    return nobody\n",
        "name.py, line 2: NameError: name",
    ),
    "none": ("def get_configs():\n    pass\n", "a file with get_config"),
    "other": (
        "def get_config():\n    return {'a': 1}\n",
        "return a ConfigDict, got dict",
    ),
    "key": (
        "from configs import default\n\n\ndef get_config():\n"
        "    c = default.get_config()\n    c.client.rat = 0.1\n    return c\n",
        'key.py, line 6: AttributeError: \'Key "rat" does not exist and cannot be '
        'added since the config is locked. Did you mean "rate"',
    ),
    "torn": ("def get_config(:\n", "invalid syntax (torn.py, line 1)"),
    "ends": (
        "import sys\n\n\ndef get_config():\n    sys.exit(0)\n",
        "ends.py, line 5: SystemExit: a config file ends the program",
    ),
    "bytes": ("\0", "bytes.py to be a Python file, got "),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_fails_says_where_in_one_line(tmp_path, name):
    text, words = FILES[name]
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    done = launch("launch.train", f"--config={file}", f"--workdir={tmp_path}/run")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_config_may_come_from_another_file(tmp_path):
    file = tmp_path / "again.py"
    file.write_text("from configs.default import get_config\n")
    done = launch("launch.train", f"--config={file}", f"--workdir={tmp_path}/run",
                  "--config.rounds=1")  # fmt: skip
    assert done.returncode == 0, done.stderr
