"""What a site keeps of a run on its own disk: a client's state, and an open round.

A state is one checkpoint file. The newest stays, and those to which the coordinator
may go back. An open round is the list of frames that the site received in it: what it
sent follows from them, so that a site that dies in a round goes on in the same place.
"""

import pathlib
from collections.abc import Collection
from typing import Any

from fl_sketch.core import files
from fl_sketch.workdir import checkpoint

OPEN = "open_round"  # the folder of its frames


class SiteStates:
    """The states of a client in a `folder`."""

    def __init__(self, folder: pathlib.Path):
        """Makes the folder, which its owner alone can read."""
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        (folder / OPEN).mkdir(exist_ok=True)
        self.folder = folder

    @property
    def newest(self) -> int:
        """The number of rounds after which the newest state is; 0: there is none."""
        return max(checkpoint.rounds(self.folder), default=0)

    def load(self, like: Any) -> Any:
        """Returns the newest state, shaped as `like` is; None: there is none."""
        if not self.newest:
            return None
        return checkpoint.of_round(self.folder, self.newest, like).tree

    def save(self, done: int, state: Any, back: Collection[int]) -> None:
        """Saves the state after `done` rounds.

        Args:
          back: the numbers of rounds to which the coordinator may go back.
        """
        checkpoint.save(self.folder, done, state, keep=0)
        rounds = checkpoint.rounds(self.folder)
        kept = {max((r for r in rounds if r <= one), default=0) for one in back}
        for number in {*rounds} - kept - {done}:
            checkpoint.path_of(self.folder, number).unlink()

    def go_back(self, done: int) -> None:
        """Deletes states after more than `done` rounds."""
        for number in checkpoint.rounds(self.folder):
            if number > done:
                checkpoint.path_of(self.folder, number).unlink()

    def note(self, frame: bytes) -> None:
        """Adds a frame to the open round, on the disk."""
        number = len(self.frames())
        path = self.folder / OPEN / f"{number:04d}"
        with files.replacing(path) as partial:
            partial.write_bytes(frame)

    def frames(self) -> list[bytes]:
        """Returns the frames of the open round, in order."""
        paths = sorted((self.folder / OPEN).glob("[0-9]*"))
        return [path.read_bytes() for path in paths]

    def close(self) -> None:
        """Forgets the open round."""
        for path in sorted((self.folder / OPEN).glob("[0-9]*"), reverse=True):
            path.unlink()
