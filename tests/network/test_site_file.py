"""site.toml: what a site's owner allows, and what runs that ask for more get."""

import numpy as np
import pytest

from fl_sketch.network import frames, job, kits, site_file
from fl_sketch.network.frames import Kind
from fl_sketch.network.refused import Refused
from fl_sketch.run import run
from fl_sketch.workdir import odometer, secrets
from tests.network.sites import Hospitals, five, furthest, weights_in
from tests.run.configs import quiet, table_in

CENTRAL = {
    "model__name": "logistic",
    "privacy__bound": "clip",
    "privacy__noise_multiplier": 1.0,
    "data__classes": 10,
}
DISTRIBUTED = CENTRAL | {
    "privacy__noise": "distributed",
    "privacy__relation": "replace_one",
}


def column_of(rows, name):
    return [row[name] for row in rows]


def written(tmp_path, text):
    file = tmp_path / site_file.FILE
    file.write_text(text)
    return file


@pytest.mark.fast
@pytest.mark.parametrize(
    "text, said",
    [
        ("", "Expected data, the npz file of the site"),
        ("data = 3", "Expected data in .* to be a path, got 3"),
        ('data = "a.npz"\nepsilon_in_al = 1', "got epsilon_in_al.*epsilon_in_all"),
        ('data = "a.npz"\nepsilon_in_all = "4"', "epsilon_in_all .* a number >= 0"),
        ('data = "a.npz"\ndelta = -1', "delta .* a number >= 0, got -1"),
        ('data = "a.npz"\nsmallest_sum = 1', "smallest_sum .* a whole number >= 2"),
        ('data = "a.npz"\nalgorithms = "safl"', "algorithms .* a list of strings"),
        (
            'data = "a.npz"\nsamplings = ["all"]',
            "samplings.* 'everyone', .*got .*'all'",
        ),
        ('data = "a.npz"\ntells = ["sizes"]', "'size', 'measured', got .*'sizes'"),
        ('data = "a.npz"\n[files]\na = 1', "files .* a table of FILE.py:NAME"),
        ("data = ", "to be a TOML file"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(text, said, tmp_path):
    with pytest.raises(ValueError, match=said) as found:
        site_file.read(written(tmp_path, text))
    assert "\n" not in str(found.value)


@pytest.mark.fast
def test_the_file_of_a_new_kit_limits_nothing(tmp_path):
    lent = site_file.read(written(tmp_path, kits.SAMPLE))
    default = site_file.read(written(tmp_path, 'data = "data.npz"'))
    assert lent == default._replace(delta=lent.delta)
    assert not lent.capped


@pytest.mark.parametrize("classes", [0, 3])
def test_a_site_says_only_that_its_labels_do_not_fit(classes, tmp_path):
    config = five(**CENTRAL)
    hospitals = Hospitals(tmp_path, config)
    setup = job.of_coordinator(config, hospitals.splits)
    terms = {**job.terms_of(setup, "a" * 32), "client": 0, "classes": classes}
    with pytest.raises(Refused, match="of the run's . classes, got others") as found:
        job.join(hospitals.lent(0), terms)
    assert "10" not in str(found.value)


def test_a_limited_site_does_not_tell_whether_its_data_are_finite(tmp_path):
    hospitals = Hospitals(tmp_path, config := five())
    lent = hospitals.lent(0)
    with np.load(lent.data) as found:
        arrays = dict(found)
    arrays["train_inputs"] = np.full_like(arrays["train_inputs"], np.nan, np.float32)
    np.savez(lent.data, **arrays)
    setup = job.of_coordinator(config, hospitals.splits)
    terms = {**job.terms_of(setup, "a" * 32), "client": 0}
    terms["inputs"][0] = "float32"
    with pytest.raises(ValueError, match="finite"):
        job.join(lent, terms)
    with pytest.raises(Refused, match="Expected a run with noise"):
        job.join(lent._replace(epsilon_in_all=1.0), terms)


def only_one(tmp_path, config, **lends):
    """Returns hospitals of which the last one lends its data under conditions."""
    hospitals = Hospitals(tmp_path, config)
    place = hospitals.lent(4).data.parent / site_file.FILE
    site_file.write(place, {"data": hospitals.lent(4).data.name, **lends})
    hospitals.start(4)
    return hospitals


@pytest.mark.slow
@pytest.mark.parametrize(
    "lends, said",
    [
        ({"algorithms": ["scaffold"]}, "Expected algorithm to be one of scaffold"),
        ({"versions": ["0.0.1"]}, "Expected fl_sketch of 0.0.1"),
        ({"epsilon_in_all": 2.0}, "Expected a run with noise"),
        ({"noises": ["central"]}, "Expected a run with noise"),
        ({"noises": ["skellam"]}, "Expected privacy.noise=skellam, got central"),
        ({"samplings": ["fixed"]}, "Expected cohort.sampling=fixed, got everyone"),
    ],
)
def test_a_site_refuses_runs_that_its_owner_does_not_allow(lends, said, tmp_path):
    hospitals = only_one(tmp_path, five(rounds=2, eval_every=1), **lends)
    hospitals.run(tmp_path / "run")
    assert any(f"site 4: refuses round 1: {said}" in one for one in hospitals.lines)
    assert column_of(table_in(tmp_path / "run"), "answered") == ["4", "8"]


@pytest.mark.slow
def test_a_site_stops_before_its_limit_on_epsilon(tmp_path):
    """The limit is what three of the six rounds spend; the next run gets none."""
    config = five(**CENTRAL)
    spent = float(column_of(run_of(tmp_path / "all", config), "epsilon")[0])
    limit = 1.001 * spent
    hospitals = only_one(tmp_path, config, epsilon_in_all=limit, delta=1e-5)
    hospitals.run(tmp_path / "run")
    assert column_of(table_in(tmp_path / "run"), "answered") == ["15", "27"]
    assert any("by the site's own limits" in one for one in hospitals.lines)
    total = odometer.total(odometer.read(hospitals.lent(4).folder))
    assert total and spent == pytest.approx(total.epsilon, rel=1e-3)
    hospitals.start(4)
    hospitals.run(tmp_path / "next")
    assert column_of(table_in(tmp_path / "next"), "answered") == ["12", "24"]


def run_of(folder, config):
    """Returns the rows of a config's run in one program."""
    run(config, str(folder), say=quiet)
    return table_in(folder)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [CENTRAL, DISTRIBUTED], ids=["central", "distributed"])
def test_a_private_run_of_simulated_secrets_is_that_of_one_program(keys, tmp_path):
    config = five(**keys, privacy__randomness="seed")
    hospitals = Hospitals(tmp_path, config)
    hospitals.run(tmp_path / "network")
    rows = run_of(tmp_path / "train", config)
    models = weights_in(tmp_path / "network"), weights_in(tmp_path / "train")
    assert not hospitals.lines and furthest(*models) <= 1e-6
    epsilons = column_of(rows, "epsilon")
    assert column_of(table_in(tmp_path / "network"), "epsilon") == epsilons
    for client in range(5):
        spent = odometer.total(odometer.read(hospitals.lent(client).folder))
        assert spent and spent.epsilon == pytest.approx(float(epsilons[-1]), rel=1e-3)


@pytest.mark.slow
def test_every_site_has_a_secret_of_its_own_and_tells_nothing(tmp_path):
    hospitals, sent = Hospitals(tmp_path, five(**DISTRIBUTED)), []
    hospitals.change = lambda client, up: sent.append(up) or up
    kept = set()

    def note(row):
        del row
        homes = [hospitals.lent(client).folder / "runs" for client in range(5)]
        kept.update(
            secrets.kept(one).reveal() for home in homes for one in home.glob("*")
        )

    hospitals.run(tmp_path / "run", asks=("measured", "size"), on_row=note)
    assert len(kept) == 5
    for frame in (frames.read(one, 2**20) for one in sent):
        assert frame.notes == {} or frame.kind == Kind.HELLO
        assert "size" not in frame.notes
