"""site.toml: what the owner of a site allows, and the budget that is charged by it."""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import pathlib
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fl_sketch.core import files, untrusted_files, validate
from fl_sketch.privacy.guarantee import Guarantee
from fl_sketch.workdir import odometer
from fl_sketch.workdir.odometer import NoTotal

FILE = "site.toml"
SAMPLE = """\
# What this site allows: docs/network.md has all keys.
data = "data.npz"        # train_inputs and train_targets, next to this file
epsilon_in_a_run = 0.0   # the most that one run may spend; 0: no limit
epsilon_in_all = 0.0     # the most that all runs together may spend; 0: no limit
delta = 1e-5             # the largest delta of these
noises = ["central", "skellam"]  # with central the coordinator adds the noise
samplings = ["everyone", "fixed", "poisson"]  # the coordinator knows the cohorts
smallest_sum = 3         # the fewest sites in a masked sum; more if some may collude
"""
NOISES = ("central", "skellam")
SAMPLINGS = ("everyone", "fixed", "poisson")
CHOICES = {"noises": NOISES, "samplings": SAMPLINGS}
PATHS = ("data", "folder", "model")
BUDGET, LOCK = "budget.json", "lock"  # in the folder of a run, and of the site


class Refused(ValueError):
    """A site does not take part; the coordinator is told why, in this one line.

    Whatever other error a site meets stays in its own log.
    """


class SitePolicy(NamedTuple):
    """What the owner of a site allows.

    Attributes:
      data: an npz file with train_inputs and train_targets.
      folder: where the site keeps what it must know of runs.
      model: a folder of a pretrained model or a file of weights, in place of that which
        a config names; None: the site has none.
      epsilon_in_a_run, epsilon_in_all: the most that one run, or all runs together, may
        spend; 0: no limit.
      delta: the largest delta of these.
      smallest_sum: the least number of sites in a masked sum. In a sum of two, each of
        them learns the other's message.
      noises: who may add the noise: "central" trusts the coordinator with it. If not
        all are named, a run must have noise.
      samplings: how cohorts may be drawn. The coordinator knows them, so that only of
        "everyone" what a run spends holds against it.
    """

    data: pathlib.Path
    folder: pathlib.Path
    model: pathlib.Path | None = None
    epsilon_in_a_run: float = 0.0
    epsilon_in_all: float = 0.0
    delta: float = 1e-5
    smallest_sum: int = 3
    noises: tuple[str, ...] = NOISES
    samplings: tuple[str, ...] = SAMPLINGS

    @property
    def capped(self) -> bool:
        """Whether there is a limit on epsilon."""
        return bool(self.epsilon_in_a_run or self.epsilon_in_all)

    @property
    def private(self) -> bool:
        """Whether a run must have noise, and not from the seed of its config."""
        return self.capped or {*self.noises} != {*NOISES}


def read(path: str | os.PathLike) -> SitePolicy:
    """Returns the policy in a site.toml; its paths are relative to its folder."""
    place = pathlib.Path(path).resolve()
    try:
        said = tomllib.loads(place.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"Expected {place} to be a TOML file, got {error}."
        raise ValueError(msg) from None
    for key in said:
        if key not in SitePolicy._fields:
            near = validate.nearest(key, SitePolicy._fields)
            choice = ", ".join(SitePolicy._fields)
            msg = f"Expected keys of {choice} in {place}, got {key}."
            raise ValueError(msg + near)
    if "data" not in said:
        msg = f"Expected data, the npz file of the site, in {place}, got none."
        raise ValueError(msg)
    found: dict[str, Any] = {"folder": place.parent / "state"}
    return SitePolicy(**found | {k: _value(place, k, one) for k, one in said.items()})


def write(path: str | os.PathLike, said: Mapping[str, Any]) -> None:
    """Writes a site.toml of strings, numbers and lists; TOML's strings are JSON's."""
    shown = [
        f"{key} = {json.dumps(value, ensure_ascii=False)}"
        for key, value in said.items()
    ]
    pathlib.Path(path).write_text("\n".join(shown) + "\n")


def _value(place: pathlib.Path, key: str, value: Any) -> Any:
    """Returns the value of a key in the type that it has."""
    if key in CHOICES:
        expected = f"a list of some of {', '.join(CHOICES[key])}"
        if isinstance(value, list) and all(one in CHOICES[key] for one in value):
            return tuple(value)
    elif key in PATHS:
        expected = "a path"
        if isinstance(value, str) and value:
            return place.parent / pathlib.Path(value).expanduser()
    else:
        whole = key == "smallest_sum"
        expected = "a whole number >= 2" if whole else "a number >= 0"
        number = type(value) is int or (type(value) is float and not whole)
        if number and 2 * whole <= value < math.inf:
            return value
    msg = f"Expected {key} in {place} to be {expected}, got {value!r}."
    raise ValueError(msg)


class Budget:
    """What a site spends in one run: each answer is counted on the disk beforehand.

    A run is priced as if its site took part in every round up to the last in which it
    answered, as the accountant of the run prices it. Every further answer at a place
    where there was one, or before it, has noise of its own and counts as one more
    round. So does what was counted and not sent, as when the site was killed.
    """

    def __init__(
        self,
        policy: SitePolicy,
        run: str,
        folder: pathlib.Path,
        guarantee: Guarantee | None,
    ):
        """Takes the limits, the run's name and folder, and what the run promises."""
        self._policy, self._run, self._path = policy, run, folder / BUDGET
        self._guarantee = guarantee if guarantee and guarantee.private else None
        self._others: Any = None
        self._most = 0
        if policy.private and self._guarantee is None:
            msg = "Expected a run with noise: the site limits epsilon or noises."
            raise Refused(msg)
        if policy.capped and guarantee and guarantee.delta > policy.delta:
            msg = f"Expected delta <= {policy.delta}, got delta={guarantee.delta}."
            raise Refused(msg)
        price = hashlib.sha256(repr(guarantee).encode()).hexdigest()
        more = 0  # or what the site counted before its file was lost
        other = "Expected the noise and the plan with which this run began, got others."
        if counted := odometer.read(policy.folder).get(run):
            if guarantee is None or counted.after(0) != guarantee.after(0):
                raise Refused(other)
            more = counted.plan.steps // guarantee.per_round
        start = {"price": price, "last": [-1, 0], "more": more, "sums": [[-1, 0], {}]}
        self._start: dict[str, Any] = start
        if self._known()["price"] != price:
            raise Refused(other)

    def charge(self, number: int, exchange: int) -> bool:
        """Counts an answer in a round, or raises `Refused`.

        Returns:
          Whether it is the first answer there. Others need noise of their own.
        """
        with self._locked() as known:
            first = [number, exchange] > known["last"]
            known["last"] = max(known["last"], [number, exchange])
            known["more"] += not first
            counted = known["last"][0] + 1 + known["more"]
            if self._policy.capped and not self._affordable(counted):
                msg = "Expected no more rounds, by the site's own limits on epsilon."
                raise Refused(msg)
            if self._guarantee:
                spent = {self._run: self._guarantee.after(counted)}
                odometer.note(self._policy.folder, spent)
        return first

    def complete(
        self, place: list[int], question: str, roster: str, own_noise: bool
    ) -> None:
        """Notes that the sum of a question is to be revealed, or raises `Refused`.

        Each question has one sum: two sums of the same messages over different sites
        would show the difference. None is behind the newest, and in one place there is
        one question, unless messages have noise of their site's own.
        """
        with self._locked() as known:
            newest, rosters = known["sums"]
            before = rosters if place == newest else {}
            if (
                place < newest
                or before.get(question, roster) != roster
                or (before and question not in before and not own_noise)
            ):
                msg = (
                    "Expected a sum over the sites that this round's sum had before, "
                    "got others: the difference of two sums shows a message."
                )
                raise Refused(msg)
            known["sums"] = [place, {**before, question: roster}]

    def _known(self) -> dict[str, Any]:
        """Returns the entries; other processes of the site may write them as well."""
        if not self._path.exists():
            return {**self._start}
        with untrusted_files.reading(self._path, "to be unchanged"):
            return self._start | json.loads(self._path.read_text())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        """Yields what was counted, to be changed; it is on the disk afterwards."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self._policy.folder / LOCK, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            known = self._known()
            yield known
            files.write_text(self._path, json.dumps(known))

    def _affordable(self, counted: int) -> bool:
        """Returns whether the limits allow this number of rounds of the run."""
        guarantee, others = self._guarantee, odometer.read(self._policy.folder)
        assert guarantee
        others.pop(self._run, None)
        if others == self._others and counted <= self._most:
            return True

        def allowed(rounds: int) -> bool:
            run, whole = self._policy.epsilon_in_a_run, self._policy.epsilon_in_all
            if run and (guarantee.epsilon(rounds) or 0.0) > run:
                return False
            try:
                all_runs = {**others, self._run: guarantee.after(rounds)}
                total = odometer.total(all_runs) if whole else None
            except NoTotal:
                return False
            return not total or total.epsilon <= whole

        last = max(counted, guarantee.rounds)  # mostly all, which is computed once
        self._most = next((one for one in (last, counted) if allowed(one)), 0)
        self._others = others
        return counted <= self._most
