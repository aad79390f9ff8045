"""What is wrong with the value of a flag, in one line."""

import re

KINDS = {  # by errors of Python and absl
    "invalid literal for int()": "an integer",
    "could not convert string to float": "a number",
    "Non-boolean": "True or False",
}


def line(error: Exception) -> str:
    """Returns an error of absl, which may hold a whole traceback, as one line.

    >>> line(ValueError("flag --rounds=ten: invalid literal for int(): 'ten'"))
    'Expected rounds to be an integer, got rounds=ten.'
    """
    text = str(error).strip()
    missing = re.match(r"flag --(\w+)=None: ", text)
    if missing:
        return f"Expected --{missing[1]}, got none: see --help."
    text = re.split(r"\n\w*Error: ", text)[-1]
    found = re.match(r"flag --(?:config\.)?([\w.]+)=(.*?): (.*)", text, re.DOTALL)
    for part, kind in KINDS.items():
        if found and part in found[3]:
            return f"Expected {found[1]} to be {kind}, got {found[1]}={found[2]}."
    return text
