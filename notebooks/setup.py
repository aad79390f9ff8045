"""Installs the project for a notebook, around the jax that is there already.

A Colab comes with a jax and the plugin for its accelerator, which belong together. If
pip replaced the first alone, the second would not be loaded, and all would run on the
CPU. So both stay where they are new enough, and are replaced together where not.
"""

import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping

ACCELERATORS = {  # the package that is a plugin's: the extra of jax that brings it
    "jax-cuda12-plugin": "cuda12",
    "jax-cuda13-plugin": "cuda13",
    "libtpu": "tpu",
}
OURS = re.compile(r"jax|jaxlib|jax-.*-(plugin|pjrt)|libtpu")
AGAIN = "Now restart the session, and run the notebook from its first cell."


def install(root: pathlib.Path) -> None:
    """Installs the project whose folder is `root`, and says what becomes of jax.

    Raises:
      SystemExit: where jax was replaced, since this process may have loaded the old
        one.
    """
    installed = {
        one.metadata["Name"].lower().replace("_", "-"): one.version
        for one in importlib.metadata.distributions()
    }
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    oldest = next(
        each.removeprefix("jax>=")
        for each in project["dependencies"]
        if each.startswith("jax>=")
    )
    wanted, kept, said = plan(installed, oldest)
    print(said)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("".join(f"{line}\n" for line in kept))
        constraints.flush()
        pip = [sys.executable, "-m", "pip", "install", "--quiet"]
        where = ["--constraint", constraints.name, "--editable", str(root)]
        subprocess.run([*pip, *wanted, *where], check=True)
    if wanted:
        raise SystemExit(AGAIN)


def plan(installed: Mapping[str, str], oldest: str) -> tuple[list[str], list[str], str]:
    """Returns what pip is to upgrade, what it is to keep, and a line that says so.

    >>> plan({"jax": "0.12.0", "jax-cuda12-plugin": "0.12.0", "pip": "26"}, "0.10.2")[1]
    ['jax==0.12.0', 'jax-cuda12-plugin==0.12.0']
    >>> plan({"jax": "0.7.2", "jax-cuda12-plugin": "0.7.2"}, "0.10.2")[0]
    ['--upgrade', 'jax[cuda12]>=0.10.2']

    Args:
      installed: the version of each package that is here, by its name.
      oldest: the oldest jax that the project runs on.
    """
    found = installed.get("jax")
    if found is None:
        return [], [], f"No jax is here: the newest, from {oldest} on, is installed."
    ours = [name for name in installed if OURS.fullmatch(name)]
    extra = next((ACCELERATORS[name] for name in ours if name in ACCELERATORS), "")
    beside = f" and its plugin for {extra}" if extra else ""
    if _numbers(found) >= _numbers(oldest):
        kept = [f"{name}=={installed[name]}" for name in ours]
        return [], kept, f"jax {found}{beside} stay as they are."
    wanted = f"jax[{extra}]>={oldest}" if extra else f"jax>={oldest}"
    said = f"jax {found} is older than {oldest}: it{beside} are replaced."
    return ["--upgrade", wanted], [], said


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers at the beginning of a version."""
    return tuple(map(int, re.match(r"\d+(\.\d+)*", version)[0].split(".")))
