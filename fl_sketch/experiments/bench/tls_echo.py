"""A site of plain sockets: sends back what it gets, over mutual TLS.

python fl_sketch/experiments/bench/tls_echo.py PORT KIT

It imports nothing but Python's own modules. A message is its length in 8 bytes, and
its bytes; one of length zero ends the process.
"""

import pathlib
import socket
import ssl
import struct
import sys

LENGTH = struct.Struct("<Q")
PIECE = 2**20


def received(end: socket.socket) -> bytes:
    """Returns the next message."""
    (size,) = LENGTH.unpack(_bytes(end, LENGTH.size))
    return _bytes(end, size)


def send(end: socket.socket, data: bytes) -> None:
    """Sends a message, and waits for nothing."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.sendall(LENGTH.pack(len(data)))
    end.sendall(data)


def _bytes(end: socket.socket, size: int) -> bytes:
    whole, done = bytearray(size), 0
    view = memoryview(whole)
    while done < size:
        count = end.recv_into(view[done : done + PIECE])
        if not count:
            msg = f"Expected {size} bytes, got {done}."
            raise ConnectionError(msg)
        done += count
    return bytes(whole)


def context(kit: pathlib.Path, who: str) -> ssl.SSLContext:
    """Returns the TLS of a start-up kit; `who` is "server" or "client"."""
    side = ssl.PROTOCOL_TLS_SERVER if who == "server" else ssl.PROTOCOL_TLS_CLIENT
    found, place = ssl.SSLContext(side), kit / "startup"
    found.check_hostname = False
    found.verify_mode = ssl.CERT_REQUIRED
    found.load_verify_locations(place / "rootCA.pem")
    found.load_cert_chain(place / f"{who}.crt", place / f"{who}.key")
    return found


def main() -> None:
    """Sends messages back until one is empty."""
    port, kit = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context(kit, "client").wrap_socket(plain) as end,
    ):
        while data := received(end):
            send(end, data)


if __name__ == "__main__":
    main()
