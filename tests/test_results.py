"""Pages of results: their form, and every number of theirs in a file next to them.

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
FOLDERS = sorted(path.parent for path in (ROOT / "results").glob("*/README.md"))
SCALES = (1, 100, 1e-3, 1e-6, 1e-9)  # as it is, percent, kilo, mega, giga
QUOTED = "quoted.csv"
SMALL = 12  # whole numbers up to here are counted by the reader
CODE = re.compile(r"```.*?```|`[^`]*`|!?\[[^\]]*\]\([^)]*\)|https?://\S+", re.DOTALL)
NAMED = re.compile(  # by its number in a paper
    r"\b(?:Theorem|Corollar|Lemma|Propert|Assumption|Definition|Algorithm|Figure|Table|"
    r"section|chapter)\w*\s+\d+(?:\.\d+)?(?:(?:,| and| to)\s+\d+(?:\.\d+)?)*"
)
INDEX = ROOT / "results" / "README.md"
VERDICTS = ("Holds", "Partly", "Fails", "Not tested")
MEASURED = "Measured"  # a page without a claim
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)")
FIGURE = re.compile(r"!\[[^]]+\]\(([^)]+)\)")
QUOTATIONS = sorted(path for f in FOLDERS for path in f.glob(QUOTED))
NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
TOKEN = re.compile(rf"(?<![\w./^-]){NUMBER}(?![\w/])")
PAIR = re.compile(rf"(?<![\w./^-])({NUMBER}) (?:±|\+-) ({NUMBER})(?![\w/])")


def numbers(value):
    """Yields the numbers in what a file holds: in texts, lists and dictionaries."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, str):
        for found in re.findall(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", value):
            yield float(found)
    else:
        yield float(value)


@functools.cache
def rows_of(folder):
    """Returns the numbers of each row of all files beside a page, or in its folders."""
    rows = []
    for path in sorted(folder.rglob("*.csv")):
        with open(path, newline="") as file:
            if path.name == QUOTED:
                rows += [[*numbers(row["number"])] for row in csv.DictReader(file)]
                continue
            rows += [[*numbers(row)] for row in csv.DictReader(file)]
    for path in sorted(folder.rglob("*.jsonl")):
        lines = path.read_text().splitlines()
        rows += [[*numbers(json.loads(line))] for line in lines]
    return rows


def difference(folder, text):
    """Returns the mean over seeds of sums of scores, and its interval's half-width.

    Args:
      folder: that of a page.
      text: a file, a column of it, and terms, separated by bars. A term is
        `+ METHOD @ ROUND`, with a minus for what is subtracted, and `FIRST-LAST` for
        the mean over these rounds.
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


def matches(token, values):
    """Returns where a value has the digits of a page, for each of `SCALES`."""
    digits, _, power = token.replace(",", "").partition("e")
    unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    shown = abs(float(digits) * 10.0 ** int(power or 0))
    return np.abs(np.outer(SCALES, np.abs(values)) - shown) <= 0.5001 * unit


def is_counted(token):
    return re.fullmatch(r"\d+", token) and int(token) <= SMALL


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
        if not is_counted(token) and not matches(token, values).any():
            missing.append(token)
    return missing


@pytest.mark.parametrize("name", ["README.md", "details.md"])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_every_number_of_a_page_is_in_a_file_next_to_it(folder, name):
    assert not unknown((folder / name).read_text(), rows_of(folder))


def body(table):
    """Returns the rows of a table, without the two lines of its head."""
    return table.splitlines()[2:]


def folders_of(line):
    """Returns the folders of results whose pages a line links to."""
    names = re.findall(r"[(/](\w+)/README\.md\)", line)
    return [folder for folder in FOLDERS if folder.name in names]


@pytest.mark.parametrize("page", [INDEX, ROOT / "README.md"], ids=["index", "README"])
def test_every_number_of_the_tables_is_in_the_folders_that_they_name(page):
    rows = [row for table in TABLE.findall(page.read_text()) for row in body(table)]
    for row in rows:
        named = folders_of(row)
        if named or page == INDEX:  # what no folder has, has no number
            known = [numbers for folder in named for numbers in rows_of(folder)]
            assert not unknown(LINK.sub(r"\1", row), known), row
    if page == INDEX:
        assert {folder for row in rows for folder in folders_of(row)} == {*FOLDERS}


def words(text):
    """Returns the number of words of a page, tables included and code blocks not."""
    shown = LINK.sub(r"\1", BLOCK.sub(" ", text))
    return sum(bool(re.search(r"\w", word)) for word in shown.split())


def test_the_index_is_short_and_has_a_verdict_for_every_claim():
    text = INDEX.read_text()
    claims = body(TABLE.findall(text)[0])
    assert words(text) <= 900 and len(FIGURE.findall(text)) == 1
    for row in claims:
        _, _, verdict, number, grade, _ = map(str.strip, row.split("|"))
        assert verdict in VERDICTS
        assert verdict == "Not tested" or (folders_of(row) and number and grade)
    assert len(claims) == len({row.split("|")[1] for row in claims})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_page_is_read_in_a_minute(folder):
    """Question, verdict, figure, table, three sentences, command, details."""
    text = (folder / "README.md").read_text()
    title, verdict, *_ = filter(None, text.splitlines())
    assert words(text) <= 300
    assert re.fullmatch(r"# .+\? \(.+\)", title)
    found = re.match(r"\*\*(.+?)\.\*\* \w", verdict)
    assert found and found[1] in (*VERDICTS, MEASURED)
    (table,) = TABLE.findall(text)
    assert len(body(table)) <= 10
    assert re.findall(r"^(\d+)\. ", text, re.MULTILINE) == ["1", "2", "3"]
    assert text.count("\n```bash") == 1 or "The command is gone." in text
    assert "](details.md)" in text
    pictures = {*folder.rglob("*.png")}
    figures = [folder / name for name in FIGURE.findall(text)]
    assert len(figures) == bool(pictures) and {*figures} <= pictures


@pytest.mark.parametrize("path", QUOTATIONS, ids=lambda path: path.parent.name)
def test_what_is_made_of_other_numbers_is_made_of_them(path):
    rows = rows_of(path.parent)
    for row in csv.DictReader(path.read_text().splitlines()):
        assert row["what"] and row["number"]
        if " | " in row["from"]:
            apart = difference(path.parent, row["from"])
            assert (apart[0] < 0) == row["number"].startswith("-"), row
            for token, value in zip(row["number"].split(" +- "), apart, strict=True):
                assert matches(token, [value]).any(), (row, value)
        elif row["from"]:
            assert re.fullmatch(r"[\d.+*/() -]+", row["from"])
            assert matches(row["number"], [eval(row["from"])])[0], row  # noqa: S307
            assert not unknown(row["from"].replace("100 *", ""), rows), row


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("98.12 ± 0.34 of 61,706", []),
        ("0.981 and 0.3", []),
        ("98.12 ± 0.35", ["98.12 ± 0.35"]),
        ("98.12 ± 0.56", ["98.12 ± 0.56"]),  # of another row
        ("98.13, `77` and [77](77.md), at most 12", ["98.13"]),
        ("1e-3 and 2e-3", ["2e-3"]),
    ],
)
def test_a_number_that_nobody_measured_is_found(text, missing):
    rows = [[0.98123, 0.00341, 61706], [0.5, 0.00561], [0.00098]]
    assert unknown(text, rows) == missing
