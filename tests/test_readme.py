"""The README fits on a page, and what it says stands elsewhere too."""

import re

import pytest

from fl_sketch.algorithms import catalog
from fl_sketch.run import prepare, task
from tests.launching import ROOT
from tests.pages import PAGES
from tests.run.configs import config_with

README = PAGES["README.md"]


def test_it_is_a_page():
    lines = README.splitlines()
    assert len(lines) <= 150
    for line in lines:
        assert len(line) <= 120, line


def test_its_results_stand_in_the_page_of_results():
    page = (ROOT / "results/README.md").read_text()
    section = README.split("## Results\n")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if "|" in line]
    numbers = {number for row in rows for number in re.findall(r"\d+\.\d+", row)}
    assert len(numbers) > 4
    for number in numbers:
        assert number in page, number


def test_its_table_has_every_method_with_its_file():
    rows = re.findall(r"^\| \[(.*?)\]\((.*?)\)", README, flags=re.MULTILINE)
    files = {
        name: file for names, file in rows for name in re.findall(r"`(\w+)`", names)
    }
    assert set(files) == set(catalog.methods())
    for name, file in files.items():
        assert f"def {name}(" in (ROOT / file).read_text(), name


@pytest.mark.slow
def test_the_full_table_is_what_the_code_does():
    page = PAGES["docs/methods.md"]
    table = page.split("| `config.algorithm` |")[1].split("\n\n")[0]
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines()]
    exchanges, states = {}, {}
    for names, _, _, count, kept in rows[2:]:
        for name in re.findall(r"`(\w+)`", names):
            exchanges[name] = exchanges.get(name, set()) | set(re.findall(r"\d", count))
            states[name] = kept
    assert set(exchanges) == set(catalog.methods())
    for name, allowed in exchanges.items():
        config = config_with(algorithm=name, sketch__rows=3, sketch__compression=5.0)
        config.compressor.name = "random_k" if name == "marina" else "top_k"
        if name == "private_sketching":
            config.privacy.unit = "example"
            config.client.batches = "subsets"
        facts = task.facts_of(prepare(config))
        assert str(facts["exchanges"]) in allowed, name
        kept = {"": 0, "d": 1}.get(states[name], 1 if name == "ef_sign_sgd" else 0)
        assert bool(facts["client_state_bytes"]) == bool(kept), name
