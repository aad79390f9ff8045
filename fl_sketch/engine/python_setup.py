"""What `engine.simulate` is given, checked, and the task that it makes."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fl_sketch.channels import player
from fl_sketch.core import chacha
from fl_sketch.core.keys import roots_of
from fl_sketch.core.protocols import Algorithm, Key, Roots, Tree
from fl_sketch.data import Clients, residency, streamed
from fl_sketch.data import batches as client_batches
from fl_sketch.engine import checks
from fl_sketch.engine.cohort import Sampler
from fl_sketch.engine.costs import Prices, Traffic, prices
from fl_sketch.engine.loop import MOST, Compiled
from fl_sketch.engine.mesh import default_chunk, mesh_over
from fl_sketch.engine.plan import plan_of
from fl_sketch.engine.recorder import Known
from fl_sketch.engine.round import State, make_round
from fl_sketch.engine.rounds import Play, compile_rounds
from fl_sketch.engine.task import Task
from fl_sketch.privacy.guarantee import Guarantee, promised

MakeAlgorithm = Callable[[float], Algorithm]


class Chosen(NamedTuple):
    """An algorithm, what it sends, what it promises, and what that costs."""

    algorithm: Algorithm
    talk: Traffic
    guarantee: Guarantee | None
    prices: Prices


class PythonSetup(NamedTuple):
    """What clients train on, who takes part, and what is promised to them."""

    params: Tree
    clients: Clients
    key: Key | Roots
    last: int
    sampler: Sampler
    steps: int
    batch: int
    batches: str
    terms: dict[str, Any]

    def choose(self, algorithm: Algorithm | MakeAlgorithm, download: str) -> Chosen:
        """Returns the algorithm with its noise, and what follows from it."""
        make, chosen = None, algorithm
        if not isinstance(algorithm, Algorithm) and self.terms["target_epsilon"]:
            make = algorithm
            chosen = make(0.0) if callable(make) else make
        checks.require_made_by(Algorithm, "fl_sketch.algorithms", algorithm=chosen)
        assert isinstance(chosen, Algorithm)
        checks.require_fitting(chosen, self.sampler)
        talk = checks.traffic_of(
            chosen, self.params, self.clients, steps=self.steps, batch=self.batch
        )
        checks.require_weights(talk, self.sampler)
        guarantee = self.guarantee(chosen, talk, calibrated=make is not None)
        if make is not None and guarantee:
            chosen = make(guarantee.noise_multiplier)
        checks.require_noise(chosen, self.terms["target_epsilon"])
        return Chosen(chosen, talk, guarantee, self.prices(chosen, talk, download))

    def guarantee(
        self, algorithm: Algorithm, talk: Traffic, *, calibrated: bool
    ) -> Guarantee | None:
        """Returns what the run promises; None: it adds no noise."""
        mechanism = algorithm.mechanism
        if mechanism is None or not (mechanism.noise_multiplier or calibrated):
            return None
        plan = plan_of(
            mechanism,
            self.sampler,
            talk,
            rounds=self.last,
            relation=self.terms["relation"],
        )
        secret = chacha.is_secret(roots_of(self.key).secret)
        return promised(
            plan,
            rounds=self.last,
            delta=self.terms["delta"],
            noise_multiplier=float(mechanism.noise_multiplier),
            target_epsilon=self.terms["target_epsilon"],
            randomness="system" if secret else "simulated",
        )

    def about(self, chosen: Chosen) -> dict[str, Any]:
        """Returns what config.json is to hold, by which the run is known again."""
        algorithm, guard = chosen.algorithm, chosen.algorithm.mechanism
        z = guard and float(guard.noise_multiplier)
        name = player.name_of(algorithm.uplink)
        return {
            "rounds": self.last,
            "cohort": {"sampling": self.sampler.sampling, "size": self.sampler.size},
            "client": {
                "steps": self.steps,
                "batch": self.batch,
                "batches": self.batches,
            },
            "privacy": {**self.terms, "noise_multiplier": z},
            "algorithm": {
                "channel": name,
                "messages": [*chosen.talk.sent],
                "bits_up": chosen.talk.bits_up,
                "server": _shapes(algorithm.server, self.params),
            },
        }

    def prices(self, algorithm: Algorithm, talk: Traffic, download: str) -> Prices:
        """Returns the prices of the rounds to come."""
        gap = self.clients.population / self.sampler.size
        params, last = self.params, self.last
        return prices(algorithm, params, talk, download=download, rounds=last, gap=gap)

    def task(self, chosen: Chosen, now: State, look, every: int, places) -> Task:
        """Returns the run as the loop has it; `now` is its state before."""
        guarantee = chosen.guarantee
        mesh = mesh_over(checks.devices_of(places["devices"]))
        same = NamedSharding(mesh, P())
        chunk = places["chunk"] or default_chunk(mesh, self.sampler.places)
        fetch = client_batches.fetching(
            self.batches, steps=self.steps, batch=self.batch
        )
        play = Play(
            make_round(chosen.algorithm, fetch, mesh, chunk=chunk),
            self.sampler,
            chunk=chunk,
            steps=self.steps,
            batch=self.batch,
            most=min(every, MOST),
        )
        kind = residency.form(places["data"], self.clients.examples, mesh, self.batches)

        def compiled(roots) -> Compiled:
            begin = time.perf_counter()
            examples = self.examples(kind, same)
            roots = jax.device_put(roots_of(roots), same)
            state = jax.device_put(now, same)
            advance = compile_rounds(play, mesh, state=state, key=roots, data=examples)
            seconds = time.perf_counter() - begin
            return Compiled(advance, lambda state: look(state.server.params), seconds)

        return Task(
            start=lambda roots: jax.device_put(now, same),
            compile=compiled,
            roots=lambda secret: self.key,
            known=Known(chosen.prices, self.clients.population, guarantee),
            last=guarantee.rounds if guarantee else self.last,
            every=every,
        )

    def examples(self, kind: str, same: NamedSharding) -> Any:
        """Returns the data of clients, on the devices or on the host."""
        if kind == "streamed":
            return streamed.on_host(*self.clients)
        return client_batches.resident(*self.clients, device=same)


def _shapes(server: Any, params: Tree) -> str:
    """Returns a server's optimizer in words: the names of what it keeps."""
    return str(jax.tree.structure(jax.eval_shape(server.init, params)))
