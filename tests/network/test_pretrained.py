"""Sites fine-tune a part of a pretrained model, of which each has its own copy."""

import numpy as np
import pytest

from fl_sketch.run import run
from tests import pretrained
from tests.network.sites import Hospitals, five, furthest, weights_in
from tests.run.configs import quiet, read_json

pytestmark = pytest.mark.slow

SHORT = {
    "data__clients": 3,
    "data__partition": "iid",
    "data__name": "npz/texts",
    "data__length": 6,
    "client__batch": 4,
    "client__steps": 2,
    "sketch__compression": 2.0,
    "rounds": 4,
    "eval_every": 2,
}
PARTS = {
    "lora": {"client__trains": "lora(rank=2, on=query|value)+head"},
    "head": {"client__trains": "head"},
    "all": {},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with texts and a model."""
    place, random = tmp_path_factory.mktemp("place"), np.random.default_rng(0)
    labels = random.permutation(80) % 2
    words = [random.choice(pretrained.WORDS[4 + 3 * one :][:3], 4) for one in labels]
    texts = np.array([" ".join(row) for row in words])
    arrays = {"inputs": texts, "targets": labels}
    parts = {"train": slice(60), "test": slice(60, None)}
    np.savez(
        place / "texts.npz",
        **{f"{p}_{n}": a[rows] for p, rows in parts.items() for n, a in arrays.items()},
    )
    pretrained.bert(place / "bert", num_hidden_layers=1)
    return place


def config_of(place, **more):
    return five(**SHORT, model__name=f"hf/{place / 'bert'}", **more)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_trains_at_sites_is_that_of_one_program(part, place, tmp_path):
    config = config_of(place, **PARTS[part])
    hospitals = Hospitals(tmp_path, config, data_dir=str(place))
    summary = hospitals.run(tmp_path / "network")
    assert not hospitals.lines
    sent = read_json(tmp_path / "network" / "network" / "bytes.json")
    assert sent["payload_down"] == summary["bytes_down_total"]
    run(config, str(tmp_path / "train"), data_dir=str(place), say=quiet)
    models = weights_in(tmp_path / "network"), weights_in(tmp_path / "train")
    assert furthest(*models) <= 1e-5  # of weights up to 2.3


def test_a_site_whose_model_has_other_weights_is_left_out(place, tmp_path):
    config = config_of(place, **PARTS["lora"])
    hospitals = Hospitals(tmp_path, config, data_dir=str(place))
    config_file, arrays = pretrained.bert(tmp_path / "one", num_hidden_layers=1)
    arrays = {name: 2 * array for name, array in arrays.items()}
    other = tmp_path / "other"
    pretrained.write(other, config_file, arrays, pretrained.tokenizer())
    hospitals.lend(2, model=str(other))
    hospitals.run(tmp_path / "network")
    assert any("frozen arrays of the run" in line for line in hospitals.lines)


def test_a_site_without_a_model_says_so(place, tmp_path):
    config = config_of(place, **PARTS["lora"])
    hospitals = Hospitals(tmp_path, config, data_dir=str(place))
    hospitals.lend(2)
    hospitals.run(tmp_path / "network")
    assert any("Expected model in site.toml" in line for line in hospitals.lines)


def test_a_site_may_have_texts(place, tmp_path):
    """They become tokens by the model's own tokenizer."""
    config = config_of(place, **PARTS["head"])
    hospitals = Hospitals(tmp_path, config, data_dir=str(place))
    texts = np.load(place / "texts.npz")
    for client in range(3):
        own = {
            name: texts[f"train_{name}"][client::3] for name in ("inputs", "targets")
        }
        file = tmp_path / "sites" / f"site_{client}" / "data.npz"
        np.savez(file, **{f"train_{name}": array for name, array in own.items()})
        hospitals.start(client)
    hospitals.run(tmp_path / "network")
    assert not hospitals.lines
