"""From a config to a coordinator's run, and to a site's part in it.

The coordinator has the config and the test data. A site has its own examples, and gets
the config with the terms of the run. What a config says of training data is then for
one machine alone, where a data set is split among the folders of sites.
"""

import functools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fl_sketch.config import inputs, privacy
from fl_sketch.core import plugins, pretrained, secret
from fl_sketch.core.mappings import flat
from fl_sketch.core.platforms import versions
from fl_sketch.data import batches as client_batches
from fl_sketch.data import npz, raw
from fl_sketch.data.class_subset import ALL
from fl_sketch.data.examples import Examples, Splits, with_classes
from fl_sketch.data.partition import Partition
from fl_sketch.models.losses import KINDS
from fl_sketch.network import messages, policy, secure_sum
from fl_sketch.network.messages import Message
from fl_sketch.network.policy import Budget, Refused, SitePolicy
from fl_sketch.network.programs import Programs
from fl_sketch.network.site import Part
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.transforms.trains import ALL as ALL_TRAIN
from fl_sketch.workdir import secrets
from fl_sketch.workdir.identity import TABLES

RUNS = "runs"  # the folder of a site's runs
MOST_RUNS = 1000  # folders in it
DATA = "data.npz"
SMALL = 2**16  # examples
ALIKE = {  # keys that sites have no use for, and their values
    "data.held_out": (0.0,),
    "cohort.sampling": policy.SAMPLINGS,
    "cohort.weighting": ("equal",),
    "compute.model_devices": (1,),
    "privacy.unit": ("client",),
    "privacy.noise": policy.NOISES,
}
COMPARED = ("fl_sketch", "jax")  # packages of which all have one version


def require_possible(config: ConfigDict) -> None:
    """Raises in one line for a config that sites elsewhere cannot run."""
    values = flat(config)
    for key, allowed in ALIKE.items():
        if values.get(key, allowed[0]) not in allowed:
            choice = " or ".join(repr(one) for one in allowed)
            msg = f"Expected {key}={choice} for sites elsewhere, got {values[key]!r}."
            raise ValueError(msg)
    if not values["client.batch"]:
        msg = (
            "config.client: Expected batch >= 1 for sites elsewhere, whose sizes only "
        )
        raise ValueError(msg + "they know, got batch=0.")
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
    return prepare(config, splits=known, elsewhere=True)


def programs_of(setup: Setup) -> Programs:
    """Returns the programs of a setup."""
    experiment, local = setup.experiment, setup.experiment.local
    algorithm = experiment.noisy(setup.hyperparameters)
    batches = local.shapes(setup.splits.train)
    shapes = setup.params, batches, local.fetch
    return Programs(algorithm, *shapes, experiment.traffic)


def test_data(config: ConfigDict, data_dir: str | None) -> Splits:
    """Returns a coordinator's data set: of an npz file, its test data alone."""
    if config.data.name.partition("/")[0] != npz.NAME:
        return inputs.splits_of(config, data_dir)
    folder, name = raw.folder(data_dir), config.data.name.partition("/")[2]
    path = (folder or pathlib.Path()) / f"{name}.npz"
    found = npz.one_part(path, "test", KINDS[config.model.loss].targets)
    return with_classes(inputs.tokens(found, config), config.data.classes)


def split(
    config: ConfigDict,
    data_dir: str | None,
    folder: pathlib.Path,
    names: Sequence[str],
    **allows: Any,
) -> Splits:
    """Writes a folder for each site with its examples, its site.toml and its identity.

    Files that exist stay as they are. Returns the data set, of which the coordinator
    keeps the test data alone; `allows` are further keys of each site.toml.
    """
    require_possible(config)
    setup = prepare(config, data_dir)
    if where := needs_model(config):
        path = config.model[where].removeprefix(pretrained.PREFIX)
        allows = {"model": str(pathlib.Path(path).absolute()), **allows}
    shares, train = setup.partition(setup.config.seed)[0], setup.splits.train
    places = {name: folder / name for name in names}
    for client, place in enumerate(places.values()):
        place.mkdir(parents=True, exist_ok=True)
        rows = shares.indices[shares.starts[client] : shares.starts[client + 1]]
        if not (place / DATA).exists():
            arrays = {"train_inputs": train.inputs[rows]}
            npz.write(place / DATA, arrays | {"train_targets": train.targets[rows]})
        if not (place / policy.FILE).exists():
            policy.write(place / policy.FILE, {"data": DATA, **allows})
    signed = config.privacy.bits and setup.experiment.guarantee
    if signed and not all((p / secure_sum.FILE).exists() for p in places.values()):
        secure_sum.write_identities(places)
    return setup.splits


def terms_of(setup: Setup, names: Sequence[str]) -> dict[str, Any]:
    """Returns the terms of a run that sites get; the names are those of the sites."""
    test, guarantee = setup.splits.test, setup.experiment.guarantee
    terms = {
        "config": setup.config.to_dict(),
        "classes": setup.seen.classes,
        "shapes": [[str(one.dtype), *one.shape[1:]] for one in test],
        "frozen": setup.identity.frozen,
        "noise": guarantee.noise_multiplier if guarantee else 0.0,
        "versions": [versions()[name] for name in COMPARED],
        "names": [*names],
    }
    return {"terms": json.dumps(terms)}


def join(allowed: SitePolicy, message: Message, kit: pathlib.Path) -> Part:
    """Returns the part of the site of a kit in a run of these terms, or refuses."""
    terms, number = json.loads(str(message.notes["terms"])), message.site
    names, said = tuple(map(str, terms["names"])), ConfigDict(terms["config"])
    identity = secure_sum.read_identity(kit)
    if len({*names}) < len(names) or said.data.clients != len(names):
        msg = "Expected different sites, one for each client, got others."
        raise Refused(msg)
    own = names[number : number + 1]
    if (
        not message.run
        or not own
        or (identity and not (identity.name in own and {*names} <= {*identity.publics}))
    ):
        msg = "Expected this site and others of its kits by their names, got others."
        raise Refused(msg)
    here = [versions()[name] for name in COMPARED]
    if here != terms["versions"]:
        shown = ", ".join(map(" ".join, zip(COMPARED, here, strict=True)))
        msg = f"Expected the versions of the coordinator, got {shown}."
        raise Refused(msg)
    require_accepted(allowed, said)
    config, where = said.copy_and_resolve_references(), needs_model(said)
    config.model.init_from = config.model.fresh = ""
    if where and allowed.model is None:
        msg = "Expected model in site.toml, since the run has a pretrained model."
        raise Refused(msg)
    if where:
        name = pretrained.PREFIX * (where == "name") + str(allowed.model)
        config.model.update({where: name, "fresh": said.model.fresh})
    classes = messages.whole(terms, "classes", 1, npz.MOST)
    own_data = {"name": "site", "part": ALL, "partition": "iid", "classes": classes}
    config.data.update(own_data | {"vocabulary_file": ""})
    config.compute.devices, config.compute.data = 1, "resident"
    # The coordinator is sent the reason of a refusal, which must not reveal the data.
    noisy = allowed.private or privacy.protection_of(config).noisy
    targets = KINDS[config.model.loss].targets
    found = npz.one_part(allowed.data, "train", targets, finite=not noisy)
    splits = inputs.tokens(found, config)
    shapes = [[str(one.dtype), *one.shape[1:]] for one in splits.train]
    if shapes != terms["shapes"] or splits.classes > classes:
        msg = "Expected examples of the run's types, shapes and classes, got others."
        raise Refused(msg)
    splits = with_classes(splits, classes)
    privacy.check_data(config, splits)
    known = json.dumps(config.to_dict()), json.dumps(terms["shapes"])
    setup, programs = _prepared(*known, float(terms["noise"]), splits.classes)
    if setup.identity.frozen != terms["frozen"]:
        msg = "Expected a model with the frozen arrays of the run, got others."
        raise Refused(msg)
    found = setup.experiment.guarantee
    guarantee = found and found._replace(
        partition="its own",
        public=False,  # which is for the owner of the data to say
    )
    folder = allowed.folder / RUNS / message.run
    if not folder.exists() and len([*folder.parent.glob("*")]) >= MOST_RUNS:
        msg = f"Expected at most {MOST_RUNS} runs at this site: delete folders of old "
        raise Refused(msg + "ones, whose privacy stays counted in odometer.json.")
    budget = Budget(allowed, message.run, folder, guarantee)
    fresh = setup.experiment.private and said.privacy.randomness != "seed"
    simulated = secrets.simulated(flat(said)) if setup.experiment.private else None
    same = secret.roots(said.seed, simulated)
    size = len(splits.train.targets)
    # Sites of one process share a program if their data have the same shape.
    room = 1 << (size - 1).bit_length() if size <= SMALL else size
    train = Examples(*(np.resize(x, (room, *x.shape[1:])) for x in splits.train))
    own = Partition(np.arange(room, dtype=np.int32), np.array([0, size]))
    return Part(
        run=message.run,
        number=number,
        programs=programs,
        data=client_batches.resident(train, own, device=jax.devices()[0]),
        roots=lambda: secret.roots(said.seed, secret.fresh()) if fresh else same,
        budget=budget,
        folder=folder,
        names=names,
        identity=identity,
        smallest=allowed.smallest_sum,
    )


@functools.lru_cache(maxsize=2)
def _prepared(
    config: str, shapes: str, noise: float, classes: int
) -> tuple[Setup, Programs]:
    """Returns the setup and the programs of a config, which equal sites here share."""
    parts = (np.zeros((1, *shape), kind) for kind, *shape in json.loads(shapes))
    blank, said = Examples(*parts), ConfigDict(json.loads(config))
    own = {"elsewhere": True, "noise_multiplier": noise}
    setup = prepare(said, splits=Splits("site", blank, blank, classes), **own)
    return setup, programs_of(setup)


def require_accepted(allowed: SitePolicy, config: ConfigDict) -> None:
    """Raises `Refused` for a config that the owner of a site does not accept."""
    values = flat(config)
    try:
        require_possible(config)  # who sends the terms may not have checked them
    except ValueError as error:
        raise Refused(str(error)) from None
    if allowed.private and config.privacy.randomness != "system":
        msg = (
            "Expected privacy.randomness=system, since the site limits epsilon or "
            "noises, got another, by which the coordinator knows the noise."
        )
        raise Refused(msg)
    accepted = {"privacy.noise": allowed.noises, "cohort.sampling": allowed.samplings}
    for key, choices in accepted.items():
        if values[key] not in choices:
            msg = f"Expected {key}={' or '.join(choices)}, got {values[key]}."
            raise Refused(msg)
    for key, value in values.items():
        if key in ("data.name", "data.vocabulary_file", "model.init_from"):
            continue  # a site has its own data, and its own model or that of the run
        several = value if isinstance(value, list | tuple) else [value]
        table = key in TABLES and value
        if table or any(map(plugins.named, several)):
            msg = f"Expected {key} to name no file of the site, got one."
            raise Refused(msg)


def needs_model(config: ConfigDict) -> str:
    """Returns the key of the model of which each site needs a copy; empty: none."""
    if pretrained.named(config.model.name):
        return "name"
    partly = config.model.init_from and config.client.trains != ALL_TRAIN
    return "init_from" if partly else ""
