"""Which rows of a list `make test` has; the slow tests have all of them."""

import pytest


def some_fast(names, quick):
    """Returns the parameters of a test, of which all but the quick ones are slow."""
    missing = {*quick} - {*names}
    assert not missing, missing
    slow = pytest.mark.slow
    return [one if one in quick else pytest.param(one, marks=slow) for one in names]
