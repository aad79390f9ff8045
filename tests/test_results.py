"""Pages of results: every number of theirs is in a file next to them.

Measured numbers stand in the csv and jsonl files that commands wrote. What was not
measured by them (a paper's numbers, settings, how long a command took) stands in
`quoted.csv`, with what it is; and, if it is made of others of these numbers, how. A
mean and its interval must come from one row.
"""

import csv
import functools
import json
import pathlib
import re

import numpy as np
import pytest

from fl_sketch.workdir.tables import half_width

pytestmark = pytest.mark.fast

ROOT = pathlib.Path(__file__).parents[1]
INDEX = ROOT / "results" / "README.md"
FOLDERS = sorted(path.parent for path in (ROOT / "results").glob("*/README.md"))
SCALES = (1, 100, 1e-3, 1e-6, 1e-9)  # as it is, percent, kilo, mega, giga
SMALL = 12  # whole numbers up to here are counted by the reader
CODE = re.compile(r"```.*?```|`[^`]*`|!?\[[^\]]*\]\([^)]*\)|https?://\S+", re.DOTALL)
NAMED = re.compile(  # by its number in a paper
    r"\b(?:Theorem|Corollar|Lemma|Propert|Assumption|Definition|Algorithm|Figure|Table|"
    r"section|chapter)\w*\s+\d+(?:\.\d+)?(?:(?:,| and| to)\s+\d+(?:\.\d+)?)*"
)
NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
TOKEN = re.compile(rf"(?<![\w./^-]){NUMBER}(?![\w/])")
PAIR = re.compile(rf"(?<![\w./^-])({NUMBER}) (?:±|\+-) ({NUMBER})(?![\w/])")
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)")


@functools.cache
def rows_of(folder):
    """Returns the numbers of each row of all files beside a page, or in its folders."""
    texts = []
    for path in sorted(folder.rglob("*.csv")):
        rows = csv.DictReader(path.read_text().splitlines())
        quoted = path.name == "quoted.csv"  # of which a row also says what it is
        texts += [
            r["number"] if quoted else "\n".join(map(str, r.values())) for r in rows
        ]
    for path in sorted(folder.rglob("*.jsonl")):
        lines = path.read_text().splitlines()
        values = lambda pairs: [*pairs.values()]  # noqa: E731 - keys have digits too
        texts += [str(json.loads(line, object_hook=values)) for line in lines]
    numbers = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
    return [[float(number) for number in numbers.findall(text)] for text in texts]


def matches(token, values):
    """Returns where a value has the digits of a page, for each of `SCALES`."""
    digits, _, power = token.replace(",", "").partition("e")
    unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    shown = abs(float(digits) * 10.0 ** int(power or 0))
    return np.abs(np.outer(SCALES, np.abs(values)) - shown) <= 0.5001 * unit


def unknown(text, rows):
    """Returns the numbers and pairs of a text that no row has."""
    text, missing = NAMED.sub(" ", CODE.sub(" ", text)), []
    values = np.array([value for row in rows for value in row])
    number = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    for pair in PAIR.findall(text):
        scales = zip(*(matches(token, values) for token in pair), strict=True)
        if not any({*number[mean]} & {*number[around]} for mean, around in scales):
            missing.append(" ± ".join(pair))
    for token in TOKEN.findall(PAIR.sub(" ", text)):
        token = token.rstrip(",")
        counted = token.isdigit() and int(token) <= SMALL
        if not counted and not matches(token, values).any():
            missing.append(token)
    return missing


@pytest.mark.parametrize("name", ["README.md", "details.md"])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_every_number_of_a_page_is_in_a_file_next_to_it(folder, name):
    assert not unknown((folder / name).read_text(), rows_of(folder))


def lines_of(name):
    """Returns the lines of a page of results/, with the numbers of each."""
    text = (ROOT / "results" / name).read_text().replace(",", "")
    return {
        line: [float(n) for n in re.findall(NUMBER, line)] for line in text.split("\n")
    }


@pytest.mark.parametrize("page", [INDEX, ROOT / "README.md"], ids=["index", "README"])
def test_every_number_of_the_tables_is_in_the_folders_that_they_name(page):
    """Or, of a claim, among the differences of its cells."""
    made = (ROOT / "results/headline.md").read_text().splitlines()
    for row in (row for t in TABLE.findall(page.read_text()) for row in t.splitlines()):
        names = re.findall(r"[(/](\w+)/README\.md\)", row)
        named = [folder for folder in FOLDERS if folder.name in names]
        if row not in made and (named or page == INDEX):
            claim = row.partition(" ([")[0]
            cells = lines_of("verdicts.md").items()
            apart = [numbers for line, numbers in cells if line.startswith(claim)]
            known = [numbers for folder in named for numbers in rows_of(folder)]
            assert not unknown(LINK.sub(r"\1", row), known + apart), row


def test_the_index_names_each_folder_and_its_sentences_have_measured_numbers():
    text = INDEX.read_text()
    assert {*re.findall(r"\((\w+)/README\.md\)", text)} == {f.name for f in FOLDERS}
    assert not unknown(TABLE.sub("", text), [*lines_of("verdicts.md").values()])


def difference(folder, text):
    """Returns the mean over seeds of sums of scores, and its interval's half-width.

    The text has a file, a column of it, and terms, separated by bars. A term is `+
    METHOD @ ROUND`, with a minus for what is subtracted, and `FIRST-LAST` for the mean
    over these rounds.
    """
    name, column, *terms = text.split(" | ")
    rows = [*csv.DictReader((folder / name).read_text().splitlines())]
    of_seeds = {}
    for term in terms:
        found = re.fullmatch(r"([+-]) (.+) @ (\d+)(?:-(\d+))?", term)
        sign, method, first, last = found.groups()
        scores = {}
        for row in rows:
            within = int(first) <= int(row["round"]) <= int(last or first)
            if within and row["method"] == method:
                scores.setdefault(row["seed"], []).append(float(row[column]))
        assert scores, term
        for seed, own in scores.items():
            of_seeds.setdefault(seed, []).append(float(f"{sign}1") * np.mean(own))
    sums = [sum(own) for own in of_seeds.values() if len(own) == len(terms)]
    return np.mean(sums), half_width(sums)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_what_is_made_of_other_numbers_is_made_of_them(folder):
    for row in csv.DictReader((folder / "quoted.csv").read_text().splitlines()):
        assert row["what"] and row["number"]
        if " | " in row["from"]:
            apart = difference(folder, row["from"])
            assert (apart[0] < 0) == row["number"].startswith("-"), row
            for token, value in zip(row["number"].split(" +- "), apart, strict=True):
                assert matches(token, [value]).any(), (row, value)
        elif row["from"]:
            assert re.fullmatch(r"[\d.+*/() -]+", row["from"])
            assert matches(row["number"], [eval(row["from"])])[0], row  # noqa: S307
            assert not unknown(row["from"].replace("100 *", ""), rows_of(folder)), row


def test_a_number_that_nobody_measured_is_found():
    rows = [[0.98123, 0.00341, 61706], [0.5, 0.00561], [0.00098]]
    text = "98.12 ± 0.34 of 61,706, 98.12 ± 0.56, 98.13, `77`, at most 12, 1e-3, 2e-3"
    assert unknown(text, rows) == ["98.12 ± 0.56", "98.13", "2e-3"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_commands_and_configs_of_a_page_exist(folder):
    block = re.search(
        r"```bash\n# .+?\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL
    )
    if block is None:
        assert "(commit `6188c80d`)" in (folder / "README.md").read_text()
        return
    for module in re.findall(r"python -m ([\w.]+)", block[1]):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists(), module
    for config in re.findall(r"--config=([\w/.]+)", block[1]):
        assert (ROOT / config).exists(), config
