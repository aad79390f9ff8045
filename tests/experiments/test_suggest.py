"""Rates to start with are those of files of results."""

import pathlib

import pytest

from configs import default
from fl_sketch import algorithms, sketch
from fl_sketch.algorithms import catalog
from fl_sketch.experiments import suggest
from fl_sketch.sweep.comparison import Comparison, Method
from launch import reproductions

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs/methods.md"
STANDINGS = """method,accuracy,simulator_only_bytes_up,rounds,chosen
FedAdam,0.9,4000,10,server.rate=0.003
short,0.8,40,10,client.rate=0.2 server.rate=0.03
"short, by SGD",0.7,400,10,server.rate=3
not tuned,0.6,40,10,
of another comparison,0.6,40,10,server.rate=7
"""


@pytest.fixture
def found(tmp_path):
    place = tmp_path / "one" / "inner"
    place.mkdir(parents=True)
    (place / "standings.csv").write_text(STANDINGS)
    base = default.get_config()
    methods = {
        "FedAdam": Method({"algorithm": "fedadam"}),
        "short": Method({"algorithm": "safl"}),
        "short, by SGD": Method({"algorithm": "safl", "server.optimizer": "sgd"}),
        "not tuned": Method({"algorithm": "safl"}),
    }
    compared = Comparison(base, methods)
    return suggest.tuned_in(place, compared, results=tmp_path)


def config_of(algorithm, optimizer="adam"):
    config = default.get_config()
    config.algorithm, config.server.optimizer = algorithm, optimizer
    return config


def test_rows_have_what_was_chosen_and_what_a_config_says(found):
    dense, short, other = found
    assert dense.method == "fedopt, adam" and short.method == "safl, adam"
    assert [one.shorter for one in found] == [1, 100, 10]
    assert short.chosen == {"client.rate": 0.2, "server.rate": 0.03}
    assert not short.fixed and {*other.fixed} == {"client.rate"}
    assert short.source == "one/inner"


@pytest.mark.parametrize(
    ("keys", "shorter"),
    [
        ({"sketch.compression": 50.0}, [50, 500]),
        ({"sketch.operator": "identity"}, [1, 10]),
        ({"sketch.numbers": 100}, []),  # of a model of unknown size
        ({"algorithm": "marina"}, []),
    ],
)
def test_messages_are_as_many_times_shorter_than_the_model(keys, shorter, tmp_path):
    rows = ["long,0.9,4000,10,server.rate=1", "short,0.9,400,10,server.rate=1"]
    text = "\n".join(["method,accuracy,bytes_up,rounds,chosen", *rows])
    (tmp_path / "standings.csv").write_text(text + "\n")
    methods = {"long": Method(keys), "short": Method({"sketch.numbers": 7})}
    compared = Comparison(default.get_config(), methods)
    found = suggest.tuned_in(tmp_path, compared, results=tmp_path)
    assert [one.shorter for one in found] == shorter


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        ({"algorithm": "fedadam"}, [("fedopt, adam, lora", 1)]),
        ({"algorithm": "safl"}, [("safl, adam, lora", 10)]),
        ({"algorithm": "safl", "sketch.numbers": 7}, []),
    ],
)
def test_messages_of_a_part_are_compared_with_the_part(keys, rows, tmp_path):
    text = "long,0.9,4000,10,server.rate=1\npart,0.9,4,10,server.rate=1\n"
    (tmp_path / "standings.csv").write_text(
        "method,accuracy,bytes_up,rounds,chosen\n" + text
    )
    part = {"client.trains": "lora(rank=2, on=dense1)", "sketch.compression": 10.0}
    methods = {"long": Method({"algorithm": "fedadam"}), "part": Method(part | keys)}
    compared = Comparison(default.get_config(), methods)
    _, *found = suggest.tuned_in(tmp_path, compared, results=tmp_path)
    assert [(one.method, one.shorter) for one in found] == rows


def test_a_config_gets_those_of_its_method_the_nearest_first(found):
    head, *lines = suggest.lines(config_of("safl"), 50.0, found)
    assert "safl, adam" in head and len(lines) == 1
    assert "server.rate=0.03" in lines[0] and "one/inner/standings.csv" in lines[0]
    assert "server.rate=3" in suggest.lines(config_of("safl", "sgd"), 50.0, found)[1]
    assert len(suggest.lines(config_of("safl"), 50.0, 20 * found)) == 1 + 20
    _, first, second = suggest.lines(config_of("safl", "yogi"), 12.0, found)
    assert " 10 times" in first and " 100 times" in second


def test_a_method_without_any_is_said_to_have_none(found):
    (line,) = suggest.lines(config_of("qsgd"), 10.0, found)
    assert "nothing was measured for qsgd at 10 times" in line
    nearest = "the nearest method is fedopt, adam at 1 times: server.rate=0.003"
    assert nearest in line and "results/one/inner/standings.csv" in line
    for ratio, near in ((10, "safl, sgd at 10"), (90, "safl, adam at 100")):
        (line,) = suggest.lines(config_of("iterative_sketching"), ratio, found)
        assert f"nearest method is {near} times" in line
    for server, near in (("sgd", "safl, sgd at 10"), ("adam", "fedopt, adam at 1")):
        (line,) = suggest.lines(config_of(f"{__file__}:own", server), 30.0, found)
        assert f"nearest method is {near} times" in line


def own(loss, *, server):
    """Returns an algorithm of which no rates are known."""
    return algorithms.safl(
        loss, sketch=sketch.identity(), client_rate=0.1, server=server
    )


@pytest.mark.slow
def test_the_page_has_all_that_was_tuned_and_names_the_rest():
    """The table of the page is that of the files: paste what is printed."""
    found = [
        one
        for folder, compared in reproductions.compared()
        for one in suggest.tuned_in(folder, compared, results=reproductions.RESULTS)
    ]
    table, page = "\n".join(suggest.table(found)), PAGE.read_text()
    print(table)
    assert table in page
    tuned = {one.method.partition(",")[0] for one in found}
    named = {*page.rpartition("\n\n")[2].split("`")[1::2]}  # in the last paragraph
    assert named & {*catalog.methods()} == {*catalog.methods()} - tuned
