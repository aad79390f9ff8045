"""Parts of one's own by the file that they stand in: a method, a model, data."""

import pytest

from configs import default
from fl_sketch.audit.run_spectrum import config_of
from fl_sketch.run import from_config, run
from tests.run.configs import config_with, quiet, ran, refused

OWN = """
import flax.linen as nn
import numpy as np
import optax
from fl_sketch import channels
from fl_sketch.sketch import compressors
from fl_sketch.transforms import local
from fl_sketch.algorithms import catalog
from fl_sketch.core.protocols import Algorithm


def quantised(loss, *, client_rate, server, levels=3):
    work = local.sgd_steps(loss, optax.sgd(client_rate))
    return Algorithm(work, channels.compressed(compressors.qsgd(levels)), server)


clipped = catalog.Method("clipped", quantised, bound="clip")


class Wide(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(nn.relu(nn.Dense(7)(x.reshape(len(x), -1))))


def wide(classes):
    return Wide(classes)


def table():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 5)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    return {
        "train_inputs": x[:60], "train_targets": y[:60], "owners": np.arange(60) % 6,
        "test_inputs": x[60:], "test_targets": y[60:],
    }


def bad():
    return table() | {"test_targets": np.full(30, 0.7)}


number = 3


def nothing(loss):
    return number


def narrow(classes):
    return nn.Dense(1)
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return str(path)


def keys(own, **more):
    return {
        "algorithm": f"{own}:quantised",
        "model__name": f"{own}:wide",
        "data__name": f"{own}:table",
        "data__partition": "natural",
        "data__clients": 0,
        "cohort__size": 3,
        "compute__devices": 1,
        **more,
    }


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_file_only(own, tmp_path):
    more = keys(own)
    summary, _ = ran(tmp_path / "run", **more)
    d = 5 * 7 + 7 + 7 * 2 + 2
    assert summary["d"] == d and summary["clients"] == 6
    each = -(-(32 + 4 * d) // 8)  # a norm; a sign, and seven levels as the config has
    assert summary["bytes_up_per_client_round"] == each
    with open(own, "a") as file:
        file.write("# other words\n")
    with refused(f"{own}:quantised", tmp_path / "run"):
        ran(tmp_path / "run", **more)


def test_what_makes_it_private_is_asked_and_counted(own):
    private = {
        "data__public": True, "cohort__sampling": "poisson",
        "privacy__noise_multiplier": 2.0,
    }  # fmt: skip
    clipped = from_config(
        config_with(**keys(own, **private, algorithm=f"{own}:clipped"))
    )
    assert clipped.private and clipped.guarantee.epsilon(3) > 0
    with refused("bound='none'"):
        from_config(config_with(**keys(own, **private)))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"algorithm": "{}:quantized"}, "quantised"),
        ({"algorithm": "{}x.py:mine"}, "own.pyx.py"),
        ({"algorithm": "{}:number"}, "function"),
        ({"algorithm": "{}:nothing"}, "Algorithm"),
        ({"model__name": "{}:number"}, "function"),
        ({"model__name": "{}:narrow"}, "outputs"),
        ({"data__name": "{}:number"}, "arrays"),
        ({"data__name": "{}:bad"}, "own.py:bad"),
    ],
    ids=range(8),
)
def test_what_is_no_part_is_refused_in_one_line(own, changes, name):
    changes = {key: value.format(own) for key, value in changes.items()}
    with refused(name, error=(ValueError, TypeError, OSError)):
        from_config(config_with(**keys(own, **changes)))


FOREIGN = """
import pathlib

pathlib.Path(__file__).with_name("ran").touch()


def optimizer(rate):
    import optax

    return optax.sgd(rate)
"""


@pytest.mark.slow
def test_code_that_a_foreign_folder_names_runs_only_if_it_is_named(tmp_path):
    (tmp_path / "theirs.py").write_text(FOREIGN)
    name = f"{tmp_path}/theirs.py:optimizer"
    folder, ours = tmp_path / "run", {"rounds": 2, "eval_every": 1}
    run(config_with(**ours), folder, say=quiet)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        text.replace('"optimizer": "sgd"', f'"optimizer": "{name}"')
    )
    assert name in (folder / "config.json").read_text()
    longer = config_with(**ours | {"rounds": 3})
    for plugin in ((), ["elsewhere.py:optimizer"]):
        with refused(name, "client.optimizer", "--plugin"):
            config_of(folder, default.get_config(), plugin)
    with refused(name, "client.optimizer", "another workdir"):
        run(longer, folder, say=quiet)
    assert config_of(folder, default.get_config(), [name]).client.optimizer == name
    assert not (tmp_path / "ran").exists()
