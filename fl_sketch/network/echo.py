"""A job that times exchanges: sites send back what they get, and compute nothing."""

import json
import pathlib
import time
from collections.abc import Mapping

from nvflare.collab import collab  # pyright: ignore[reportMissingImports]

from fl_sketch.network.nvflare import Coordinating, submit_job, watched

FILE = "echo.jsonl"
CLASSES = ("fl_sketch.network.echo.",)
PATIENCE = 600.0  # seconds for an exchange


class Asking(Coordinating):
    """What runs in the server's job."""

    def __init__(self, workdir: str, sites: list[str], repeats: Mapping[str, int]):
        """Takes the folder, the sites, and the exchanges of each number of bytes."""
        super().__init__(workdir, sites)
        self.repeats = dict(repeats)

    @collab.main
    def main(self) -> None:
        """Writes when each exchange began and ended, after one that is not timed."""
        with open(pathlib.Path(self.workdir) / FILE, "w", buffering=1) as file:
            for size, count in self.repeats.items():
                asked = dict.fromkeys(range(len(self.sites)), bytes(int(size)))
                for _ in range(count + 1):
                    begin = time.time()
                    came = self._send(asked, PATIENCE)
                    end, right = time.time(), came == asked
                    row = {"bytes": int(size), "begin": begin, "end": end}
                    file.write(json.dumps(row | {"right": right}) + "\n")


class Echoing:
    """What runs in a site's job."""

    @collab.publish
    def exchange(self, frame: bytes) -> bytes:
        """Returns what it gets."""
        return frame


def times(
    workdir: pathlib.Path, admin: pathlib.Path, sites: list[str], repeats: Mapping
) -> list[dict]:
    """Returns when exchanges began and ended, by sites that are started.

    Args:
      workdir: a folder for the job.
      admin: the kit of who may submit jobs.
      sites: the names of the sites.
      repeats: the number of exchanges by the bytes of a message, each way.

    Raises:
      ValueError: in one line, if a message did not come back.
    """
    own = {str(size): count for size, count in repeats.items()}
    server = Asking(str(workdir.absolute()), sites, own)
    playing = watched(submit_job(server, Echoing(), admin, len(sites)))
    while playing():
        time.sleep(0.2)
    path = workdir / FILE
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    if len(rows) != sum(count + 1 for count in repeats.values()) or not all(
        row["right"] for row in rows
    ):
        msg = f"Expected every message to come back, got {len(rows)} exchanges: {path}."
        raise ValueError(msg)
    return rows
