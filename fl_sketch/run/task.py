"""One run of a config: its continuous keys are fixed, and its facts are known."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fl_sketch import engine
from fl_sketch.config import arguments, build
from fl_sketch.config.initial import source_of
from fl_sketch.config.privacy import protection_of
from fl_sketch.core import free_memory, pretrained, trees
from fl_sketch.core.constants import as_argument, jitted, trees_of
from fl_sketch.core.protocols import Key, Roots, Server
from fl_sketch.engine import still
from fl_sketch.engine.evaluate import in_order
from fl_sketch.engine.loop import Compiled
from fl_sketch.engine.recorder import Known
from fl_sketch.engine.round import client_bytes
from fl_sketch.engine.rounds import compile_rounds
from fl_sketch.engine.task import Task
from fl_sketch.models import huggingface
from fl_sketch.run.setup import Setup, prepare
from fl_sketch.transforms import lora
from fl_sketch.workdir import secrets


def task_of(config: ConfigDict, data_dir: str | None = None) -> Task:
    """Returns the run of `config`, with its own secret.

    The arguments, and what is raised, are those of `setup.prepare`.
    """
    return of_setup(prepare(config, data_dir))


def of_setup(setup: Setup) -> Task:
    """Returns the run of a setup with the config's own continuous keys and seed."""
    config, numbers = setup.config, setup.numbers
    start = functools.partial(setup.start, numbers)
    shapes = jax.eval_shape(start, jax.eval_shape(jax.random.key, 0))
    state = setup.placed(shapes)
    start = jitted(start, out_shardings=jax.tree.map(lambda x: x.sharding, state))
    setup.shares(config.seed)  # says what cannot be dealt, before anything compiles
    secret = setup.secret()

    @functools.cache
    def roots(secret: secrets.Secret | None) -> Roots:
        return secrets.roots(config.seed, secret, setup.same)

    return described(
        setup,
        start=start,
        compile=lambda roots, seal=None: _compile(setup, state, roots, seal),
        roots=roots,
        known=known_of(setup),
        secret=secret,
        with_noise=lambda z: of_setup(setup.with_noise(z)),
    )


def described(setup: Setup, **parts: Any) -> Task:
    """Returns the task of a setup: `parts`, and what its folder says of it."""
    config = setup.config
    return Task(
        **parts,
        last=setup.last,
        every=config.eval_every,
        save_every=config.checkpoint_every,
        keep=config.checkpoint_keep,
        config=config.to_dict(),
        identity=setup.identity,
        facts=facts_of(setup),
        model=model_of(setup),
        frozen=setup.parts.frozen.tree if setup.parts else {},
        standing=_standing(setup),
        advice=arguments.advice(config),
    )


def _standing(setup: Setup) -> Callable[[Server], list[str]] | None:
    """Returns what names what a client's work on test data does not move; None: none.

    A model that trains as a whole may have arrays that it does not use.
    """
    if setup.parts is None:
        return None
    client, local = setup.config.client, setup.algorithm(setup.numbers).local
    test, sizes = setup.splits.test, {"steps": client.steps, "batch": client.batch}
    return still.of_work(local, test, **sizes)


def known_of(setup: Setup) -> Known:
    """Returns what the rows of a run need."""
    clients, dropout = setup.config.data.clients, setup.config.cohort.dropout
    return Known(setup.prices, clients, setup.guarantee, absences=dropout > 0)


def _compile(setup: Setup, state, roots: Key | Roots, seal: Any) -> Compiled:
    """Returns the programs of a run with these roots."""
    begin = time.perf_counter()
    assert isinstance(roots, Roots)
    data = setup.data(setup.config.seed)
    play = setup.play(setup.numbers)
    own = {"state": state, "key": roots, "data": data, "seal": seal}
    advance, _ = compile_rounds(play, setup.mesh, constants=setup.constants, **own)
    measured = measuring(setup, state)
    free_memory.give_back()
    return Compiled(advance, measured, time.perf_counter() - begin)


def measuring(setup: Setup, state: Any) -> Callable[[Any], dict[str, float]]:
    """Returns what measures the model of a state; `state` may be its shapes."""
    constants = setup.constants
    evaluate, test = setup.evaluation
    evaluate = functools.partial(evaluate, setup.numbers)
    evaluate, frozen = jax.jit(as_argument(evaluate, constants)), trees_of(constants)
    evaluate = evaluate.lower(state.server.params, test, frozen)
    evaluate = engine.compile_program(evaluate, setup.mesh)

    def measured(state) -> dict[str, float]:
        found = jax.device_get(evaluate(state.server.params, test, frozen))
        found = in_order(found, setup.metrics)
        return {name: float(value) for name, value in found.items()}

    return measured


def facts_of(setup: Setup) -> dict[str, Any]:
    """Returns what is known of a run before it is compiled, for its summary."""
    config, talk, prices = setup.config, setup.talk, setup.prices
    sent, d = sum(talk.sent), trees.size(trees.trained(setup.params))
    row = client_bytes(setup.algorithm(setup.numbers), setup.params)
    leaves = jax.tree.leaves_with_path(trees_of(setup.constants))
    parameters = (leaf for path, leaf in leaves if lora.SCALE not in str(path[-1]))
    frozen = sum(leaf.size for leaf in parameters)
    return {
        "algorithm": config.algorithm,
        "dataset": config.data.name,
        "model": config.model.name,
        "d": d,
        **({"frozen": frozen} if frozen else {}),
        "sketch_size": sent,
        "compression": d / sent,
        "clients": config.data.clients,
        "data": setup.form,
        "devices": setup.mesh.size,
        "exchanges": len(talk.sent),
        "download": "messages" if prices.followed else "model",
        "bytes_down_of_the_model": prices.model,
        "bytes_down_to_follow": prices.follow.missed + prices.follow.always,
        **({"bytes_down_once": prices.once} if prices.once else {}),
        "bytes_up_planned": talk.bits_up and -(-talk.bits_up // 8),
        "client_state_bytes": row * config.data.clients,
        "kept_updates": _kept_updates(setup),
        "seed": config.seed,
        "metrics": list(setup.metrics),
        **_protection(setup),
    }


def _protection(setup: Setup) -> dict[str, Any]:
    """Returns what is known of the run's privacy, if messages are bounded."""
    if setup.guarantee is None:
        return {}
    keys, bound, local, _ = protection_of(setup.config)
    guard = setup.algorithm(setup.numbers).mechanism
    return {
        **setup.guarantee.facts,
        "noise": "local" if local else keys.noise,
        "smallest_cohort": guard.smallest if guard else 0,
        "bound": "clip" if local else bound,
        "threshold": keys.threshold,
    }


def model_of(setup: Setup) -> dict[str, Any]:
    """Returns what is needed to use the model of a run elsewhere, for params.json."""
    config, train, seen = setup.config, setup.splits.train.inputs, setup.seen
    names = setup.splits.class_names
    scaling = seen.scaling._asdict() if seen.scaling else {}
    return {
        "algorithm": config.algorithm,
        "dataset": config.data.name,
        "part": config.data.part,
        "public": config.data.public,
        "init_from": source_of(config)[1],
        "model": config.model.name,
        "size": config.model.size,
        "loss": config.model.loss,
        "options": build.options_of(config.model),
        **({"trains": config.client.trains} if setup.parts else {}),
        "outputs": seen.classes,
        **({"class_names": list(names)} if names else {}),
        "inputs": {
            "shape": list(train.shape[1:]),
            "dtype": str(train.dtype),
            "divided_by": 255 if train.dtype == np.uint8 else 1,
            **scaling,
            **(_tokens(setup) if train.dtype == np.int32 else {}),
        },
        **_pretrained(setup),
    }


def _tokens(setup: Setup) -> dict[str, Any]:
    """Returns which tokens a model takes, and how texts become these."""
    data, tokenizer = setup.config.data, setup.splits.tokenizer
    shape = setup.splits.train.inputs.shape[1:]
    size, model = data.vocabulary, setup.config.model.name
    if pretrained.named(model):
        size = pretrained.read(model).count("vocab_size")
    elif model != "transformer" and tokenizer:
        size = tokenizer.size
    if model == "language_model":
        size = setup.seen.classes  # outputs are inputs
    return {
        "length": shape[-1] if shape else data.length,
        "vocabulary": size,
        "vocabulary_file": data.vocabulary_file,
        **({"tokenizer": tokenizer.to_json()} if tokenizer else {}),
    }


def _pretrained(setup: Setup) -> dict[str, Any]:
    """Returns what is needed of the folder of a pretrained model, if there is one.

    "config" describes the model. "fresh" names its arrays that begin anew, "left_out"
    those of the folder that it does not use.
    """
    name = setup.config.model.name
    if not pretrained.named(name):
        return {}
    folder = pretrained.read(name)
    found: dict[str, Any] = {"config": pretrained.described(folder)}
    if source_of(setup.config)[0] == "name":
        model, begun = setup.params, {**setup.initial.tree}
        if setup.parts:
            model, begun = setup.parts.model, begun | setup.parts.frozen.tree
        left = huggingface.find(folder, model, read=False).left_out
        found["fresh"] = [
            own for own, _ in trees.named_leaves(model) if own not in begun
        ]
        found["left_out"] = list(left)
    return {"pretrained": found}


def _kept_updates(setup: Setup) -> str:
    """Returns what a round holds of the cohort's updates, in words."""
    passes = len(setup.talk.sent) + setup.talk.stateful
    if passes == 1:
        return "a chunk"
    return "the whole cohort"
