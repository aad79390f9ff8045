"""Seconds of an exchange with sites on one machine, against plain sockets with TLS.

An exchange sends a message to every site, and ends when all have sent it back. Sites
are processes, and compute nothing. Both ways use mutual TLS and the same certificates.
"""

import concurrent.futures
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

from fl_sketch.core import validate
from fl_sketch.experiments.bench import tls_echo
from fl_sketch.experiments.measurements import Column, Table
from fl_sketch.network import local_sites
from fl_sketch.network.kits import Kits
from fl_sketch.network.tap import Tap

SIZES = (10**3, 10**4, 10**5, 10**6, 10**7, 10**8)


class Row(NamedTuple):
    """The seconds of exchanges.

    Attributes:
      way: "nvflare" or "tls".
      bytes: of the message to a site, and of that back.
      seconds: the median over the exchanges.
      slowest: the largest.
      passed: the bytes that pass for one site, both ways, beyond twice `bytes`; None:
        not measured.
    """

    way: Annotated[str, Column("8")]
    sites: Annotated[int, Column("5d")]
    bytes: Annotated[int, Column("11,d")]
    seconds: Annotated[float, Column("10.4f")]
    slowest: Annotated[float, Column("10.4f")]
    exchanges: Annotated[int, Column("9d")]
    passed: Annotated[int | None, Column("12,d", "bytes beyond")]


TABLE = Table.of(Row)


def repeats_of(size: int) -> int:
    """Returns how many exchanges of a message are timed."""
    return 21 if size <= 10**6 else 5 if size <= 10**7 else 3


def run(sites: Sequence[int], sizes: Sequence[int]) -> Iterator[Row]:
    """Yields rows for each number of sites; bytes on the wire are of the first."""
    validate.at_least_one(**{f"sites[{i}]": one for i, one in enumerate(sites)})
    beyond: dict[int, int] = {}
    for number, count in enumerate(sites):
        names = [f"site_{one}" for one in range(count)]
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            if not number:
                beyond = _beyond(place, names, sizes)
            with _running(place, names) as kits:
                yield from _plain(kits, sizes)
                yield from _engine(place, kits, sizes, beyond)


def _running(place: pathlib.Path, names: Sequence[str], tapped=None):
    from fl_sketch.network import echo

    return local_sites.running(place, names, tapped=tapped, classes=echo.CLASSES)


def _engine(place, kits: Kits, sizes: Sequence[int], beyond) -> Iterator[Row]:
    from fl_sketch.network import echo

    repeats = {size: repeats_of(size) for size in sizes}
    rows = echo.times(place, kits.admin, [*kits.sites], repeats)
    for size in sizes:
        spent = [one["end"] - one["begin"] for one in rows if one["bytes"] == size]
        yield _row("nvflare", kits, size, spent[1:], beyond.get(size))


def _row(way: str, kits: Kits, size: int, spent: list[float], beyond=None) -> Row:
    middle = statistics.median(spent)
    return Row(way, len(kits.sites), size, middle, max(spent), len(spent), beyond)


def _beyond(place, names: Sequence[str], sizes: Sequence[int]) -> dict[int, int]:
    """Returns the bytes that pass for one site in an exchange, beyond the messages."""
    from fl_sketch.network import echo

    passed: list[tuple[float, int]] = []

    def tapped(port: int) -> int:
        return Tap(port, lambda piece: passed.append((time.time(), len(piece)))).port

    with _running(place, names, tapped) as kits:
        rows = echo.times(place, kits.admin, [*kits.sites], dict.fromkeys(sizes, 1))
    found = {}
    for row in rows[1::2]:  # the others are not timed
        here = sum(size for at, size in passed if row["begin"] <= at <= row["end"])
        found[row["bytes"]] = here // len(names) - 2 * row["bytes"]
    return found


def _plain(kits: Kits, sizes: Sequence[int]) -> Iterator[Row]:
    """Yields the rows of plain sockets, with a process for each site."""
    secure = tls_echo.context(kits.server, "server")
    script, begun = tls_echo.__file__, []
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        concurrent.futures.ThreadPoolExecutor(len(kits.sites)) as pool,
    ):
        port = str(listening.getsockname()[1])
        for kit in kits.sites.values():
            begun.append(subprocess.Popen([sys.executable, script, port, str(kit)]))
        ends = [secure.wrap_socket(listening.accept()[0], True) for _ in begun]

        def asked(end: socket.socket, data: bytes) -> bool:
            tls_echo.send(end, data)
            return tls_echo.received(end) == data

        for size in sizes:
            data, spent = bytes(size), []
            for _ in range(repeats_of(size) + 1):
                begin = time.perf_counter()
                assert all(pool.map(asked, ends, [data] * len(ends)))
                spent.append(time.perf_counter() - begin)
            yield _row("tls", kits, size, spent[1:])
        for end in ends:
            tls_echo.send(end, b"")
            end.close()
        for process in begun:
            process.wait()
