"""What start-up kits let the holder of the administrator's kit do at a site."""

import contextlib
import importlib.util
import json

import pytest

from fl_sketch.network import kits

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nvflare") is None,
    reason="NVFlare makes the kits: pip install fl_sketch[nvflare]",
)
ROLES = ("project_admin", "org_admin", "lead", "member")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return kits.make(tmp_path_factory.mktemp("kits"), ["a", "b"], "localhost")


def may(place, role, right):
    """Returns what NVFlare's own evaluation of a site's policy says."""
    from nvflare.fuel.sec.authz import AuthzContext, Person
    from nvflare.security.security import FLAuthorizer

    policy = json.loads((place / "local" / kits.POLICY).read_text())
    person = Person(kits.ADMIN, kits.PROJECT, role)
    context = AuthzContext(right, person, person)
    return FLAuthorizer(kits.PROJECT, policy).authorize(context)[0]


@pytest.mark.parametrize("right", ["byoc", "cat", "ls", "shell_commands"])
def test_no_one_may_bring_code_to_a_site_or_read_its_files(right, made):
    for place in made.sites.values():
        assert not any(may(place, role, right) for role in ROLES)


def test_a_job_that_brings_code_is_refused_and_one_that_does_not_is_taken(made):
    """By NVFlare's own check of a job at a site."""
    from nvflare.apis.app_validation import AppValidationKey
    from nvflare.fuel.sec.authz import AuthorizationService
    from nvflare.private.fed.utils.app_authz import AppAuthzService
    from nvflare.security.security import FLAuthorizer

    policy = json.loads((made.sites["a"] / "local" / kits.POLICY).read_text())
    person = kits.ADMIN, kits.PROJECT, kits.ROLE
    before = AuthorizationService.the_authorizer
    AuthorizationService.the_authorizer = FLAuthorizer(kits.PROJECT, policy)
    try:
        own = AppAuthzService.authorize_app_info({}, *person)
        brought = {AppValidationKey.BYOC: True}
        code = AppAuthzService.authorize_app_info(brought, *person)
    finally:
        AuthorizationService.the_authorizer = before
    assert own == (True, "") and code == (False, "BYOC not permitted")
    assert may(made.sites["a"], kits.ROLE, "submit_job")


@pytest.mark.parametrize(
    ("path", "built"),
    [
        ("fl_sketch.network.nvflare.Lending", True),
        ("nvflare.collab.runtime.executor.CollabExecutor", True),
        ("nvflare.app_common.np.np_trainer.NPTrainer", False),
        ("nvflare.app_common.logging.job_log_streamer.JobLogStreamer", False),
        ("fl_sketch.network.nvflare_other.Lending", False),
    ],
)
def test_a_site_builds_what_a_run_needs_and_nothing_else(path, built, made):
    """By NVFlare's own check of each component, on the site's resources."""
    from nvflare.apis.fl_exception import UnsafeComponentError
    from nvflare.app_common.widgets import component_path_authorizer
    from nvflare.fuel.utils.config_service import ConfigService

    checks = component_path_authorizer.ComponentPathAuthorizer()
    resources = json.loads((made.sites["a"] / "local" / kits.RESOURCES).read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigService, "get_section", lambda _: resources)
        refused = pytest.raises(UnsafeComponentError, match="allow_list")
        with contextlib.nullcontext() if built else refused:
            checks.authorize_component_config({"path": path})


def test_sites_send_no_logs(made):
    for place in made.sites.values():
        resources = json.loads((place / "local" / kits.RESOURCES).read_text())
        assert resources["allow_log_streaming"] is False


def test_kits_are_never_made_anew_over_others(made):
    """Certificates that sites have would be lost."""
    folder = made.server.parents[2]
    before = sorted(folder.rglob("*"))
    with pytest.raises(ValueError, match="Expected no other kits in .*delete them"):
        kits.make(folder, ["a", "b", "c"], "localhost")
    assert sorted(folder.rglob("*")) == before
    assert kits.make(folder, ["a", "b"], "localhost") == made


def test_a_coordinator_needs_its_own_kit_alone(made, tmp_path):
    place = tmp_path / made.admin.relative_to(made.server.parents[2])
    with pytest.raises(
        ValueError, match="Expected the coordinator's kit in .* got none"
    ):
        kits.found(str(tmp_path), ["a", "b"], "localhost")
    place.mkdir(parents=True)
    assert kits.found(str(tmp_path), ["a", "b"], "localhost").admin == place


def test_kits_that_were_made_by_half_are_not_taken(tmp_path, monkeypatch):
    """They would lack what keeps a site from taking jobs with code."""

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(kits, "_edited", stopped)
    with pytest.raises(KeyboardInterrupt):
        kits.make(tmp_path, ["a", "b"], "localhost")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="Expected no other kits in"):
        kits.make(tmp_path, ["a", "b"], "localhost")
