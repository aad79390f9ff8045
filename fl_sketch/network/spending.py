"""What a site spent: every answer that is not the same as one before is counted.

A run is priced as if its site took part in every round, as the accountant of the run
prices it. An answer to another question in a round that was answered before has noise
of its own, and counts as one more round. The count is on the disk before an answer
leaves. One answer is counted at a time, also where several runs are at once.
"""

import contextlib
import fcntl
import hashlib
import pathlib
from collections.abc import Callable, Iterator

from fl_sketch.network import lines
from fl_sketch.network.refused import Refused
from fl_sketch.network.site_file import Lent
from fl_sketch.privacy.guarantee import Guarantee, rounded_up
from fl_sketch.workdir import odometer
from fl_sketch.workdir.odometer import NoTotal

FILE = "answered"  # in the folder of a run: lines of a place in it, and a digest
LOCK = "lock"  # in the folder of the site
PRICE = "price"  # the place of the digest of what the run promises


class Spending:
    """Counts the answers of a site in one run, and stops at its owner's limits."""

    def __init__(
        self, lent: Lent, run: str, folder: pathlib.Path, guarantee: Guarantee | None
    ):
        """Takes the limits, the run's name and folder, and what it promises.

        Raises:
          Refused: for a run without noise where there are limits.
        """
        self._home, self._run, self._path = lent.folder, run, folder / FILE
        self._guarantee, self._lent = guarantee, lent
        self._asked: dict[str, list[str]] = {}
        self._last, self._more = -1, dict[int, int]()  # further answers in a round
        self._others: odometer.Entries | None = None
        self._most, self._exact = 0, False
        if lent.private and not (guarantee and guarantee.private):
            msg = "Expected a run with noise: the site limits epsilon or noises."
            raise Refused(msg)
        if lent.capped and guarantee and guarantee.delta > lent.delta:
            msg = f"Expected delta <= {lent.delta}, got delta={guarantee.delta}."
            raise Refused(msg)
        known = lines.read(self._path)
        price = hashlib.sha256(repr(guarantee).encode()).hexdigest()
        if not known:
            lines.add(self._path, PRICE, price)
        elif known[0] != [PRICE, price]:
            msg = (
                "Expected the noise and the plan with which this run began, got others."
            )
            raise Refused(msg)
        for place, digest in known[1:]:
            self._keep(place, digest)

    def admit(self, number: int, exchange: int, asked: bytes) -> bool:
        """Counts the answer to a question in a round, or raises `Refused`.

        Args:
          asked: a digest of all that the answer follows from.

        Returns:
          Whether it is the first question there. Others need noise of their own.
        """
        place, digest = f"{number}.{exchange}", asked.hex()
        before = self._asked.get(place, [])
        if digest not in before:
            more = max(self._more.get(number, 0), len(before))
            again = sum({**self._more, number: more}.values())
            with locked(self._home):
                self._count(1 + max(self._last, number) + again, number)
                lines.add(self._path, place, digest)
            self._keep(place, digest)
        return self._asked[place][0] == digest

    @property
    def answered(self) -> bool:
        """Whether a question of this run was answered."""
        return bool(self._asked)

    def _keep(self, place: str, digest: str) -> None:
        """Remembers that a question was answered."""
        digests = self._asked.setdefault(place, [])
        digests.append(digest)
        number, more = int(place.partition(".")[0]), len(digests) - 1
        self._last = max(self._last, number)
        if more > self._more.get(number, 0):
            self._more[number] = more

    def _count(self, counted: int, number: int) -> None:
        """Notes in the site's odometer how many rounds are answered, if it may be."""
        if self._lent.capped:
            most = self._affordable(counted)
            if counted > most:
                msg = (
                    f"Expected at most {most} rounds of this run, by the site's own "
                    f"limits ({self._limits()}), got round {number + 1}, number "
                    f"{counted}."
                )
                raise Refused(msg)
        if self._guarantee and self._guarantee.private:
            odometer.note(self._home, {self._run: self._guarantee.after(counted)})

    def _limits(self) -> str:
        run, whole = self._lent.epsilon_in_a_run, self._lent.epsilon_in_all
        parts = [f"epsilon {rounded_up(run)} in a run"] if run else []
        parts += [f"epsilon {rounded_up(whole)} in all"] if whole else []
        return ", ".join(parts)

    def _affordable(self, counted: int) -> int:
        """Returns how many rounds the limits allow, or `counted` if they allow that."""
        guarantee, others = self._guarantee, odometer.read(self._home)
        assert guarantee
        others.pop(self._run, None)

        def allowed(rounds: int) -> bool:
            own = guarantee.after(rounds)
            run, whole = self._lent.epsilon_in_a_run, self._lent.epsilon_in_all
            if run and own.spent() > run:
                return False
            if not whole:
                return True
            try:
                total = odometer.total({**others, self._run: own})
            except NoTotal:
                return False
            return bool(total and total.epsilon <= whole)

        if self._others is None:  # mostly all rounds, so that none is computed again
            self._most = largest(allowed, guarantee.rounds)
            self._exact = self._most < guarantee.rounds
        elif others != self._others:
            self._most, self._exact = 0, False
        self._others = others
        if counted > self._most and not self._exact:
            self._exact = not allowed(counted)
            self._most = largest(allowed, counted - 1) if self._exact else counted
        return self._most


@contextlib.contextmanager
def locked(home: pathlib.Path) -> Iterator[None]:
    """Waits until no other process counts what a site spends."""
    with open(home / LOCK, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def largest(allowed: Callable[[int], bool], most: int) -> int:
    """Returns the largest number up to `most` that is allowed; 0: none is.

    >>> largest(lambda rounds: rounds <= 7, 100)
    7
    """
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low
