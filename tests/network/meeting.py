"""A coordinator and sites in one process, on a wire that may fail, for the toy."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fl_sketch import engine
from fl_sketch.core.keys import roots_of
from fl_sketch.engine import mesh_over
from fl_sketch.engine.round import State, initial_server, initial_state, make_round
from fl_sketch.network.conversation import Conversation
from fl_sketch.network.coordinator import Coordinator, Rules
from fl_sketch.network.site import Part, Site
from fl_sketch.network.site_states import SiteStates
from tests.quadratics import PARAMS, STEPS, D, fetch, optima

BATCHES = jax.ShapeDtypeStruct((STEPS, D), "float32")
QUICK = Rules(seconds=1, attempts=2, pause=0.0)
Change = Callable[[int, bytes], bytes | None]


class Meeting:
    """Five sites and a coordinator; `change` alters answers, None: none comes.

    Attributes:
      sent: every frame, as (client, down, up).
    """

    def __init__(
        self, algorithm, folder, *, clients=5, cohort=None, rules=QUICK, follows=False
    ):
        self.talk = Conversation(algorithm, PARAMS, BATCHES, fetch)
        self.algorithm, self.folder, self.clients = algorithm, folder, clients
        self.key, self.data = jax.random.key(7), optima(clients)
        self.sampler = (
            engine.everyone(clients)
            if cohort is None
            else engine.fixed_size(clients, cohort)
        )
        self.lines: list[str] = []
        self.sent: list[tuple[int, bytes, bytes | None]] = []
        self.change: Change = lambda client, answer: answer
        self.sites: dict[int, Site] = {}
        self.rules, self.follows = rules, follows
        for client in range(clients):
            self.start_site(client)
        self.coordinator = self.new_coordinator()

    def start_site(self, client, **changes):
        """Starts a site, or starts it again after its process has died."""

        def join(terms):
            del terms
            folder = self.folder / f"site_{client}"
            data, roots = self.data[client][None], roots_of(self.key)
            part = Part(self.talk, data, roots, client, SiteStates(folder), tells=True)
            return part._replace(follows=self.follows, **changes)

        self.sites[client] = Site(join, self.lines.append)

    def new_coordinator(self, back=(0,)):
        return Coordinator(
            self.talk,
            self.sampler,
            roots_of(self.key),
            self.send,
            rules=self.rules,
            follows=self.follows,
            back=lambda: back,
            folder=self.folder,
            say=self.lines.append,
        )

    def send(self, data, seconds):
        del seconds
        came: dict[int, Any] = {}
        for client, down in data.items():
            up = self.change(client, self.sites[client].receive(down))
            self.sent.append((client, down, up))
            if up is not None:
                came[client] = up
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
        one = make_round(self.algorithm, fetch, mesh_over(jax.devices()[:1]))

        def play(state):
            number = state.server.round
            cohort = engine.cohort.of_round(self.sampler, self.key, number)
            return one(state, self.key, cohort, self.data, None)

        state = initial_state(self.algorithm, PARAMS, self.clients)
        reports, play = [], jax.jit(play)
        for _ in range(rounds):
            state, report = play(state)
            reports.append(jax.device_get(report))
        return state, reports


def close(one, other, most=1e-6):
    """Asserts that two trees have the same numbers, within `most`."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert float(jnp.max(jnp.abs(a - b))) <= most
