"""Start-up kits of NVFlare: certificates and addresses of a server and its sites.

A site runs the code that its owner has installed: kits allow the class of this package
that answers frames, jobs bring no code, and the site's policy refuses those that do.
"""

import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from fl_sketch.network import identities, site_file

PROJECT, ADMIN, ROLE = "fl_sketch", "admin@fl-sketch.org", "project_admin"
CLASSES = ("fl_sketch.network.nvflare.",)  # what a site lets a job build
COLLAB = "nvflare.collab.runtime."  # NVFlare's own classes that call these
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
RESOURCES, DEFAULTS = "resources.json", "resources.json.default"
SERVER = "server"  # as NVFlare calls it in a job
POLICY = "authorization.json"  # of NVFlare: what who submits jobs may do at a site
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
CODE = ("byoc", "shell_commands", "server-predeployed-flwr")  # bring or run code
PORT = 8002
SAMPLE = """\
# What this site lends: docs/network.md has all keys.
data = "data.npz"        # train_inputs and train_targets, next to this file
epsilon_in_a_run = 0.0   # the most that one run may spend; 0: no limit
epsilon_in_all = 0.0     # the most that all runs together may spend; 0: no limit
delta = 1e-5             # the largest delta of these
# privacy.noise that it accepts; with central the coordinator sees plain messages
noises = ["central", "skellam"]
# cohort.sampling that it accepts; the coordinator knows the cohorts of the first two
samplings = ["poisson", "fixed", "everyone"]
smallest_sum = 2         # the fewest sites in a masked sum; more if some may collude
algorithms = []          # those that it takes part in; empty: all of the package
tells = []               # may be told if a run asks, without noise: "size", "measured"
"""


class Kits(NamedTuple):
    """The folders of the kits."""

    server: pathlib.Path
    admin: pathlib.Path
    sites: dict[str, pathlib.Path]

    def lines(self) -> list[str]:
        """Returns a line on each kit, for its owner."""
        starting = {"the server": self.server, **self.sites}.items()
        return [
            *(f"{name}: {place}; there: startup/start.sh" for name, place in starting),
            f"the coordinator: {self.admin}; --kits={self.admin.parents[2]} needs it",
        ]


def require_names(names: Sequence[str]) -> None:
    """Raises unless these can be names of sites."""
    wrong = [one for one in names if not NAME.fullmatch(one) or one == SERVER]
    if wrong or len({*names}) != len(names) or not names:
        what = f"different names of letters, digits, _ and -, and not {SERVER}"
        msg = f"Expected sites to be {what}, got {','.join(names)!r}."
        raise ValueError(msg)


def make(
    folder: pathlib.Path,
    names: Sequence[str],
    host: str,
    ports: Sequence[int] = (PORT,),
    through: int = 0,
    classes: Sequence[str] = CLASSES,
) -> Kits:
    """Returns new kits below a folder, or those that it has.

    Args:
      folder: where they are made.
      names: the names of the sites.
      host: the name by which sites find the server.
      ports: the port of the server, and of its administrator if that is another.
      classes: the beginnings of the names of what a job may build.
      through: the port of a relay by which sites reach the server; 0: there is none.

    Raises:
      ValueError: in one line, for names that sites cannot have, for a folder with other
        kits, or where NVFlare is not installed or fails.
    """
    require_names(names)
    kits = _below(folder, names, host)
    written = [place / "local" / POLICY for place in kits.sites.values()]  # at the end
    if not all(path.exists() for path in (kits.server, *written)):
        if (folder / PROJECT).exists():
            msg = (
                f"Expected no other kits in {folder / PROJECT}, got some: use another "
            )
            raise ValueError(msg + "folder, or delete them.")
        folder.mkdir(parents=True, exist_ok=True)
        project = folder / "project.yml"
        project.write_text(json.dumps(_project(names, host, ports, through), indent=1))
        _provision(project, folder)
        for place in (kits.server, *kits.sites.values()):
            _edited(place, classes)
        identities.write({n: place / "local" for n, place in kits.sites.items()})
        for place in kits.sites.values():
            path = place / "local" / site_file.FILE
            if not path.exists():
                path.write_text(SAMPLE)
            rights = dict.fromkeys(RIGHTS, "any") | dict.fromkeys(CODE, "none")
            policy = {"format_version": "1.0", "permissions": {ROLE: rights}}
            text = json.dumps(policy, indent=2)
            (place / "local" / POLICY).write_text(text)
    return kits


def found(folder: str, names: Sequence[str], host: str) -> Kits:
    """Returns the kits of a folder, of which the coordinator has at least its own."""
    kits = _below(pathlib.Path(folder), names, host)
    if not kits.admin.is_dir():
        msg = f"Expected the coordinator's kit in {kits.admin}, got none."
        raise ValueError(msg)
    return kits


def _below(folder: pathlib.Path, names: Sequence[str], host: str) -> Kits:
    whole = folder / PROJECT / "prod_00"
    return Kits(whole / host, whole / ADMIN, {name: whole / name for name in names})


def _project(
    names: Sequence[str], host: str, ports: Sequence[int], through: int
) -> dict:
    """Returns the project as NVFlare's provisioner reads it; JSON is YAML."""
    server = {
        "name": host,
        "type": "server",
        "org": PROJECT,
        "fed_learn_port": ports[0],
    }
    if len(ports) > 1:
        server["admin_port"] = ports[1]
    site: dict[str, Any] = {"type": "client", "org": PROJECT}
    if through:
        site["connect_to"] = {"host": "localhost", "port": through}
    sites = [{"name": name, **site} for name in names]
    admin = {"name": ADMIN, "type": "admin", "org": PROJECT, "role": ROLE}
    below = "nvflare.lighter.impl"
    templates = ["master_template.yml", "aws_template.yml", "azure_template.yml"]
    return {
        "api_version": 3,
        "name": PROJECT,
        "description": "Sites of fl_sketch",
        "participants": [server, *sites, admin],
        "builders": [
            {
                "path": f"{below}.workspace.WorkspaceBuilder",
                "args": {"template_file": templates},
            },
            {
                "path": f"{below}.static_file.StaticFileBuilder",
                "args": {"config_folder": "config"},
            },
            {"path": f"{below}.cert.CertBuilder"},
            {"path": f"{below}.signature.SignatureBuilder"},
        ],
    }


def _provision(project: pathlib.Path, folder: pathlib.Path) -> None:
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(project)]
    done = subprocess.run(
        [*command, "-w", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        msg = f"Expected NVFlare to make start-up kits in {folder}, got: {said}"
        raise ValueError(msg)


def _edited(place: pathlib.Path, classes: Sequence[str]) -> None:
    """Limits jobs to the classes they need, and keeps jobs and logs in the kit itself.

    By default all servers of a machine have one folder of jobs, and start each other's,
    and a site sends its log of errors to the server.
    """
    local = place.absolute() / "local"
    said = json.loads((local / DEFAULTS).read_text())
    said["class_allow_list"] = [COLLAB, *classes]
    said["allow_log_streaming"] = False
    if "snapshot_persistor" in said:  # of a server
        storage = said["snapshot_persistor"]["args"]["storage"]
        storage["args"]["root_dir"] = str(place.absolute() / "snapshots")
        (manager,) = (one for one in said["components"] if one["id"] == "job_manager")
        manager["args"]["uri_root"] = str(place.absolute() / "jobs")
    (local / RESOURCES).write_text(json.dumps(said, indent=2))
