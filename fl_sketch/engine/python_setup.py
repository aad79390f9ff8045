"""The setup of a run that Python describes: from arguments of `simulate` to a task."""

import hashlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.channels import player
from fl_sketch.core import chacha, trees, validate
from fl_sketch.core.constants import Constant, noted, size_of
from fl_sketch.core.keys import roots_of
from fl_sketch.core.protocols import Algorithm, Key, Mechanism, Roots, Server, Tree
from fl_sketch.data import Clients, examples, residency, streamed
from fl_sketch.data import batches as client_batches
from fl_sketch.engine import checks, programs, still
from fl_sketch.engine.clients import Fetch
from fl_sketch.engine.cohort import Sampler, of_round
from fl_sketch.engine.costs import Traffic, prices
from fl_sketch.engine.loop import MOST, Compiled, plain
from fl_sketch.engine.mesh import chunk_size, mesh_over, name_of
from fl_sketch.engine.plan import plan_of
from fl_sketch.engine.prices import Prices
from fl_sketch.engine.recorder import Known
from fl_sketch.engine.round import State, initial_state, make_round
from fl_sketch.engine.rounds import Play, compile_rounds
from fl_sketch.engine.task import Task
from fl_sketch.models import params_io
from fl_sketch.privacy import noise_size
from fl_sketch.privacy.guarantee import Guarantee, promised, require_left
from fl_sketch.workdir import odometer
from fl_sketch.workdir.identity import identity_of
from fl_sketch.workdir.secrets import Secret

MakeAlgorithm = Callable[[float], Algorithm]
DOOR = "engine.simulate"  # in config.json, what made the folder


class Chosen(NamedTuple):
    """An algorithm with its noise, traffic, privacy guarantee and prices.

    Attributes:
      constants: what clients read in their work and nothing changes.
    """

    algorithm: Algorithm
    traffic: Traffic
    guarantee: Guarantee | None
    prices: Prices
    constants: Sequence[Constant] = ()


class PythonSetup(NamedTuple):
    """The data of clients, their cohorts, and their privacy guarantee.

    Attributes:
      batches: how `batch` examples are drawn, one of `data.batches.KINDS`.
      terms: `relation`, `delta` and `target_epsilon`.
      data: where the examples are to be, one of `residency.FORMS` or "auto".
      chunk: the number of clients that a device works on at a time; 0: by platform.
      partition: a name of how examples are dealt to clients; empty: it has none.
    """

    params: Tree
    clients: Clients
    key: Key | Roots
    last: int
    sampler: Sampler
    steps: int
    batch: int
    batches: str
    fetch: Fetch
    terms: dict[str, Any]
    data: str
    mesh: Mesh
    chunk: int
    partition: str = ""

    def choose(self, algorithm: Algorithm | MakeAlgorithm, download: str) -> Chosen:
        """Returns the algorithm with its noise, traffic, guarantee and prices."""
        make, target = None, self.terms["target_epsilon"]
        chosen: Any = algorithm
        if target and callable(algorithm) and not isinstance(algorithm, Algorithm):
            make, chosen = algorithm, algorithm(0.0)
        checks.require_made_by(Algorithm, "fl_sketch.algorithms", algorithm=chosen)
        if make is not None:
            checks.require_noise_of(chosen, 0.0)
        checks.require_fitting(chosen, self.sampler)
        with noted() as constants:
            traffic = checks.traffic_of(
                chosen, self.params, self.clients, steps=self.steps, batch=self.batch
            )
        checks.require_cohorts(traffic, self.sampler)
        d = trees.size(trees.trained(self.params))
        validate.warn_if_long(max(traffic.sent), d, stacklevel=3)
        guarantee = self._guarantee(chosen, traffic, calibrated=make is not None)
        if make is not None and guarantee:
            chosen = make(guarantee.noise_multiplier)
            checks.require_noise_of(chosen, guarantee.noise_multiplier)
        checks.require_noise(chosen, target)
        found, *helps = *noise_size.lines(guarantee, clients=self.sampler.size), ""
        if any(helps):
            warnings.warn(f"{found}: {helps[0]}", stacklevel=3)
        if not guarantee:
            checks.require_batches(self.batches, self.batch, self.clients)
            checks.require_finite(self.clients)
        cost = prices(
            chosen,
            self.params,
            traffic,
            download=download,
            rounds=self.last,
            gap=self.clients.population / self.sampler.size,
            once=size_of(constants),
        )
        return Chosen(chosen, traffic, guarantee, cost, constants)

    def _guarantee(
        self, algorithm: Algorithm, traffic: Traffic, *, calibrated: bool
    ) -> Guarantee | None:
        """Returns the privacy guarantee of the run; None: it adds no noise."""
        mechanism, terms = algorithm.mechanism, self.terms
        if mechanism is None or not (mechanism.noise_multiplier or calibrated):
            return None
        relation = terms["relation"]
        plan = plan_of(
            mechanism, self.sampler, traffic, rounds=self.last, relation=relation
        )
        return promised(
            plan,
            rounds=self.last,
            delta=terms["delta"],
            noise_multiplier=float(mechanism.noise_multiplier),
            target_epsilon=terms["target_epsilon"],
            randomness="system" if chacha.is_secret(self.key) else "simulated",
        )

    def task(
        self,
        chosen: Chosen,
        begun: State,
        look: Callable[[Tree], dict[str, Any]],
        every: int,
    ) -> Task:
        """Returns the run that continues from a state.

        Args:
          look: measures the model for each row, every `every` rounds.
        """
        guarantee, mesh = chosen.guarantee, self.mesh
        same = NamedSharding(mesh, P())
        play = self._play(chosen, every)
        form = residency.form(self.data, self.clients.examples, mesh, self.batches)

        def compiled(roots, seal=None) -> Compiled:
            begin = time.perf_counter()
            if form == "streamed":
                examples = streamed.on_host(*self.clients)
            else:
                examples = client_batches.resident(*self.clients, device=same)
            roots = jax.device_put(roots_of(roots), same)
            state = jax.device_put(begun, same)
            own = {"state": state, "key": roots, "data": examples, "seal": seal}
            advance, _ = compile_rounds(play, mesh, constants=chosen.constants, **own)
            seconds = time.perf_counter() - begin
            return Compiled(advance, lambda state: look(state.server.params), seconds)

        last = guarantee.rounds if guarantee else self.last
        require_left(last, int(begun.server.round), self.terms["target_epsilon"])
        return Task(
            start=lambda roots: jax.device_put(begun, same),
            compile=compiled,
            roots=lambda secret: _with(self.key, secret),
            known=Known(chosen.prices, self.clients.population, guarantee),
            last=last,
            every=every,
            frozen=_frozen(chosen.constants),
            standing=self._standing(chosen),
            secret=_secret(self.key)
            if guarantee or chacha.is_secret(self.key)
            else None,
        )

    def _play(self, chosen: Chosen, every: int) -> Play:
        """Returns how rounds are played."""
        sizes = self.sampler.places, chosen.traffic.working
        chunk = chunk_size(self.mesh, *sizes, given=self.chunk)
        return Play(
            make_round(chosen.algorithm, self.fetch, self.mesh, chunk=chunk),
            self.sampler,
            chunk=chunk,
            steps=self.steps,
            batch=self.batch,
            most=min(every, MOST, *[] if chosen.guarantee else [self.last]),
        )

    def _standing(self, chosen: Chosen) -> Callable[[Server], list[str]] | None:
        """Returns what names what a client's work does not move, if a part trains.

        Nothing of a private run may depend on its clients' data.
        """
        if not chosen.constants or chosen.guarantee:
            return None
        sizes = {"steps": self.steps, "batch": self.batch}
        return still.of_work(chosen.algorithm.local, self.clients.examples, **sizes)

    def described(self, task: Task, chosen: Chosen, **options: Any) -> Task:
        """Returns a task with what a folder needs: config, identity, secret, facts."""
        roots, digests = roots_of(self.key), _digests(self.clients)
        model = {
            name: np.asarray(leaf) for name, leaf in trees.named_leaves(self.params)
        }
        config = {
            **options,
            **self._config(chosen),
            "made_by": DOOR,
            "model": {"digest": params_io.digest(model)},
            "data": {
                "name": DOOR,
                "public": False,
                "clients": self.clients.population,
            },
            "key": np.asarray(jax.random.key_data(roots.public)).tobytes().hex(),
            "compute": {"chunk": self.chunk},
        }
        known, guarantee = task.known, chosen.guarantee
        if guarantee:
            guarantee = guarantee._replace(partition=self._dealt())
        devices, program = name_of(self.mesh), self._program(chosen.algorithm)
        return task._replace(
            config=jax.tree.map(plain, config),
            identity=identity_of(
                digests,
                devices,
                program=program,
                frozen=params_io.digest(task.frozen) if task.frozen else "",
                trained_on=(DOOR,),
                keyed=task.private,
            ),
            known=known._replace(guarantee=guarantee),
            facts=self._facts(chosen, guarantee),
            model={
                **dict.fromkeys(("model", "algorithm", "dataset"), DOOR),
                "public": False,
            },
        )

    def _dealt(self) -> str:
        """Returns how examples are dealt, as the caller names it.

        A digest would confirm guesses about a label that decides it.
        """
        return f"{DOOR}: {self.partition}" if self.partition else odometer.UNNAMED

    def _program(self, algorithm: Algorithm) -> str:
        """Returns a digest of a round as it is traced, with all rates and bounds."""
        mesh = mesh_over(self.mesh.devices.flat[:1].tolist())
        play = make_round(algorithm, self.fetch, mesh)

        def one_round(params, key, data):
            state = initial_state(algorithm, params, self.clients.population)
            return play(state, key, of_round(self.sampler, key, 0), data, None)

        data = client_batches.resident_shapes(*self.clients)
        return programs.digest(one_round, self.params, roots_of(self.key), data)

    def _facts(self, chosen: Chosen, guarantee: Guarantee | None) -> dict[str, Any]:
        """Returns what summary.json says of the run before it begins."""
        guard = chosen.algorithm.mechanism
        return {
            "made_by": DOOR,
            "d": trees.size(trees.trained(self.params)),
            "sketch_size": sum(chosen.traffic.sent),
            "clients": self.clients.population,
            "exchanges": len(chosen.traffic.sent),
            **(guarantee.facts if guarantee else {}),
            **_said(guard),
        }

    def _config(self, chosen: Chosen) -> dict[str, Any]:
        """Returns the part of config.json that describes the rounds."""
        algorithm, sampler = chosen.algorithm, self.sampler
        guard, batches = algorithm.mechanism, self.batches
        server = jax.eval_shape(algorithm.server.init, self.params)
        z = guard and float(guard.noise_multiplier)
        return {
            "rounds": self.last,
            "cohort": {"sampling": sampler.sampling, "size": sampler.size},
            "client": {"steps": self.steps, "batch": self.batch, "batches": batches},
            "privacy": {**self.terms, "noise_multiplier": z},
            "algorithm": {
                "channel": player.name_of(algorithm.uplink),
                "messages": [*chosen.traffic.sent],
                "bits_up": chosen.traffic.bits_up,
                "server": str(jax.tree.structure(server)),  # with names of its state
            },
        }


def _said(mechanism: Mechanism | None) -> dict[str, Any]:
    """Returns what a summary says of the noise and the bound of a mechanism."""
    if mechanism is None:
        return {}
    noise, bound, limit = mechanism.said
    return {
        "noise": noise,
        "bound": bound,
        "threshold": None if limit is None else float(limit),
        "smallest_cohort": mechanism.smallest,
    }


def _frozen(constants: Sequence[Constant]) -> dict[str, Any]:
    """Returns the arrays of constants that have them by name, as models' parts do."""
    return {
        name: array
        for one in constants
        if isinstance(one.tree, Mapping)
        for name, array in one.tree.items()
    }


def _digests(clients: Clients) -> dict[str, str]:
    """Returns digests of the examples and of the partition."""
    digests = {
        f"train_{name}": examples.digest(_as_trained_on(np.asarray(leaf)))
        for name, leaf in trees.named_leaves(clients.examples)
    }
    shares = clients.partition
    arrays = {"indices": shares.indices, "starts": shares.starts}
    return digests | {"partition": params_io.digest(arrays)}


def _as_trained_on(array: np.ndarray) -> np.ndarray:
    """Returns an array in the type that it has on a device, as configs have it too."""
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _secret(key: Key | Roots) -> Secret:
    """Returns the secret of a private run; a simulated one is derived from the key."""
    raw = np.asarray(jax.random.key_data(roots_of(key).secret)).tobytes()
    return Secret(raw if chacha.is_secret(key) else hashlib.sha256(raw).digest())


def _with(key: Key | Roots, secret: Secret | None) -> Roots:
    """Returns the roots of a run, with the secret that its folder has kept."""
    roots = roots_of(key)
    if secret is None or not chacha.is_secret(key):
        return roots
    return roots._replace(secret=chacha.key_of(secret.reveal()))
