"""Every block, command and link of the README and of the documentation works."""

import os
import re
from importlib.util import find_spec

import pytest

from fl_sketch.algorithms import catalog
from fl_sketch.run import prepare
from fl_sketch.run.facts import facts_of
from tests import pages
from tests.launch import test_audit
from tests.launching import ROOT
from tests.run.configs import config_with

BLOCKS = {
    f"{page}, {number}": block
    for page in pages.PAGES
    for number, block in enumerate(pages.blocks("python", page))
}
STRICT = (  # a warning is an error, but for two programs that are written at once
    "import warnings; warnings.simplefilter('error'); "
    "warnings.filterwarnings('ignore', 'Error .* persistent compilation cache')\n"
)
COMMANDS = {
    " ".join(words): words for page in pages.PAGES for words in pages.commands(page)
}
PREPARED = """
from fl_sketch.run import prepare
from launch import command, train
train.run = lambda config, _, data_dir, **__: prepare(config, data_dir)
command.run(train.main)
"""
CUT = {  # what makes a command short
    "launch.train": ["--config.rounds=2"],
    "launch.sweep": ["--config.rounds=2", "--config.model.name=logistic"],
    "launch.spectrum": ["--examples=100", "--probes=2", "--steps=5"],
    "launch.compare": [
        "--only=iid tau=1 FedAvg",
        "--set=rounds=2",
        "--set=cohort.size=1",
        "--set=model.name=logistic",
    ],
    "launch.network --config": ["--config.rounds=2"],
    "launch.attack": ["--images=1", "--steps=3", "--config.model.name=logistic"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_run_as_they_stand(name):
    """Those of the README as a newcomer would paste them, with nothing else there."""
    if "README" in name:
        pages.run("-c", BLOCKS[name], XLA_FLAGS="")
    else:
        pages.run("-c", STRICT + BLOCKS[name])


def test_every_command_is_a_verb_of_make_or_a_launch():
    text = (ROOT / "Makefile").read_text()
    verbs = re.findall(r"^([\w-]+):.*##", text, re.MULTILINE)
    for first, *words in COMMANDS.values():
        if first == "make":
            assert words[0] in verbs
        else:
            assert (first, words[0]) == ("python", "-m"), words
            folder, _, name = words[1].partition(".")
            assert folder in ("launch", "experiments", "benchmarks"), words
            assert (ROOT / folder / f"{name or '__main__'}.py").exists(), words


@pytest.mark.slow
def test_every_command_runs_as_it_stands(tmp_path):
    """But what no other command reads is prepared as launch.train does it, not run."""
    for line, words in COMMANDS.items():
        lacks = "DATA" in line and not os.environ.get("FL_SKETCH_DATA")
        lacks |= "launch.network" in line and not find_spec("nvflare")
        if words[0] == "make" or lacks or words == test_audit.COMMAND:
            continue
        more = next((cut for part, cut in CUT.items() if part in line), [])
        more = [] if "/tmp/longer" in line else more  # lengths are what it shows
        start, *flags = pages.placed(words, tmp_path)
        folder = re.search(r"=(/tmp/\w+)", line)
        if flags[0] == "launch.train" and " ".join(COMMANDS).count(folder[1]) == 1:
            start, flags[0] = "-c", PREPARED
        pages.run(start, *flags, *more)


@pytest.mark.parametrize("page", [*pages.PAGES, *pages.RESULTS])
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target, anchor in re.findall(
        r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", path.read_text()
    ):
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            names = [re.sub(r"[^\w -]", "", head).lower() for head in heads]
            assert anchor in [name.replace(" ", "-") for name in names], anchor
        if page.startswith("docs/") and target.endswith(".md"):
            inside = (ROOT / "docs", ROOT / "results")
            assert any(file.is_relative_to(folder) for folder in inside), target


def test_the_table_of_the_readme_has_every_method_with_its_file():
    rows = re.findall(
        r"^\| \[(.*?)\]\((.*?)\)", pages.PAGES["README.md"], flags=re.MULTILINE
    )
    files = {
        name: file for names, file in rows for name in re.findall(r"`(\w+)`", names)
    }
    assert set(files) == set(catalog.methods())
    for name, file in files.items():
        make = catalog.method(name).make
        maker = getattr(make, "func", make).__name__
        assert f"def {maker}(" in (ROOT / file).read_text(), name


@pytest.mark.slow
def test_the_full_table_is_what_the_code_does():
    page = pages.PAGES["docs/methods.md"]
    table = page.split("| `config.algorithm` |")[1].split("\n\n")[0]
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines()]
    exchanges, states = {}, {}
    for names, work, _, count, kept in rows[2:]:
        for name in re.findall(r"`(\w+)`", names):
            exchanges[name] = exchanges.get(name, set()) | set(re.findall(r"\d", count))
            states[name] = kept
            whole = catalog.method(name).one_batch
            assert work == ("one gradient" if whole else "K steps"), name
    assert set(exchanges) == set(catalog.methods())
    for name, allowed in exchanges.items():
        config = config_with(algorithm=name, sketch__rows=3, sketch__compression=5.0)
        config.compressor.name = "random_k" if name == "marina" else "top_k"
        if name == "private_sketching":
            config.privacy.unit = "example"
            config.client.batches = "subsets"
        facts = facts_of(prepare(config))
        assert str(facts["exchanges"]) in allowed, name
        assert bool(facts["client_state_bytes"]) == (states[name] == "d"), name
