"""What the errata say is false is false, and the page has its numbers."""

import csv
import re

import pytest

from experiments import errata
from experiments.verdicts import RESULTS
from tests.launching import ROOT
from tests.test_results import rows_of, unknown

pytestmark = pytest.mark.fast


def test_each_statement_is_broken_as_the_file_and_the_page_say():
    text = errata.page()
    assert (RESULTS / "theory/errata.csv").read_text() == text
    page = (ROOT / "docs/errata.md").read_text()
    for row in csv.DictReader(text.splitlines()):
        assert float(row["true"]) > float(row["promised"]), row
        assert re.sub(r"e([+-])0", r"e\1", row["true"]).replace("e+", "e") in page, row
    known = [*rows_of(RESULTS / "theory"), *rows_of(RESULTS / "fedsketch")]
    assert not unknown(page, known)
