"""Lists the studies, and the commands that made each page of results.

python -m experiments
"""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]


def studies() -> list[str]:
    """Returns a line for each study, read from its file: nothing is imported.

    A study is a file with a constant MINUTES, the time that it takes.
    """
    lines = []
    for path in sorted((ROOT / "experiments").glob("*.py")):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node).startswith("MINUTES"):
                minutes = ast.literal_eval(node.value)
                title = ast.get_docstring(tree).partition("\n")[0]
                lines.append(f"{path.stem:18} {minutes:5} minutes  {title}")
    return lines


def pages() -> list[str]:
    """Returns a line for each page of results: its folder, its commands, their time."""
    lines = []
    for path in sorted((ROOT / "results").glob("*/README.md")):
        block = re.findall(r"```bash\n# (.*?)\n(.*?)```", path.read_text(), re.DOTALL)
        for time, commands in block:
            modules = dict.fromkeys(re.findall(r"python -m ([\w.]+)", commands))
            lines.append(f"{path.parent.name:18} {', '.join(modules)} ({time})")
    return lines


if __name__ == "__main__":
    print("python -m experiments.NAME --help", *studies(), sep="\n")
    print("\nresults/NAME", *pages(), sep="\n")
