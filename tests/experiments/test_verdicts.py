"""The headline and the verdicts are what their commands make of results/."""

import re

import pytest

from experiments import headline, verdicts
from tests.launching import ROOT
from tests.test_results import lines_of, unknown

pytestmark = pytest.mark.fast

INDEX = (verdicts.RESULTS / "README.md").read_text()


@pytest.mark.parametrize("made", [headline, verdicts], ids=["headline", "verdicts"])
def test_the_page_is_what_the_command_makes_of_the_files(made):
    name = made.__name__.rpartition(".")[2]
    assert (verdicts.RESULTS / f"{name}.md").read_text() == made.page()


def test_both_readmes_have_the_tables_of_the_headline():
    _, _, whole, short = headline.page().rstrip().split("\n\n")
    assert whole in INDEX
    assert short in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("says", "mean", "half", "word"),
    [
        ("more", 0.5, 0.4, "Holds"),
        ("more", 2.0, 2.1, "Not told"),
        ("more", 0.3, 0.4, "Fails"),  # within the margin of zero
        ("more", -2.0, 1.9, "Fails"),
        ("as much", -0.5, 0.4, "Holds"),
        ("as much", -0.7, 0.4, "Not told"),
        ("as much", -1.5, 0.4, "Fails"),
        ("as much", 2.0, 4.0, "Not told"),
    ],
)
def test_a_verdict_is_that_of_the_rule(says, mean, half, word):
    assert verdicts.verdict(says, mean, half) == word


def test_differences_of_seeds_and_of_bits_by_hand(monkeypatch):
    rows = {
        "runs.csv": [
            {"method": m, "seed": s, "round": r, "test_accuracy": a}
            for m, s, r, a in (
                ("A", "0", "9", "0.5"),
                ("A", "0", "10", "0.7"),
                ("A", "1", "10", "0.8"),
                ("B", "1", "10", "0.6"),
                ("B", "0", "10", "0.5"),
                ("B", "2", "10", "0.1"),  # without a partner
            )
        ],
        "bits.csv": [
            {"b": "4", "K": "1", "bits": "200", "rounds": "10", "half_width": "3"},
            {"b": "2", "K": "1", "bits": "100", "rounds": "20", "half_width": "8"},
        ],
    }
    monkeypatch.setattr(verdicts, "rows_of", rows.__getitem__)
    pair = {"file": "runs.csv", "other": "", "first": "method=A", "second": "method=B"}
    at = {"score": "test_accuracy", "where": "round=9-10"}
    found = verdicts.difference(pair | at)  # 60 and 80, less 50 and 60
    assert found == (pytest.approx(15), pytest.approx(12.706 * 5, rel=1e-4), 2)
    saved = {"score": "excess", "first": "seed=0; method=A", "where": "round=10"}
    rows["runs.csv"] = [
        row | {"excess": row["test_accuracy"]} for row in rows["runs.csv"]
    ]
    found = verdicts.difference(pair | saved)
    assert found[0] == pytest.approx(100 * (1 - 0.5 / 0.7)) and found[2] == 1
    bits = {"file": "bits.csv", "other": "", "score": "bits", "where": "K=1"}
    found = verdicts.difference(bits | {"first": "b=4", "second": "b=2"})
    assert found[:2] == pytest.approx((50, 25))  # half of 30 % and 40 %
    with pytest.raises(ValueError, match="has no row"):
        verdicts.difference(pair | at | {"second": "method=C"})


def test_what_to_use_is_said_with_numbers_of_these_pages():
    text = (ROOT / "docs/methods.md").read_text()
    advice = text.partition("## Which method")[2].partition("\n## ")[0]
    pages = [*lines_of("verdicts.md").values(), *lines_of("headline.md").values()]
    assert not unknown(advice, pages)


ONLY_CELLS = (  # claims that verdicts.md has, and the index leaves out
    "Haddadpour: SketchedSGD is very poor on unlike devices",
    "Haddadpour: more local steps hurt on unlike devices",
)


def test_the_index_has_the_words_of_each_claims_cells():
    words: dict[str, set[str]] = {}
    for line in (verdicts.RESULTS / "verdicts.md").read_text().splitlines():
        cells = line.strip("| ").split(" | ")
        if cells[-1] in ("Holds", "Fails", "Not told"):
            words.setdefault(cells[0], set()).add(cells[-1])
    claims = {claim for claim in words if not claim.startswith("Headline")}
    for claim in claims.difference(ONLY_CELLS):
        (row,) = [r for r in INDEX.splitlines() if r.startswith(f"| {claim} (")]
        shown = re.findall("Holds|Fails|Not told|Not tested", row.split(" | ")[1])
        assert {*shown} == words[claim], row
