"""What a platform's operator demands holds on machines that are set otherwise: of a pool, and of a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.config.execution import read_execution
from osmosis_ai.platform.config import PlatformConfig, from_environment
from osmosis_ai.platform.ray_cluster import RayCluster
from osmosis_ai.platform.runs.desk.claims import ClaimScope
from osmosis_ai.platform.runs.submit.run_request import RunRequest
from osmosis_ai.platform.runs.work import containment
from osmosis_ai.platform.runs.work.containment import RunContainment
from osmosis_ai.platform.runs.work.inputs import RunInputs
from osmosis_ai.platform.runs.work.run_channel import RunChannel
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.platform.services import PlatformServices
from osmosis_ai.sandbox import IsolationUnavailableError, SandboxCapability
from tests.platform.evaluations import Submits, submit_body
from tests.platform.runs.desk.desk_workers import DeskWorker, offer

submitted = Submits("/api/cli/eval-runs", submit_body).taken
POOL = ClaimScope(pool="gpu")
ABSENT = SandboxCapability(problem="bubblewrap is not installed", remedy="install it")


@pytest.fixture
def config(config: PlatformConfig, request: pytest.FixtureRequest) -> PlatformConfig:
    return replace(config, **request.param)


def on_a_machine_of_its_own(worker: DeskWorker, home: Path, **settings: str) -> RunContainment:
    """Return how a machine holds the rollouts of a run back that it has claimed."""
    machine = from_environment({"OSMOSIS_HOME": str(home), **settings})
    channel = SimpleNamespace(assignment=worker.assignment, run=worker.assignment.run)
    inputs = RunInputs(machine, cast("RunChannel", channel), WorkingDirectory(home / "runs", worker.run_id))
    asks = read_execution(worker.assignment.run.request.get("advanced_config"))
    asked = SimpleNamespace(experiment=SimpleNamespace(entrypoint="main.py"), execution=asks)
    held = inputs.containment(cast("RunRequest", asked))
    assert held is not None
    return held


@pytest.mark.parametrize("config", [{"network": "none"}], indirect=True)
@pytest.mark.parametrize("setting", [{}, {"OSMOSIS_NETWORK": "host"}, {"OSMOSIS_ISOLATION": "off"}])
def test_a_platform_without_a_network_for_rollouts_has_none_on_machines_elsewhere_either(
    api: TestClient,
    services: PlatformServices,
    setting: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(containment, "check_sandbox", lambda home: SandboxCapability(Path("/bin/bwrap")))
    run = submitted(api, advanced_config={"execution": {"pool": "gpu", "network": "host"}})
    assert services.desk.claim(offer(sandbox=False), POOL) is None, "it would only fail there"
    worker = DeskWorker.claims(services, POOL, sandbox=True)
    assert worker.run_id == run["id"]
    held = on_a_machine_of_its_own(worker, tmp_path / "machine", **setting)
    assert held.sandbox is not None and held.sandbox.network == "none"
    assert "reach the run's model alone" in held.line.message


@pytest.mark.parametrize("config", [{"network": "none"}], indirect=True)
def test_a_run_says_that_it_waits_for_a_machine_with_the_sandbox_that_its_platform_demands(
    api: TestClient, services: PlatformServices
) -> None:
    name = submitted(api, advanced_config={"execution": {"pool": "gpu"}})["name"]
    token = services.worker_access.create_token("gpu")[1]
    asked = offer(machine="box-1", sandbox=False, sandbox_problem="no user namespaces", isolation="off")
    scope = services.worker_access.authorize_claim(token, asked)
    assert services.desk.claim(asked, scope) is None
    assert api.get(f"/api/cli/eval-runs/{name}").json()["waits"] == (
        "no known worker of the pool 'gpu' has all that this run asks for: box-1 lacks a sandbox (no user namespaces)."
    )


ON_RAY = {"ray": RayCluster("http://127.0.0.1:8265"), "isolation": "required"}


@pytest.mark.parametrize("config", [ON_RAY], indirect=True)
def test_a_platform_that_requires_a_sandbox_requires_it_of_the_nodes_of_its_cluster(
    api: TestClient, services: PlatformServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containment, "check_sandbox", lambda home: ABSENT)
    run = submitted(api)
    node = DeskWorker.claims(services, ClaimScope(run_id=run["id"]))
    with pytest.raises(IsolationUnavailableError, match="isolation is required, and rollouts can not be"):
        on_a_machine_of_its_own(node, tmp_path / "node", OSMOSIS_ISOLATION="off")
    submitted(api, advanced_config={"execution": {"pool": "gpu"}})
    # What the machines of a pool may, whoever made the pool has said there: some are made for what no sandbox allows.
    machine = DeskWorker.claims(services, POOL, sandbox=False)
    held = on_a_machine_of_its_own(machine, tmp_path / "machine", OSMOSIS_ISOLATION="off")
    assert not held.isolation.is_sandboxed


@pytest.mark.parametrize("config", [{}], indirect=True)
def test_a_platform_that_demands_nothing_leaves_a_machine_what_it_is_set_to(
    api: TestClient, services: PlatformServices, tmp_path: Path
) -> None:
    submitted(api, advanced_config={"execution": {"pool": "gpu"}})
    worker = DeskWorker.claims(services, POOL, sandbox=False)
    held = on_a_machine_of_its_own(worker, tmp_path / "machine", OSMOSIS_ISOLATION="off")
    assert not held.isolation.is_sandboxed
