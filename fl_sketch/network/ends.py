"""The ends of rounds that sites have not confirmed, also after a coordinator's kill."""

import pathlib
from collections.abc import Iterable

from fl_sketch.core import files
from fl_sketch.network import frames
from fl_sketch.network.frames import Frame

FOLDER = "ends"  # a file for each site


class Ends:
    """An END for each site that has not answered it."""

    def __init__(self, folder: pathlib.Path | None):
        """Takes the folder with those of an earlier process; None: there is none."""
        self._frames: dict[int, Frame] = {}
        self._folder = folder and folder / FOLDER
        for path in sorted(self._folder.glob("[0-9]*")) if self._folder else ():
            data = path.read_bytes()
            self._frames[int(path.name)] = frames.read(data, len(data))

    def __contains__(self, client: int) -> bool:
        """Returns whether a site has not confirmed an end."""
        return client in self._frames

    def of(self, clients: Iterable[int]) -> dict[int, Frame]:
        """Returns the ends that these sites have not confirmed."""
        return {one: self._frames[one] for one in clients if one in self._frames}

    def add(self, client: int, frame: Frame) -> None:
        """Adds the end of a round that a site was asked in."""
        self._frames[client] = frame

    def drop(self, client: int) -> Frame:
        """Forgets the end of a site, which is returned."""
        if self._folder:
            (self._folder / str(client)).unlink(missing_ok=True)
        return self._frames.pop(client)

    def begin(self, number: int) -> None:
        """Forgets ends of a round that now begins, or of later ones: they are lost."""
        for client, frame in [*self._frames.items()]:
            if frame.round >= number:
                self.drop(client)

    def keep(self) -> None:
        """Writes those that are left to the disk."""
        if not self._folder:
            return
        for client, frame in self._frames.items():
            path = self._folder / str(client)
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                with files.replacing(path) as partial:
                    partial.write_bytes(frames.write(frame))
