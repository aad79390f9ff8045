"""What crossed the wire, as frames have it: payloads, and frames with their headers.

Payloads are what the ledger of a run counts. Keys and shares of secure sums count as
frames alone. A frame that was sent again counts again.
"""

import json
import pathlib
from collections.abc import Mapping

from fl_sketch.core import files
from fl_sketch.network import frames
from fl_sketch.network.coordinator import Send
from fl_sketch.network.frames import Kind

FILE = "bytes.json"
UNCOUNTED = (Kind.SUM, Kind.PART)


class Counted:
    """A `Send` that counts bytes, and writes their sums to a file after each."""

    def __init__(self, send: Send, path: pathlib.Path):
        """Takes what sends frames, and the file, which goes on where it stands."""
        self._send, self._path = send, path
        names = ("payload_up", "payload_down", "frames_up", "frames_down", "exchanges")
        self.totals: dict[str, int] = {name: 0 for name in names}
        if path.exists():
            self.totals |= json.loads(path.read_text())

    def __call__(
        self, data: Mapping[int, bytes], seconds: float
    ) -> Mapping[int, bytes]:
        """Returns the answers to frames that came within some seconds."""
        came = self._send(data, seconds)
        for way, sent in {"down": data, "up": came}.items():
            whole = [
                one
                for one in sent.values()
                if len(one) >= frames.overhead(0) and one[5] not in UNCOUNTED
            ]
            self.totals[f"payload_{way}"] += sum(map(frames.payload_size, whole))
            self.totals[f"frames_{way}"] += sum(map(len, sent.values()))
        self.totals["exchanges"] += 1
        files.write_text(self._path, json.dumps(self.totals))
        return came
