"""NVFlare carries messages between machines: kits, jobs, and one call for a message.

NVFlare brings certificates, mutual TLS and reconnecting. Kits have the certificate and
the address of a server, its sites and an administrator. A job brings no code: each
site has this package itself, its kit allows the classes below alone, and its policy
refuses jobs with code. A site's process stays for a whole job. One that is started
again has no part in a job that runs, so that the coordinator then ends the job between
two rounds, and submits it again.
"""

import concurrent.futures
import contextlib
import contextvars
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict
from nvflare.collab import CollabRecipe, collab  # pyright: ignore
from nvflare.collab.api.exceptions import CollabCallError  # pyright: ignore
from nvflare.fuel.flare_api import api_spec  # pyright: ignore
from nvflare.fuel.flare_api.flare_api import new_secure_session  # pyright: ignore
from nvflare.recipe.prod_env import ProdEnv  # pyright: ignore

import fl_sketch
from fl_sketch.core import files
from fl_sketch.data import npz
from fl_sketch.data.examples import Splits
from fl_sketch.models.losses import KINDS
from fl_sketch.network import job, policy, secure_sum
from fl_sketch.network.coordinator import Rules
from fl_sketch.network.run import FOLDER, run, site_of
from fl_sketch.workdir import checkpoint

PROJECT, ADMIN, ROLE = "fl_sketch", "admin@fl-sketch.org", "project_admin"
CLASSES = ["nvflare.collab.runtime.", "fl_sketch.network.nvflare."]  # in jobs
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
SERVER = "server"  # as NVFlare calls it in a job
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
CODE = ("byoc", "shell_commands", "server-predeployed-flwr")  # bring or run code
TEMPLATES = [f"{one}_template.yml" for one in ("master", "aws", "azure")]
JOB, TEST, LINES = "job.json", "test.npz", "lines"  # in the folder of a run
ABSENT, STOP = "absent", "stop"
PAUSE, LOOK = 0.2, 5.0  # seconds between looks at lines, and at the job
ENDED = "FINISHED"  # begins the status of a job that has ended
RESTARTS = 3  # jobs in a row without a round


class Kits(NamedTuple):
    """The folders of the kits."""

    server: pathlib.Path
    admin: pathlib.Path
    sites: dict[str, pathlib.Path]


class Again(ValueError):
    """A job ends between two rounds, so that another one continues."""


def kits_in(folder: pathlib.Path, names: Sequence[str], host: str) -> Kits:
    """Returns where the kits of a folder are; raises for names of no sites."""
    wrong = [one for one in names if not NAME.fullmatch(one) or one == SERVER]
    if wrong or len({*names}) != len(names) or not names:
        what = f"different names of letters, digits, _ and -, and not {SERVER}"
        msg = f"Expected sites to be {what}, got {','.join(names)!r}."
        raise ValueError(msg)
    kits = folder / PROJECT / "prod_00"
    return Kits(kits / host, kits / ADMIN, {name: kits / name for name in names})


def make_kits(
    folder: pathlib.Path, names: Sequence[str], host: str, ports: Sequence[int] = ()
) -> Kits:
    """Returns new kits below a folder, for sites that find the server as `host`.

    Args:
      ports: the ports of the server and of its administrator; empty: 8002.
    """
    kits = kits_in(folder, names, host)
    if (folder / PROJECT).exists():
        msg = f"Expected no kits in {folder / PROJECT}, got some: use another folder."
        raise ValueError(msg)
    places = zip(("fed_learn_port", "admin_port"), ports or [8002], strict=False)
    people = [{"name": host, "type": "server", **dict(places)}]
    people += [{"name": name, "type": "client"} for name in names]
    people += [{"name": ADMIN, "type": "admin", "role": ROLE}]
    builders = {
        "workspace.WorkspaceBuilder": {"template_file": TEMPLATES},
        "static_file.StaticFileBuilder": {"config_folder": "config"},
        "cert.CertBuilder": {},
        "signature.SignatureBuilder": {},
    }
    project = {
        "api_version": 3,
        "name": PROJECT,
        "description": "Sites of fl_sketch",
        "participants": [one | {"org": PROJECT} for one in people],
        "builders": [
            {"path": f"nvflare.lighter.impl.{name}", "args": args}
            for name, args in builders.items()
        ],
    }
    path = folder / "project.yml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(project, indent=1))  # JSON is YAML
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(path)]
    command += ["-w", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not kits.server.exists():
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        msg = f"Expected NVFlare to make kits in {folder}, got: {said}"
        raise ValueError(msg)
    # By default all servers of a machine have one folder of jobs, and start each
    # other's, and a site sends its log of errors to the server. NVFlare wants absolute
    # paths, and its server works in the folder of its kit, wherever that is by then.
    rights = dict.fromkeys(RIGHTS, "any") | dict.fromkeys(CODE, "none")
    allowed = {"format_version": "1.0", "permissions": {ROLE: rights}}
    for place in (kits.server, *kits.sites.values()):
        local = place / "local"
        said = json.loads((local / "resources.json.default").read_text())
        said |= {"class_allow_list": CLASSES, "allow_log_streaming": False}
        if place == kits.server:
            storage = said["snapshot_persistor"]["args"]["storage"]
            storage["args"]["root_dir"] = "/proc/self/cwd/snapshots"
            (jobs,) = (one for one in said["components"] if one["id"] == "job_manager")
            jobs["args"]["uri_root"] = "/proc/self/cwd/jobs"
        else:
            (local / policy.FILE).write_text(policy.SAMPLE)
            (local / "authorization.json").write_text(json.dumps(allowed, indent=2))
        (local / "resources.json").write_text(json.dumps(said, indent=2))
    secure_sum.write_identities({n: one / "local" for n, one in kits.sites.items()})
    return kits


class Coordinating:
    """What runs in the server's job: the run in a folder of its machine."""

    def __init__(self, workdir: str):
        """Takes the folder of a run, with what `play` wrote."""
        self.workdir = workdir

    @collab.main
    def main(self) -> None:
        """Plays the run, and writes what it prints to a file."""
        place = pathlib.Path(self.workdir)
        folder = place / FOLDER
        said = json.loads((folder / JOB).read_text())
        config, names = ConfigDict(said["config"]), said["names"]
        missing: set[str] = set()

        def before_round() -> None:
            if (folder / STOP).exists():
                msg = "the job is ended between two rounds"
                raise Again(msg)

        def send(data: Mapping[int, bytes], seconds: float) -> dict[int, bytes]:
            came = _asked({names[one]: x for one, x in data.items()}, seconds)
            before = {*missing}
            missing.difference_update(came)
            missing.update(names[one] for one in data if names[one] not in came)
            if missing != before:
                files.write_text(folder / ABSENT, json.dumps(sorted(missing)))
            return {one: came[names[one]] for one in data if names[one] in came}

        with open(folder / LINES, "w", buffering=1) as lines:

            def note(kind: str, text: str) -> None:
                lines.write(json.dumps([kind, text]) + "\n")

            try:
                targets = KINDS[config.model.loss].targets
                test = npz.one_part(folder / TEST, "test", targets)
                facts = {"name": said["name"], "classes": said["classes"]}
                run(
                    config,
                    test._replace(**facts, learnt=()),
                    place,
                    send,
                    names=names,
                    rules=Rules(**said["rules"]),
                    before_round=before_round,
                    say=lambda line: note("line", line),
                )
                note("done", "")
            except Again as error:
                note("again", str(error))
            except BaseException as error:
                kind = type(error).__name__
                note("again" if collab.is_aborted else "failed", str(error) or kind)
                raise
            finally:
                os.fsync(lines.fileno())


def _asked(data: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
    """Returns the answers of sites within some seconds; empty where a site failed."""
    proxies, came = {proxy.name: proxy for proxy in collab.clients}, {}
    if collab.is_aborted:
        msg = "NVFlare ended the job"
        raise Again(msg)

    def ask(name: str, message: bytes) -> bytes | None:
        if name not in proxies:
            return None
        try:
            answer = proxies[name](timeout=seconds).exchange(message)
        except CollabCallError as error:
            return b"" if error.remote_traceback else None
        return bytes(answer) if isinstance(answer, bytes | bytearray) else b""

    with concurrent.futures.ThreadPoolExecutor(len(data)) as pool:
        calls = {
            name: pool.submit(contextvars.copy_context().run, ask, name, one)
            for name, one in data.items()
        }
        came = {name: call.result() for name, call in calls.items()}
    return {name: one for name, one in came.items() if one is not None}


class Taking:
    """What runs in a site's job: the site, which answers messages."""

    def __init__(self):
        """Makes the site when the first message comes."""
        self._site: Any = None

    @collab.publish
    def exchange(self, message: bytes) -> bytes:
        """Returns the answer to a message of the server; other sites may not ask."""
        if collab.caller != SERVER:
            msg = f"Expected a message of the server, got one of {collab.caller}."
            raise PermissionError(msg)
        if self._site is None:
            self._site = site_of(pathlib.Path(collab.workspace.get_site_config_dir()))
        return self._site.receive(bytes(message))


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
    config: ConfigDict,
    splits: Splits,
    workdir: pathlib.Path,
    admin: pathlib.Path,
    names: Sequence[str],
    *,
    rules: Rules,
    say: Callable[[str], None] = print,
) -> None:
    """Runs a config with a server and sites that are started, in one job or several.

    Args:
      workdir: the folder of the run, on the server's machine.
      admin: the kit of who may submit runs.
    """
    job.of_coordinator(config, splits)  # says what a config may not say
    folder = workdir / FOLDER
    folder.mkdir(exist_ok=True)
    test = {"test_inputs": splits.test.inputs, "test_targets": splits.test.targets}
    npz.write(folder / TEST, test)
    said = {
        "config": config.to_dict(),
        "name": splits.name,
        "classes": splits.classes,
        "names": [*names],
        "rules": rules._asdict(),
    }
    files.write_text(folder / JOB, json.dumps(said, indent=2))
    fails = 0
    while fails < RESTARTS:
        done = checkpoint.rounds(workdir / "checkpoints")
        for name in (LINES, ABSENT, STOP):
            (folder / name).unlink(missing_ok=True)
        handle = _submitted(str(workdir.absolute()), admin, rules.smallest)
        try:
            why = follow(folder, handle, say)
        except BaseException:
            _quietly(handle.abort)
            raise
        if not why:
            return
        fails = 0 if checkpoint.rounds(workdir / "checkpoints") != done else fails + 1
        say(f"{why}: the run continues in another job of NVFlare")
    msg = (
        f"Expected NVFlare to keep the job, got its end {RESTARTS} times without a "
        "round: log.txt in the server's kit has the reason. To continue, run the same "
        "command again."
    )
    raise ValueError(msg)


def follow(folder: pathlib.Path, handle: Any, say: Callable[[str], None]) -> str:
    """Prints what a job prints; returns why another one must continue, or ""."""
    rest, place, looked, why = b"", 0, time.monotonic(), ""
    while True:
        status = ""
        if time.monotonic() - looked > LOOK:
            status, looked = _quietly(handle.status), time.monotonic()
            absent = folder / ABSENT
            missing = json.loads(absent.read_text()) if absent.exists() else []
            back = _quietly(handle.without, missing) if missing and not why else []
            if back:
                why = f"{', '.join(back)} was started again and is back"
                (folder / STOP).touch()
        with contextlib.suppress(FileNotFoundError), open(folder / LINES, "rb") as file:
            file.seek(place)
            rest += file.read()
            place = file.tell()
        *lines, rest = rest.split(b"\n")
        for one in lines:
            kind, text = json.loads(one)
            if kind == "line":
                say(text)
            elif kind == "failed":
                raise ValueError(text)
            else:
                while kind == "again" and not _quietly(handle.status).startswith(ENDED):
                    time.sleep(1.0)
                return "" if kind == "done" else why or text
        if status.startswith(ENDED):
            return why or f"NVFlare ended the job ({status})"
        time.sleep(PAUSE)


class _Job:
    """A job that was submitted, of which a server is asked that may be busy."""

    def __init__(self, admin: pathlib.Path, number: str):
        self._admin, self._number = admin, number

    def _ask(self, command: Callable[[Any], Any], unknown: Any) -> Any:
        silent = ConnectionError, api_spec.NoReply, api_spec.NoClientsAvailable
        try:
            session = new_secure_session(self._admin.name, str(self._admin))
            try:
                return command(session)
            finally:
                session.close()
        except (*silent, api_spec.InternalError, api_spec.SessionClosed):
            return unknown

    def status(self) -> str:
        return str(self._ask(lambda one: one.get_job_status(self._number), ""))

    def abort(self) -> None:
        self._ask(lambda one: one.abort_job(self._number), None)

    def without(self, sites: Sequence[str]) -> list[str]:
        def rows(session) -> list[dict]:
            here = {one.name for one in session.get_system_info().client_info}
            asked = [one for one in sites if one in here]
            return session.get_client_job_status(asked) or [] if asked else []

        idle = [one for one in self._ask(rows, []) if one["status"] == "no_jobs"]
        return sorted({one["client_name"] for one in idle} & {*sites})


def _submitted(workdir: str, admin: pathlib.Path, smallest: int) -> _Job:
    """Submits a job for the server and the sites."""
    server, site = Coordinating(workdir), Taking()
    recipe = Recipe(PROJECT, server=server, client=site, min_clients=smallest)
    env = ProdEnv(str(admin), login_timeout=60.0, username=admin.name)
    return _Job(admin, _quietly(recipe.execute, env).get_job_id())


def _quietly(function: Callable, *arguments: Any) -> Any:
    """Calls a function of NVFlare, which prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        return function(*arguments)
