"""What kind of machine this is, as far as last bits depend on it."""

import hashlib
import pathlib
import re
from importlib import metadata

FLAGS = re.compile(r"^flags\s*: (.*)$", re.MULTILINE)
MODEL = re.compile(r"^model name\s*: (.*)$", re.MULTILINE)


def kind_of_machine():
    """Returns the processor's name, a digest of what it can, and jaxlib's version."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model, flags = (found.search(text) for found in (MODEL, FLAGS))
    name = re.sub(r"\W+", "_", model[1] if model else "unknown").strip("_").lower()
    able = hashlib.sha256((flags[1] if flags else "").encode()).hexdigest()[:8]
    return f"{name}-{able}-jaxlib_{metadata.version('jaxlib')}"
