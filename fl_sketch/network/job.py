"""From a config to a coordinator's run, and to a site's part in it.

The coordinator has the config and the test data. A site has its own examples, and gets
the config with the terms of the run. What a config says of training data is then for
the provisioner alone, who deals a data set out to sites on one machine.
"""

import dataclasses
import fcntl
import functools
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fl_sketch.config import inputs, parse
from fl_sketch.config.privacy import protection_of
from fl_sketch.core import files, plugins, pretrained
from fl_sketch.core.mappings import flat
from fl_sketch.data import batches as client_batches
from fl_sketch.data import npz, raw
from fl_sketch.data.class_subset import ALL
from fl_sketch.data.examples import Examples, Splits, with_classes
from fl_sketch.data.partition import Partition
from fl_sketch.models.losses import KINDS
from fl_sketch.network import identities
from fl_sketch.network.conversation import Conversation
from fl_sketch.network.refused import Refused
from fl_sketch.network.site import Part
from fl_sketch.network.site_file import Lent
from fl_sketch.network.site_states import SiteStates
from fl_sketch.network.spending import Spending
from fl_sketch.run import setup as setups
from fl_sketch.run.setup import Setup
from fl_sketch.transforms.trains import ALL as ALL_TRAIN
from fl_sketch.workdir import identity, secrets
from fl_sketch.workdir.identity import TABLES

RUNS = "runs"  # the folder of a site's runs
NAME = re.compile("[0-9a-f]{32}")  # of a run
ALIKE = {  # keys that a network has no use for, and their values
    "data.held_out": (0.0,),
    "clients_every": (0,),
    "cohort.sampling": ("fixed", "everyone", "poisson"),
    "compute.model_devices": (1,),
    "privacy.unit": ("client",),
}


def require_possible(config: ConfigDict) -> None:
    """Raises in one line for a config that sites elsewhere cannot run."""
    values = flat(config)
    for key, allowed in ALIKE.items():
        if values[key] not in allowed:
            choice = " or ".join(repr(one) for one in allowed)
            msg = f"Expected {key}={choice} for sites elsewhere, got {values[key]!r}."
            raise ValueError(msg)
    if pretrained.named(values["model.name"]) and values["model.init_from"]:
        msg = (
            "Expected model.init_from='' with a pretrained model for sites elsewhere, "
            f"got {values['model.init_from']!r}."
        )
        raise ValueError(msg)
    if not 1e-20 <= values["privacy.threshold"] <= 1e20:
        msg = (
            "Expected 1e-20 <= privacy.threshold <= 1e20 for sites elsewhere, got "
            f"{values['privacy.threshold']}."
        )
        raise ValueError(msg)
    if values["data.standardise"] == "train":
        msg = (
            "config.data: Expected standardise to be numbers or none for sites "
            "elsewhere, got 'train', which is measured on all training data."
        )
        raise ValueError(msg)


def of_coordinator(config: ConfigDict, splits: Splits) -> Setup:
    """Returns the setup of a coordinator, which has test data and no others."""
    require_possible(config)
    blank = Examples(*(np.zeros_like(part[:1]) for part in splits.test))
    known = splits._replace(train=blank, owners=None, learnt=())
    setup = dataclasses.replace(setups.of_splits(config, known), copies=True)
    follows = setup.prices.followed
    if setup.config.download == "cheapest" and setup.algorithm(setup.numbers).downlink:
        follows = False
    return setup.changed("download", "messages" if follows else "model")


def conversation_of(setup: Setup) -> Conversation:
    """Returns the programs of a setup."""
    fetch = parse.fetch_of(setup.config.client)
    algorithm = setup.algorithm(setup.numbers)
    return Conversation(algorithm, setup.params, setup.batches, fetch)


def test_data(config: ConfigDict, data_dir: str | None) -> Splits:
    """Returns a coordinator's data set: of an npz file, its test data alone."""
    if config.data.name.partition("/")[0] != npz.NAME:
        return inputs.splits_of(config, data_dir)
    folder, name = raw.folder(data_dir), config.data.name.partition("/")[2]
    path = (folder or pathlib.Path()) / f"{name}.npz"
    found = npz.one_part(path, "test", KINDS[config.model.loss].targets)
    return with_classes(inputs.tokens(found, config), config.data.classes)


def terms_of(
    setup: Setup, run: str, asks: Sequence[str] = (), sites: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns what sites are told of a run, as JSON has it.

    Args:
      run: the name of the run, 32 hexadecimal digits.
      asks: what sites are asked to tell, see `Lent.tells`.
      sites: the names of the sites, in the order of clients.
    """
    first = setup.splits.test.inputs
    return {
        "run": run,
        "config": setup.config.to_dict(),
        "classes": setup.seen.classes,
        "inputs": [str(first.dtype), *first.shape[1:]],
        "frozen": setup.identity.frozen,
        "noise_multiplier": setup.guarantee.noise_multiplier
        if setup.guarantee
        else 0.0,
        "asks": list(asks),
        "sites": list(sites),
    }


def join(lent: Lent, terms: Mapping[str, Any], kit: pathlib.Path | None = None) -> Part:
    """Returns the part of a site in a run of these terms.

    Args:
      lent: what the owner of the site lends.
      terms: those of `terms_of`, and the site's number.
      kit: the folder with the site's identity; None: it has none.

    Raises:
      Refused: for terms that the owner of the site does not accept.
    """
    run, number, asks = str(terms["run"]), int(terms["client"]), terms["asks"]
    if not NAME.fullmatch(run):
        msg = "Expected a run with a name of 32 hexadecimal digits, got another."
        raise Refused(msg)
    said = ConfigDict(terms["config"])
    require_accepted(lent, said)
    config = _own_config(lent, said, terms)
    splits = _own_splits(lent, config, terms)
    setup = setups.of_splits(config, splits)
    if setup.identity.frozen != terms["frozen"]:
        msg = "Expected a model with the frozen arrays of the run, got others."
        raise Refused(msg)
    if z := float(terms["noise_multiplier"]):
        setup = setup.with_noise(z)
    folder = _folder_of(lent, run)
    guarantee = setup.guarantee and setup.guarantee._replace(
        partition="its own",
        public=False,  # which is for the owner of the data to say
    )
    spending = Spending(lent, run, folder, guarantee)
    basis = secrets.simulated(flat(said)).reveal()  # a digest of what decides a model
    basis += bytes.fromhex(files.digest(lent.data))
    tells = {one for one in asks if one in lent.tells}
    signs = _identity(kit, terms) if kit else None
    size = len(splits.train.targets)
    whole = Partition(np.arange(size, dtype=np.int32), np.array([0, size]))
    device = jax.devices(lent.device or None)[0]
    return Part(
        conversation_of(setup),
        client_batches.resident(splits.train, whole, device=device),
        secrets.roots(said.seed, _secret(setup, folder, said, spending.answered)),
        number,
        SiteStates(folder / "state"),
        spending.admit,
        basis,
        {"size": size} if "size" in tells else {},
        "measured" in tells and not setup.private,
        said.download == "messages",
        (lent.smallest_sum, int(said.data.clients), signs),
    )


def _identity(kit: pathlib.Path, terms: Mapping[str, Any]) -> identities.Identity:
    """Returns a site's identity in a run, which names a site for each client."""
    names = terms["sites"]
    if terms["config"]["data"]["clients"] != len(names):  # it decides a threshold
        msg = "Expected as many clients as the run names sites, got others."
        raise Refused(msg)
    return identities.read(kit, str(terms["run"]), names, int(terms["client"]))


def _folder_of(lent: Lent, run: str) -> pathlib.Path:
    """Returns a site's folder of a run, which no other process of the site has."""
    folder = lent.folder / RUNS / run
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _held(folder)
    return folder


@functools.cache
def _held(folder: pathlib.Path) -> int:
    """Returns the descriptor of a lock on a run's folder, which this process keeps.

    What was answered is in memory. A second process would answer another question with
    the same noise.
    """
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        msg = "Expected one process of this site in a run, got another that takes part."
        raise Refused(msg) from None
    return lock


def require_accepted(lent: Lent, config: ConfigDict) -> None:
    """Raises `Refused` for a config that the owner of a site does not accept."""
    values = flat(config)
    try:
        require_possible(config)  # who sends the terms may not have checked them
    except ValueError as error:
        raise Refused(str(error)) from None
    if lent.algorithms and config.algorithm not in lent.algorithms:
        choice = ", ".join(lent.algorithms)
        msg = f"Expected algorithm to be one of {choice}, got {config.algorithm}."
        raise Refused(msg)
    version = identity.versions()["fl_sketch"]
    if lent.versions and version not in lent.versions:
        msg = f"Expected fl_sketch of {', '.join(lent.versions)}, got {version}."
        raise Refused(msg)
    if lent.private and config.privacy.randomness == "seed":
        msg = (
            "Expected privacy.randomness=system, since the site limits epsilon or "
            "noises, got seed, by which the coordinator knows the noise."
        )
        raise Refused(msg)
    accepted = {"privacy.noise": lent.noises, "cohort.sampling": lent.samplings}
    for key, choices in accepted.items():
        if values[key] not in choices:
            msg = f"Expected {key}={' or '.join(choices)}, got {values[key]}."
            raise Refused(msg)
    for key, value in values.items():
        if key in ("data.name", "data.vocabulary_file", "model.init_from"):
            continue  # a site has its own data, and its own model or that of the run
        named = plugins.named(value) and value not in lent.files
        if named or (key in TABLES and value):
            msg = f"Expected {key} to name no file of the site, got {value!r}."
            raise Refused(msg)


def needs_model(config: ConfigDict) -> str:
    """Returns the key of the model of which each site needs a copy; empty: none.

    A site gets what trains. It needs the shape of a pretrained model, and all arrays
    that do not train.
    """
    if pretrained.named(config.model.name):
        return "name"
    partly = config.model.init_from and config.client.trains != ALL_TRAIN
    return "init_from" if partly else ""


def _own_splits(lent: Lent, config: ConfigDict, terms: Mapping[str, Any]) -> Splits:
    """Returns the examples of a site, if they are such as the run needs."""
    targets = KINDS[config.model.loss].targets
    # The coordinator is sent the reason of a refusal, which must not reveal the data.
    finite = not (lent.private or protection_of(config).noisy)
    found = npz.one_part(lent.data, "train", targets, finite=finite)
    found = inputs.tokens(found, config)
    kind, *shape = terms["inputs"]
    own = found.train.inputs
    if [str(own.dtype), *own.shape[1:]] != [kind, *shape]:
        msg = f"Expected train_inputs of {kind}{shape} in {lent.data}, got "
        raise ValueError(msg + f"{own.dtype}{list(own.shape[1:])}.")
    classes = int(terms["classes"])
    if found.classes > classes or classes < 1:  # how many there are stays here
        msg = f"Expected train_targets of the run's {classes} classes, got others."
        raise Refused(msg)
    return with_classes(found, classes)


def _own_config(lent: Lent, said: ConfigDict, terms: Mapping[str, Any]) -> ConfigDict:
    """Returns the config of a run as a site has it: with its own files."""
    config = said.copy_and_resolve_references()
    own = {key: lent.files[one] for key, one in flat(said).items() if one in lent.files}
    config.update_from_flattened_dict(own)
    config.model.init_from = config.model.fresh = ""
    if where := needs_model(said):
        if lent.model is None:
            msg = "Expected model in site.toml, since the run has a pretrained model."
            raise Refused(msg)
        name = pretrained.PREFIX * (where == "name") + str(lent.model)
        config.model.update({where: name, "fresh": said.model.fresh})
    config.data.update(
        {
            "name": str(lent.data),
            "part": ALL,
            "partition": "iid",
            "classes": terms["classes"],
        }
    )
    config.data.vocabulary_file = ""
    config.compute.devices, config.compute.data = 1, "resident"
    return config


def _secret(
    setup: Setup, folder: pathlib.Path, said: ConfigDict, answered: bool
) -> secrets.Secret | None:
    """Returns the site's own secret of a private run, the same when it begins anew.

    With another one, what was `answered` before would get other noise, at no cost.
    """
    if not setup.private:
        return None
    if said.privacy.randomness == "seed":
        return secrets.simulated(flat(said))
    kept = secrets.kept(folder)
    if kept is None and answered:
        msg = f"Expected the secret of this run in {folder}, as it has begun, got none."
        raise Refused(msg)
    if kept is None:
        kept = secrets.fresh()
        secrets.keep(folder, kept)
    return kept
