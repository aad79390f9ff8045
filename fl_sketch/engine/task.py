"""A task: all that the loop needs of one run, from Python or from a config."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fl_sketch.core.protocols import Key, Roots, Server
from fl_sketch.engine.loop import Compiled
from fl_sketch.engine.recorder import Known
from fl_sketch.engine.round import State
from fl_sketch.workdir.identity import Identity
from fl_sketch.workdir.secrets import Secret


class Task(NamedTuple):
    """One run, before anything of it is compiled.

    Attributes:
      start: `(roots) -> State` before the first round.
      compile: `(roots, seal) -> Compiled`, which takes seconds; `seal` as
        `rounds.compile_rounds` has it.
      roots: `(secret) -> roots` of the run; a secret of None: it is not private.
      last: its last round: the one that was asked for, or that of its budget.
      every: rounds between rows.
      save_every: rounds between checkpoints.
      keep: how many checkpoints stay; 0: all.
      config: the contents of config.json, nested.
      facts: what is known before the run, for its summary.
      model: the contents of params.json.
      secret: a fresh secret; None: the run is not private.
      with_noise: `(z) -> Task`, the same with another noise multiplier.
      frozen: what does not train of the model, by name; empty: all of it trains.
      standing: `(server) -> names` of what should train and does not move; None: that
        is not looked at.
      advice: what may help if it diverges; empty: a loss that is not finite does not
        stop it.
    """

    start: Callable[[Key | Roots], State]
    compile: Callable[..., Compiled]
    roots: Callable[[Secret | None], Key | Roots]
    known: Known
    last: int
    every: int
    save_every: int = 50
    keep: int = 2
    config: Mapping[str, Any] = {}
    identity: Identity = Identity()
    facts: dict[str, Any] = {}
    model: dict[str, Any] = {}
    secret: Secret | None = None
    with_noise: "Callable[[float], Task] | None" = None
    frozen: Mapping[str, Any] = {}
    standing: Callable[[Server], list[str]] | None = None
    advice: str = ""

    @property
    def private(self) -> bool:
        """Whether there is noise."""
        return self.known.private
