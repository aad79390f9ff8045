"""What an owner allows: site.toml, and a budget that nothing lowers."""

import pytest

from fl_sketch.network import policy
from fl_sketch.network.policy import Budget, Refused, SitePolicy
from fl_sketch.privacy import accounting
from fl_sketch.privacy.guarantee import promised
from fl_sketch.workdir import odometer
from tests.refusals import refused

pytestmark = pytest.mark.fast
RUN, OTHER = "a" * 32, "b" * 32
PLAN = accounting.Plan(steps=50, sample=3, population=3, sampling="everyone")
GIVEN = promised(PLAN, rounds=50, noise_multiplier=3.0, delta=1e-5)


def test_a_site_toml_comes_back(tmp_path):
    path = tmp_path / "site.toml"
    name = 'a "quoted" \\ name é.npz'
    said = {"data": name, "epsilon_in_all": 4.0, "smallest_sum": 5}
    policy.write(path, said | {"noises": ["skellam"], "samplings": ["everyone"]})
    found = policy.read(path)
    assert found.data == tmp_path / name and found.folder == tmp_path / "state"
    assert found[3:] == (0.0, 4.0, 1e-5, 5, ("skellam",), ("everyone",))


def test_what_is_left_out_is_safe(tmp_path):
    (tmp_path / "site.toml").write_text('data = "mine.npz"')
    found = policy.read(tmp_path / "site.toml")
    assert (found.delta, found.smallest_sum) == (1e-5, 3)
    assert not found.private and found._replace(noises=("skellam",)).private


@pytest.mark.parametrize(
    "text",
    [
        "data = 1",
        "",
        'data = "a.npz"\nepsilon_in_al = 1.0',
        'data = "a.npz"\nepsilon_in_all = -1.0',
        'data = "a.npz"\nepsilon_in_all = nan',
        'data = "a.npz"\nepsilon_in_all = true',
        'data = "a.npz"\ndelta = "1e-5"',
        'data = "a.npz"\nsmallest_sum = 1',
        'data = "a.npz"\nsmallest_sum = 2.5',
        'data = "a.npz"\nnoises = ["loud"]',
        'data = "a',
    ],
)
def test_a_wrong_site_toml_is_refused(text, tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(text)
    with refused(path):
        policy.read(path)


class Owner:
    """A site's owner and its runs."""

    def __init__(self, folder, **limits):
        self.policy = SitePolicy(folder / "data.npz", folder, **limits)

    def budget(self, run=RUN, guarantee=GIVEN):
        folder = self.policy.folder / "runs" / run
        return Budget(self.policy, run, folder, guarantee)

    def rounds(self, run=RUN):
        return odometer.read(self.policy.folder)[run].plan.steps


def test_rounds_count_once_and_repeated_ones_again(tmp_path):
    owner = Owner(tmp_path)
    one = owner.budget()
    assert one.charge(0, 0) and one.charge(0, 1) and owner.rounds() == 1
    assert one.charge(4, 0) and owner.rounds() == 5  # also those without the site
    assert not one.charge(4, 0) and owner.rounds() == 6
    assert not owner.budget().charge(2, 0) and owner.rounds() == 7
    assert not one.charge(4, 0) and owner.rounds() == 8  # of two processes
    assert one.charge(5, 0) and owner.rounds() == 9


def test_a_count_whose_file_was_lost_goes_on(tmp_path):
    owner = Owner(tmp_path)
    owner.budget().charge(9, 0)
    (tmp_path / "runs" / RUN / policy.BUDGET).unlink()
    owner.budget().charge(0, 0)
    assert owner.rounds() == 11


def test_a_damaged_count_is_refused(tmp_path):
    owner = Owner(tmp_path)
    owner.budget().charge(0, 0)
    path = tmp_path / "runs" / RUN / policy.BUDGET
    path.write_text(path.read_text()[:-5])
    with refused(path):
        owner.budget()


def test_a_run_that_comes_back_with_another_promise_is_refused(tmp_path):
    owner = Owner(tmp_path)
    owner.budget().charge(0, 0)
    other = promised(PLAN, rounds=50, noise_multiplier=30.0, delta=1e-5)
    for lost in (False, True):  # with its folder
        if lost:
            (tmp_path / "runs" / RUN / policy.BUDGET).unlink()
        for guarantee in (other, None):
            with pytest.raises(Refused, match="began"):
                owner.budget(guarantee=guarantee)
        assert owner.rounds() == 1
    owner.budget()


def test_a_limit_needs_noise_and_a_small_delta(tmp_path):
    owner = Owner(tmp_path, epsilon_in_all=5.0)
    with pytest.raises(Refused, match="noise"):
        owner.budget(guarantee=None)
    with pytest.raises(Refused, match="noise"):
        owner.budget(guarantee=GIVEN._replace(noise_multiplier=0.0))
    with pytest.raises(Refused, match="delta"):
        owner.budget(guarantee=GIVEN._replace(delta=1e-3))
    owner = Owner(tmp_path, noises=("skellam",))
    with pytest.raises(Refused, match="noise"):
        owner.budget(guarantee=None)


def answered(budget, rounds):
    """Returns how many rounds a budget allows."""
    for number in range(rounds):
        try:
            budget.charge(number, 0)
        except Refused as error:
            assert "limits" in str(error)
            return number
    return rounds


def test_a_run_stops_at_the_limit_of_a_run(tmp_path):
    owner = Owner(tmp_path, epsilon_in_a_run=GIVEN.epsilon(7))
    assert answered(owner.budget(), 20) == 7 == owner.rounds()
    assert answered(owner.budget(OTHER), 20) == 7


def test_all_runs_together_stop_at_the_limit_of_all(tmp_path):
    """Of two at once each would be allowed what is left for both."""
    limit = GIVEN.epsilon(7)
    owner = Owner(tmp_path, epsilon_in_all=limit)
    budgets, counts = [owner.budget(RUN), owner.budget(OTHER)], [0, 0]
    for number in range(8):
        for place, one in enumerate(budgets):
            try:
                one.charge(number, 0)
                counts[place] += 1
            except Refused:
                pass
    assert sum(counts) == 7
    assert odometer.total(odometer.read(tmp_path)).epsilon <= limit
