"""A config with sites is the run of launch.train, in a folder like its folder."""

import json

import numpy as np
import pytest

from fl_sketch.network import job, messages, policy
from fl_sketch.network.messages import Kind, Message
from fl_sketch.network.policy import Refused
from fl_sketch.run import run
from fl_sketch.workdir import odometer
from tests import pretrained
from tests.network.sites import INTEGERS, Hospitals, five, furthest
from tests.refusals import refused
from tests.run.configs import config_with, quiet, table_in

SEED = {"privacy__randomness": "seed"}
SHAPES = {
    "epochs": {"client__epochs": 2},
    "scaffold": {"algorithm": "scaffold"},
    "masks": INTEGERS | SEED,
    "central": INTEGERS | SEED | {
        "privacy__noise": "central",
        "privacy__smallest_cohort": 0,
        "algorithm": "scaffold",
    },
}  # fmt: skip
PRIVATE = {"masks", "central"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_a_run_with_sites_is_that_of_one_program(name, tmp_path):
    """It is stopped twice, and a site is killed in a round; private ones to the bit."""
    hospitals = Hospitals(tmp_path, five(**SHAPES[name]))
    begun = []

    def stop():
        begun.append(1)
        if len(begun) in (3, 6):
            raise KeyboardInterrupt

    def kill_after_a_message(client, answer):
        read = messages.read(answer, 2**20)
        kinds = Kind.MESSAGE, Kind.SEED if name in PRIVATE else Kind.MESSAGE
        if read.kind == kinds[1] and client == 2 and read.round == 4:
            hospitals.start(2)
        return answer

    hospitals.change = kill_after_a_message
    summary = None
    while summary is None:
        try:
            summary = hospitals.run(tmp_path / "network", stop)
        except KeyboardInterrupt:
            continue
    expected = run(hospitals.config, str(tmp_path / "train"), say=quiet)
    most = 0 if name in PRIVATE else 1e-6
    assert furthest(tmp_path / "network", tmp_path / "train") <= most
    for key in ("bytes_up_total", "bytes_down_total", "rounds", "epsilon"):
        assert summary[key] == expected[key]
    for ours, theirs in zip(
        *(table_in(tmp_path / one) for one in ("network", "train")), strict=True
    ):
        assert float(ours["test_loss"]) == pytest.approx(
            float(theirs["test_loss"]), abs=1e-5
        )
    if name in PRIVATE:
        assert len({*odometer.read(hospitals.kit(0) / "state")}) == 1


@pytest.mark.slow
def test_a_site_at_its_limit_leaves_the_run_to_the_others(tmp_path):
    config = five(**INTEGERS | {"privacy__noise_multiplier": 3.0})
    hospitals = Hospitals(tmp_path, config)
    setup = job.of_coordinator(config, hospitals.splits)
    limit = setup.experiment.guarantee.epsilon(4)
    hospitals.start(0, epsilon_in_a_run=limit, noises=["skellam"])
    hospitals.run(tmp_path / "network")
    shown = [line for line in hospitals.lines if line.startswith("hospital_")]
    assert len(shown) == 1 and "own limits" in shown[0], shown
    rows = table_in(tmp_path / "network", "simulator.csv")
    assert int(rows[-1]["answered"]) == 4 * 5 + 2 * 4
    path = tmp_path / "network/simulator/clients.csv"
    everyone = np.loadtxt(path, delimiter=",", skiprows=1)
    assert everyone[:, 1].tolist() == [6] * 5  # it was asked, and said no
    assert everyone[:, 2].tolist() == [4, 6, 6, 6, 6]


class Asked:
    """The terms of a run, as a site of one hospital reads them."""

    def __init__(self, folder, **changes):
        config = five(**changes)
        self.hospitals = Hospitals(folder, config)
        setup = job.of_coordinator(config, self.hospitals.splits)
        self.terms = job.terms_of(setup, self.hospitals.names)
        self.kit = self.hospitals.kit(0)

    def join(self, site=0, run="a" * 32, allows=None, **changes):
        allowed = policy.read(self.kit / policy.FILE)._replace(**allows or {})
        message = self.message(site, run, **changes)
        return job.join(allowed, message, self.kit)

    def message(self, site=0, run="a" * 32, said=None, **changes):
        terms = json.loads(self.terms["terms"]) | (said or {})
        for key, value in changes.items():
            *groups, name = key.split("__")
            place = terms["config"]
            for group in groups:
                place = place[group]
            place[name] = value
        return Message(Kind.TERMS, run, 0, 0, site, {"terms": json.dumps(terms)})


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    noisy = INTEGERS | {"privacy__noise_multiplier": 3.0}
    return Asked(tmp_path_factory.mktemp("asked"), **noisy)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"site": 1}, "this site"),
        ({"run": ""}, "this site"),
        ({"site": 7}, "this site"),
        ({"data__clients": 4}, "one for each client"),
        ({"algorithm": "mine.py:method"}, "no file"),
        ({"cohort__sampling": "fixed", "cohort__size": 3}, "everyone"),
        ({"privacy__noise": "central"}, "skellam"),
        ({"privacy__noise": "none"}, "privacy.noise"),
        ({"privacy__unit": "example"}, "privacy.unit"),
        ({"privacy__randomness": "seed"}, "randomness=system"),
    ],
)
def test_a_site_refuses_what_its_owner_does_not_allow(changes, what, asked):
    limits = {"epsilon_in_all": 9.0, "noises": ("skellam",), "samplings": ("everyone",)}
    before = sorted((asked.kit / "state").rglob("*"))
    with pytest.raises(Refused, match=what):
        asked.join(allows=limits, **changes)
    assert sorted((asked.kit / "state").rglob("*")) == before


def test_a_site_says_nothing_of_its_data(asked):
    """Reasons that depend on them stay in its own log, or name no number."""
    site = asked.hospitals.sites[0]
    for said in ({"classes": 5}, {"shapes": [["float32", 8, 8, 3], ["int32"]]}):
        message = messages.pack(asked.message(said=said))
        reason = messages.read(site.receive(message), 0).notes["reason"]
        assert "got others" in reason
        assert str(asked.kit) not in reason and "10" not in reason
    path = asked.kit / job.DATA
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    message = messages.pack(asked.message())
    reason = messages.read(site.receive(message), 0).notes["reason"]
    path.write_bytes(whole)
    assert reason.endswith("the reason is in the site's own log")


def test_a_site_has_so_many_runs(asked, monkeypatch):
    monkeypatch.setattr(job, "MOST_RUNS", 3)
    for number in range(3):
        asked.join(run=f"{number:032x}").budget.charge(0, 0)
    with pytest.raises(Refused, match="at most 3 runs"):
        asked.join(run="f" * 32)
    asked.join(run=f"{1:032x}")


IMPOSSIBLE = {
    "client__batch": 0,
    "data__held_out": 0.1,
    "cohort__weighting": "examples",
    "privacy__unit": "example",
    "data__standardise": "train",
}


@pytest.mark.parametrize("key", IMPOSSIBLE)
def test_a_config_that_sites_cannot_run_is_refused(key):
    with refused(key.partition("__")[2]):
        job.require_possible(config_with(**{key: IMPOSSIBLE[key]}))


@pytest.mark.slow
def test_sites_fine_tune_a_part_of_their_own_copies_of_a_model(tmp_path):
    """One of them has other weights, and another has none."""
    words = np.random.default_rng(0).choice(pretrained.WORDS[4:], (80, 4))
    arrays = {"inputs": [" ".join(row) for row in words], "targets": np.arange(80) % 2}
    parts = {"train": slice(60), "test": slice(60, None)}
    np.savez(
        tmp_path / "texts.npz",
        **{f"{p}_{n}": a[rows] for p, rows in parts.items() for n, a in arrays.items()},
    )
    _, weights = pretrained.bert(tmp_path / "bert", num_hidden_layers=1)
    config = five(
        data__clients=3,
        data__partition="iid",
        data__name="npz/texts",
        data__length=6,
        client__batch=4,
        client__steps=2,
        client__trains="lora(rank=2, on=query|value)+head",
        sketch__compression=2.0,
        rounds=2,
        eval_every=2,
        model__name=f"hf/{tmp_path / 'bert'}",
    )
    hospitals = Hospitals(tmp_path, config, data_dir=str(tmp_path))
    hospitals.run(tmp_path / "network")
    assert not [line for line in hospitals.lines if "hospital" in line]
    run(config, str(tmp_path / "train"), data_dir=str(tmp_path), say=quiet)
    assert furthest(tmp_path / "network", tmp_path / "train") <= 1e-5
    model, _ = pretrained.bert(tmp_path / "one", num_hidden_layers=1)
    other = {name: 2 * array for name, array in weights.items()}
    pretrained.write(tmp_path / "other", model, other, pretrained.tokenizer())
    hospitals.start(1, model=str(tmp_path / "other"))
    hospitals.start(2, smallest_sum=3)
    hospitals.run(tmp_path / "again")
    assert any("hospital_1" in x and "frozen arrays" in x for x in hospitals.lines)
    assert any("hospital_2" in x and "site.toml" in x for x in hospitals.lines)
