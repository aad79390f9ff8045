"""A relay between sites and a server on one machine, which shows bytes as they pass.

It sees what anybody on the way sees: encrypted records.
"""

import socket
import threading
from collections.abc import Callable

PIECE = 2**16  # bytes read at once


class Tap:
    """Hands connections to a port on to another port of this machine.

    Attributes:
      port: where it listens.
    """

    port: int

    def __init__(self, to: int, seen: Callable[[bytes], None] = lambda piece: None):
        """Begins to listen.

        Args:
          to: the port of the server.
          seen: is given every piece before it passes. While it waits, nothing passes.
        """
        self._to, self._seen = to, seen
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                site, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._to), 10)
            except OSError:
                site.close()  # the server is not there yet: the site asks again
                continue
            server.settimeout(None)
            for ends in ((site, server), (server, site)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        """Hands on what one end sends until it closes."""
        try:
            while piece := one.recv(PIECE):
                with self._lock:
                    self._seen(piece)
                other.sendall(piece)
        except OSError:
            pass
        for end in (one, other):
            end.close()
