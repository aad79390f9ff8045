"""A coordinator and sites in one process, on a wire that may fail, for the toy."""

import contextlib
import functools

import jax
import jax.numpy as jnp

from fl_sketch import engine
from fl_sketch.core.keys import roots_of
from fl_sketch.engine import costs, mesh_over
from fl_sketch.engine.round import State, initial_server, initial_state, make_round
from fl_sketch.network import messages, secure_sum
from fl_sketch.network.coordinator import Coordinator, Rules
from fl_sketch.network.policy import Budget, SitePolicy
from fl_sketch.network.programs import Programs
from fl_sketch.network.site import Part, Site
from tests.quadratics import PARAMS, STEPS, D, fetch, optima

BATCHES = jax.ShapeDtypeStruct((STEPS, D), "float32")
QUICK = Rules(seconds=1, attempts=2, pause=0.0)
RUN = "a" * 32
KEY = jax.random.key(7)


everyone, fixed_size = map(functools.cache, (engine.everyone, engine.fixed_size))


@functools.cache
def programs_of(algorithm):
    traffic = costs.measure_traffic(algorithm, PARAMS, BATCHES)
    return Programs(algorithm, PARAMS, BATCHES, fetch, traffic)


@functools.cache
def _simulated(algorithm, sampler):
    """Returns the program of a round in one process."""
    one = make_round(algorithm, fetch, mesh_over(jax.devices()[:1]))

    @jax.jit
    def play(state, data):
        cohort = engine.cohort.of_round(sampler, KEY, state.server.round)
        return one(state, KEY, cohort, data, None)

    return play


class Meeting:
    """Five sites and a coordinator; `change` alters answers, None: none comes.

    Attributes:
      sent: every message, as (client, question, answer or None).
    """

    def __init__(self, algorithm, folder, *, cohort=None, rules=QUICK):
        self.programs = programs_of(algorithm)
        self.algorithm, self.folder, self.rules = algorithm, folder, rules
        self.names = [f"hospital_{one}" for one in range(5)]
        privates, publics = secure_sum.drawn(self.names)
        self.identities = [
            secure_sum.Identity(name, privates[name], publics) for name in self.names
        ]
        self.sampler = fixed_size(5, cohort) if cohort else everyone(5)
        self.data, self.lines, self.sent = optima(5), [], []
        self.change = lambda client, answer: answer
        self.sites = {}
        for client in range(5):
            self.start_site(client)
        self.start_coordinator()

    def start_site(self, client):
        """Starts a site, or starts it again after its process has died."""
        home = self.folder / f"site_{client}"

        def join(message):
            policy = SitePolicy(home / "data.npz", home, smallest_sum=2)
            folder = home / message.run
            return Part(
                run=message.run,
                number=client,
                programs=self.programs,
                data=self.data[client][None],
                roots=lambda: roots_of(KEY),
                budget=Budget(policy, message.run, folder, None),
                folder=folder,
                names=tuple(self.names),
                identity=self.identities[client],
                smallest=2,
            )

        self.sites[client] = Site(join, self.lines.append)

    def start_coordinator(self, **changes):
        folder = self.folder / "coordinator"
        folder.mkdir(exist_ok=True, parents=True)
        about = {"run": RUN, "names": self.names, "folder": folder, "rules": self.rules}
        self.coordinator = Coordinator(
            self.programs,
            self.sampler,
            roots_of(KEY),
            self.send,
            **about | {"say": self.lines.append} | changes,
        )

    def send(self, data, seconds):
        del seconds
        came = {}
        for client, question in data.items():
            answer = self.change(client, self.sites[client].receive(question))
            with contextlib.suppress(ValueError):  # of one that lies
                self.sent.append((client, read(question), answer and read(answer)))
            if answer is not None:
                came[client] = answer
        return came

    def start(self):
        return State(initial_server(self.algorithm, PARAMS)[0], ())

    def play(self, rounds, state=None):
        """Returns the state after so many rounds, and all reports."""
        state, reports = state or self.start(), []
        begun = int(state.server.round)
        for number in range(begun, begun + rounds):
            state, report = self.coordinator.one_round(state, number)
            reports.append(report)
        return state, reports

    def simulated(self, rounds):
        """Returns the state after the same rounds in one program, and reports."""
        state = initial_state(self.algorithm, PARAMS, len(self.sites))
        reports, play = [], _simulated(self.algorithm, self.sampler)
        for _ in range(rounds):
            state, report = play(state, self.data)
            reports.append(jax.device_get(report))
        return state, reports


def read(data):
    return messages.read(data, 2**30)


def close(one, other, most=1e-6):
    """Asserts that two trees have the same numbers, within `most`."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert float(jnp.max(jnp.abs(a - b))) <= most
