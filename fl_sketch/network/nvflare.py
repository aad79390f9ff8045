"""An adapter to NVFlare's Collab API, which carries frames between machines.

NVFlare brings certificates, reconnecting and jobs. A site's process stays for a whole
job, so that programs are compiled once. What is sent is a frame in each direction.
"""

import concurrent.futures
import contextlib
import contextvars
import io
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nvflare.collab import (  # pyright: ignore[reportMissingImports]
    CollabRecipe,
    collab,
)

import fl_sketch
from fl_sketch.data.examples import Splits
from fl_sketch.network import hosting, job, kits, site_file
from fl_sketch.network.coordinator import Rules
from fl_sketch.network.site import Site

JOB = "fl_sketch"
LOOK = 5.0  # seconds between looks at a job


class Coordinating:
    """What runs in the server's job: the run in a folder of its machine."""

    def __init__(self, workdir: str, sites: list[str]):
        """Takes the folder, and the names of the sites, in the order of clients."""
        self.workdir, self.sites = workdir, sites

    @collab.main
    def main(self) -> None:
        """Plays the run."""
        hosting.play(pathlib.Path(self.workdir), self._send)

    def _send(self, data: Mapping[int, bytes], seconds: float) -> dict[int, bytes]:
        """Returns the answers to frames that came within some seconds."""
        proxies = {proxy.name: proxy for proxy in collab.clients}
        came: dict[int, bytes] = {}
        with concurrent.futures.ThreadPoolExecutor(len(data)) as pool:
            calls = {
                pool.submit(
                    contextvars.copy_context().run,
                    _asked,
                    proxies.get(self.sites[client]),
                    frame,
                    seconds,
                ): client
                for client, frame in data.items()
            }
            for call in concurrent.futures.as_completed(calls):
                answer = call.result()
                if isinstance(answer, bytes | bytearray):
                    came[calls[call]] = bytes(answer)
        if collab.is_aborted:  # then no site can answer any more
            msg = (
                "Expected NVFlare to keep the job, got its end, as when a process of a "
                "site dies: log.txt in the server's kit has the reason. To continue, "
                "run the same command again."
            )
            raise ValueError(msg)
        return came


def _asked(proxy: Any, frame: bytes, seconds: float) -> Any:
    """Returns a site's answer to a frame; None: there was none."""
    if proxy is None:
        return None
    try:
        return proxy(timeout=seconds).exchange(frame)
    except Exception:  # of NVFlare, or of its site: the coordinator says who is missing
        return None


class Lending:
    """What runs in a site's job: it answers frames."""

    def __init__(self):
        """Makes the site when the first frame comes."""
        self._site: Site | None = None

    @collab.publish
    def exchange(self, frame: bytes) -> bytes:
        """Returns the answer to a frame of the server; other sites may not ask."""
        if collab.caller != kits.SERVER:
            msg = f"Expected a frame of the server, got one of {collab.caller}."
            raise PermissionError(msg)
        if self._site is None:
            place = pathlib.Path(collab.workspace.get_site_config_dir())
            lent = site_file.read(place / site_file.FILE)
            self._site = Site(lambda terms: job.join(lent, terms, place))
        return self._site.receive(bytes(frame))


class Recipe(CollabRecipe):
    """A job that brings no code: every site has the package itself."""

    def finalize(self) -> Any:
        """Returns the job, without copies of this package."""
        job = super().finalize()
        job.set_app_packages([fl_sketch.__name__])
        return job

    @staticmethod
    def _user_source_entries(objs) -> list:
        """Returns no files."""
        del objs
        return []


def play(
    config: Any,
    splits: Splits,
    workdir: pathlib.Path,
    admin: pathlib.Path,
    names: Sequence[str],
    *,
    rules: Rules,
    asks: Sequence[str],
    say: Callable[[str], None] = print,
) -> None:
    """Runs a config with a server and sites that are started.

    Args:
      config: a config as `configs/default.py` has it; a client is a site.
      splits: the test data, and the number of classes.
      workdir: the folder of the run, on the server's machine.
      admin: the kit of who may submit runs.
      names: the names of the sites, in the order of clients.
      rules: when a round goes on without a site.
      asks: what sites are asked to tell, see `site_file.Lent.tells`.
      say: prints what the run prints.

    Raises:
      ValueError: in one line, for a run that did not end well.
    """
    job.of_coordinator(config, splits)  # says what a config may not say
    hosting.describe(workdir, config, splits, names, rules, asks)
    server = Coordinating(str(workdir.absolute()), [*names])
    handle = submit_job(server, Lending(), admin, rules.smallest)
    hosting.follow(workdir, watched(handle), say)


def submit_job(server: Any, site: Any, admin: pathlib.Path, smallest: int) -> Any:
    """Submits a job of objects for the server and the sites; returns its handle."""
    from nvflare.recipe.prod_env import (  # pyright: ignore[reportMissingImports]
        ProdEnv,
    )

    recipe = Recipe(JOB, server=server, client=site, min_clients=smallest)
    env = ProdEnv(str(admin), login_timeout=60.0, username=admin.name)
    with contextlib.redirect_stdout(io.StringIO()):
        return recipe.execute(env)


def watched(run: Any) -> Callable[[], bool]:
    """Returns what says whether a job may still be running, asked every few seconds."""
    last = [time.monotonic(), True]

    def playing() -> bool:
        if time.monotonic() - last[0] > LOOK:
            with contextlib.redirect_stdout(
                io.StringIO()
            ):  # it prints a line each time
                status = str(run.get_status())
            last[:] = [time.monotonic(), not status.startswith("FINISHED")]
        return bool(last[1])

    return playing
