"""Lists all commands, grouped by purpose: python -m launch."""

import ast
import pathlib

GROUPS = {
    "Start": ("quickstart", "prepare_data"),
    "Train": ("train", "network", "sweep", "compare", "plot"),
    "Use a trained model": ("predict", "generate"),
    "Privacy": ("calibrate", "audit", "release"),
    "Plan": ("plan",),
    "Attack and inspect": ("attack", "spectrum"),
}


def listed() -> list[str]:
    """Returns the lines of the list, with the first docstring line of each command."""
    lines = []
    for group, names in GROUPS.items():
        lines.append(f"{group}:")
        lines += [f"  python -m launch.{name:14}{_first(name)}" for name in names]
    return [*lines, "Add --help to a command to see what it does and its flags."]


def _first(name: str) -> str:
    """Returns the first line of a command's docstring, without importing it."""
    text = pathlib.Path(__file__).with_name(f"{name}.py").read_text()
    return ast.get_docstring(ast.parse(text)).partition("\n")[0]


if __name__ == "__main__":
    print(*listed(), sep="\n")
