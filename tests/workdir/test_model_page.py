"""The page of a release says what its guarantee needs, and towards whom it holds."""

import pytest

from fl_sketch.core.hashing import SHUFFLED_UP_TO
from fl_sketch.privacy.guarantee import rounded_up
from fl_sketch.workdir import model_page, odometer, release
from tests.run.configs import read_json
from tests.workdir.test_release import CLIENTS, plant

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return plant(tmp_path_factory.mktemp("one"), "ef21")


def test_a_shuffle_is_named_where_it_decides_what_the_accountant_takes_as_secret(one):
    own = odometer.read(one.folder)["run"]
    summary = read_json(one.folder / "summary.json")
    assert own.plan.sampling == "poisson" and own.plan.population <= SHUFFLED_UP_TO
    few, many = CLIENTS, SHUFFLED_UP_TO + 1
    for sampling, population, unit, named in (
        ("poisson", few, "client", False),
        ("fixed", many, "client", True),
        ("everyone", many, "client", False),
        ("fixed", few, "example", True),
        ("everyone", few, "example", False),
    ):
        plan = own.plan._replace(sampling=sampling, population=population)
        changed = own._replace(plan=plan, unit=unit)
        promise = release._promise(summary, {}, changed)
        said = [line for line in promise["not_protected"] if "shuffle" in line]
        assert len(said) == named, (sampling, population, unit)
        secret = model_page.HIDDEN[unit] in model_page._promised(promise)
        assert secret == (sampling != "everyone")
        for noise in ("central", "skellam"):
            text = model_page._how(promise | {"noise": noise})
            knows = noise != "central" and sampling != "everyone"
            assert ("towards who knows who took part" in text) == knows


@pytest.mark.parametrize("noise", ["skellam", "local"])
def test_the_page_says_who_adds_the_noise(one, noise):
    own = odometer.read(one.folder)["run"]
    summary = read_json(one.folder / "summary.json") | {"noise": noise}
    promise = release._promise(summary, {}, own) | {"sums": "masked network"}
    assert "client, which is a site with all its data," in model_page._facts(promise)
    who = "local: added by" if noise == "local" else "distributed: a share by"
    assert f"- Noise: {who} every client" in model_page._facts(promise)


@pytest.mark.parametrize(
    ("smallest", "words"),
    [
        (20, "It holds towards who knows no client's share, and so not towards a c"),
        (17, "Of the 20 clients of a round, 3 may have dropped out or shown"),
    ],
)
def test_the_page_says_towards_whom_shares_of_noise_protect(one, smallest, words):
    own = odometer.read(one.folder)["run"]
    summary = read_json(one.folder / "summary.json")
    assert summary["smallest_cohort"] == 0  # of central noise
    summary |= {"noise": "skellam", "smallest_cohort": smallest}
    promise = release._promise(summary, {}, own)
    assert (promise["cohort"], promise["smallest_cohort"]) == (20, smallest)
    assert words in model_page._how(promise)


def test_epsilon_without_a_secret_shuffle_is_that_of_everyone(one):
    own = odometer.read(one.folder)["run"]
    plan = own.plan._replace(sampling="fixed", relation="replace_one", population=64)
    fixed = own._replace(plan=plan, unit="example", accountant="rdp")
    promise = release._promise(read_json(one.folder / "summary.json"), {}, fixed)
    (said,) = (line for line in promise["not_protected"] if "shuffle" in line)
    everyone = plan._replace(sampling="everyone", sample=64)
    known = fixed._replace(plan=everyone, accountant="pld").spent()
    assert (
        said.endswith(f"epsilon is at most {rounded_up(known)}")
        and known > fixed.spent()
    )


def test_an_adaptive_bound_is_the_mean_of_the_rounds_of_the_last_row(one):
    own = odometer.read(one.folder)["run"]
    summary = read_json(one.folder / "summary.json")
    summary |= {"bound": "adaptive", "threshold": 0.8514}
    promise = release._promise(summary, {}, own)
    bound = "adaptive, 0.8514 on average in the rounds of the last row of metrics.csv"
    assert bound in model_page._how(promise)
    assert promise["released_beside"] == ["threshold"]
