"""What a site spent: every answer that is not the same as one before is counted.

A run is priced as if its site took part in every round, as the accountant of the run
prices it. An answer to other questions in a round that was answered before counts as
one more round. The count is on the disk before an answer leaves.
"""

import hashlib
import pathlib
from collections.abc import Callable

from fl_sketch.network import frames, lines
from fl_sketch.network.refused import Refused
from fl_sketch.network.site_file import Lent
from fl_sketch.privacy.guarantee import Guarantee, rounded_up
from fl_sketch.workdir import odometer
from fl_sketch.workdir.odometer import NoTotal

FILE = "answered"  # in the folder of a run: lines of a place in it, and a digest
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
        self._asked: dict[str, str] = {}
        self._again, self._last = 0, -1
        if lent.capped and not (guarantee and guarantee.private):
            msg = "Expected a run with noise, since the site has a limit on epsilon."
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
            self._again += place in self._asked
            self._asked[place] = digest
            self._last = max(self._last, int(place.partition(".")[0]))
        self._most = self._affordable() if lent.capped else None
        self._note()  # what was answered when an earlier process died

    def admit(self, number: int, frame: bytes) -> None:
        """Counts the answer to a frame of a round, or raises `Refused`."""
        read = frames.read(frame, len(frame))
        place = f"{number}.{read.kind.name}.{read.exchange}"
        digest = hashlib.sha256(frame).hexdigest()
        if self._asked.get(place) == digest:
            return
        again = self._again + (place in self._asked)
        last = max(self._last, number)
        counted = 1 + last + again
        if self._most is not None and counted > self._most:
            msg = (
                f"Expected at most {self._most} rounds of this run, by the site's own "
                f"limits ({self._limits()}), got round {number + 1}, number {counted}."
            )
            raise Refused(msg)
        lines.add(self._path, place, digest)
        self._asked[place], self._again, self._last = digest, again, last
        self._note()

    def _note(self) -> None:
        """Notes in the site's odometer what was answered so far."""
        counted = 1 + self._last + self._again
        if counted and self._guarantee and self._guarantee.private:
            odometer.note(self._home, {self._run: self._guarantee.after(counted)})

    def _limits(self) -> str:
        run, whole = self._lent.epsilon_in_a_run, self._lent.epsilon_in_all
        parts = [f"epsilon {rounded_up(run)} in a run"] if run else []
        parts += [f"epsilon {rounded_up(whole)} in all"] if whole else []
        return ", ".join(parts)

    def _affordable(self) -> int:
        """Returns how many rounds of this run the limits allow."""
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

        return largest(allowed, guarantee.rounds)


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
