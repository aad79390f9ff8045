"""A refusal is one line that names what is wrong."""

import contextlib

import pytest


@contextlib.contextmanager
def refused(*parts, match="", error=ValueError):
    """Expects an error of one line in which all these parts, or a pattern, occur."""
    with pytest.raises(error, match=match or None) as caught:
        yield
    line = str(caught.value)
    assert "\n" not in line
    for part in parts:
        assert str(part) in line, line
