"""Lists every command, by what one wants to do: python -m launch."""

import ast
import pathlib

from launch import streams

GROUPS = {
    "begin": ("quickstart", "prepare_data", "import_data"),
    "train": ("train", "sweep", "compare", "plot"),
    "use a trained model": ("predict", "generate"),
    "promise privacy": ("calibrate", "audit", "release"),
    "plan and reproduce": ("plan", "compile", "reproduce"),
    "attack": ("attack",),
    "study": (
        *("scaling", "spectrum", "tracking", "trade", "theorems", "quadratics"),
        "features",
    ),
    "measure this machine": ("benchmark",),
}


def listed() -> list[str]:
    """Returns the lines of the list: what each command says of itself first."""
    lines = []
    for group, names in GROUPS.items():
        lines.append(f"To {group}:")
        lines += [f"  python -m launch.{name:14}{_first(name)}" for name in names]
    return [*lines, "Each explains itself and its flags with --help."]


def _first(name: str) -> str:
    """Returns the first line of a command's docstring; nothing is imported for it."""
    text = pathlib.Path(__file__).with_name(f"{name}.py").read_text()
    return ast.get_docstring(ast.parse(text)).partition("\n")[0]


if __name__ == "__main__":
    streams.made_patient()
    print(*listed(), sep="\n")
