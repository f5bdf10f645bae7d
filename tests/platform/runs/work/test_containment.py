"""What holds the rollouts of a run back: operator, platform and config decide, and the one that gives less counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osmosis_ai.config.execution import ExecutionSection, read_execution
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.config import PlatformConfig, from_environment
from osmosis_ai.platform.ray_cluster import RayCluster
from osmosis_ai.platform.runs.execute.worker_process import worker_environment
from osmosis_ai.platform.runs.work import containment, worker
from osmosis_ai.platform.runs.work.containment import RunContainment, contain
from osmosis_ai.platform.runs.work.inputs import RunInputs
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.sandbox import IsolationUnavailableError, Network, SandboxCapability
from tests.platform.platform_parts import PlatformServices
from tests.platform.runs.desk.desk_workers import DeskWorker, claim, offer, pool_token, submitted

ABSENT = SandboxCapability(problem="bubblewrap is not installed", remedy="install it")


def has_sandbox(patch: pytest.MonkeyPatch, *, is_there: bool = True) -> None:
    found = SandboxCapability(Path("/bin/bwrap")) if is_there else ABSENT
    patch.setattr(containment, "check_sandbox", lambda home: found)


def contained(home: Path, asks: ExecutionSection, *, hands_out_keys: bool = False, **settings: str) -> Any:
    """Return how a machine with these settings holds back a run that asks for ``asks``, as its worker reads it."""
    of_machine = from_environment({"OSMOSIS_HOME": str(home), **settings})
    config = from_environment(worker_environment({}, of_machine))
    return contain(config, WorkingDirectory(home / "runs", "r"), "w", asks, hands_out_keys=hands_out_keys)


@pytest.mark.parametrize(
    ("machine", "asked", "isolation", "network"),
    [
        ({}, None, "auto", "host"),
        ({}, "none", "auto", "none"),
        ({"OSMOSIS_NETWORK": "none"}, None, "auto", "none"),
        ({"OSMOSIS_NETWORK": "none"}, "host", "auto", "none"),
        ({"OSMOSIS_NETWORK": "host"}, "none", "auto", "none"),
        # Less of a network needs a sandbox, whatever else the machine is set to.
        ({"OSMOSIS_ISOLATION": "off"}, "none", None, "none"),
    ],
)
def test_the_narrower_network_counts_and_brings_a_sandbox_with_it(
    machine: dict[str, str],
    asked: Network | None,
    isolation: str | None,
    network: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_sandbox(monkeypatch)
    asks = ExecutionSection.model_validate({"network": asked, "isolation": isolation})
    held = contained(tmp_path, asks, **machine)
    assert held.sandbox is not None and held.sandbox.network == network
    with held.sandbox.command(["true"], cwd=tmp_path, writable=[]).start({}) as begun:
        command = begun.command
    assert ("--unshare-net" in command) == (network == "none")
    assert ("reach the run's model alone" in held.line.message) == (network == "none")


def test_a_machine_without_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_sandbox(monkeypatch, is_there=False)
    monkeypatch.setattr("socket.gethostname", lambda: "node-3")
    with pytest.raises(
        IsolationUnavailableError, match=r'`network = "none"` needs a sandbox, and'
    ) as refused:
        contained(tmp_path, ExecutionSection(network="none"))
    assert refused.value.hint == "install it"
    with pytest.raises(IsolationUnavailableError) as refused:
        contained(tmp_path, ExecutionSection(isolation="required"))
    ended = worker._failed(refused.value)
    assert (ended.outcome, ended.is_infrastructure) == ("failed", False), "no other try would help"
    assert ended.error is not None
    assert "on the machine 'node-3': bubblewrap is not installed; install it." in ended.error


@pytest.mark.parametrize(
    ("settings", "asked", "network"),
    [({}, None, "none"), ({}, "host", "none"), ({"OSMOSIS_NETWORK": "host"}, None, "host")],
)
def test_where_the_machine_hands_out_keys_rollouts_reach_its_metadata_only_if_the_operator_says_so(
    settings: dict[str, str],
    asked: Network | None,
    network: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_sandbox(monkeypatch)
    asks = ExecutionSection(network=asked)
    held = contained(tmp_path, asks, hands_out_keys=True, **settings)
    assert held.sandbox is not None and held.sandbox.network == network
    assert ("OSMOSIS_NETWORK=host" in held.line.message) == (network == "none")
    has_sandbox(monkeypatch, is_there=False)
    if network == "none":
        with pytest.raises(IsolationUnavailableError):
            contained(tmp_path, asks, hands_out_keys=True, **settings)


def test_a_network_that_there_is_not_is_refused_at_the_start() -> None:
    with pytest.raises(OsmosisError, match="OSMOSIS_NETWORK must be one of host, none, not 'off'"):
        from_environment({"OSMOSIS_NETWORK": "off"})


# -- what a platform demands of machines that are set otherwise -----------------------------------


@pytest.fixture
def config(config: PlatformConfig, request: pytest.FixtureRequest) -> PlatformConfig:
    return replace(config, **getattr(request, "param", {}))


def on_another_machine(owner: DeskWorker, home: Path, **settings: str) -> RunContainment:
    """Return how a machine holds back the rollouts of a run that it has claimed."""
    machine = from_environment({"OSMOSIS_HOME": str(home), **settings})
    channel: Any = SimpleNamespace(assignment=owner.assignment, run=owner.assignment.run)
    inputs = RunInputs(machine, channel, WorkingDirectory(home / "runs", owner.run_id))
    asks = read_execution(owner.assignment.run.request.get("advanced_config"))
    asked: Any = SimpleNamespace(experiment=SimpleNamespace(entrypoint="main.py"), execution=asks)
    held = inputs.containment(asked)
    assert held is not None
    return held


@pytest.mark.parametrize("config", [{"network": "none"}], indirect=True)
@pytest.mark.parametrize("settings", [{}, {"OSMOSIS_NETWORK": "host"}, {"OSMOSIS_ISOLATION": "off"}])
def test_a_platform_without_a_network(
    api: TestClient,
    services: PlatformServices,
    settings: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_sandbox(monkeypatch)
    submitted(api, advanced_config={"execution": {"pool": "gpu", "network": "host"}})
    assert claim(services, pool_token(services), offer(sandbox=False)) is None, "it would only fail there"
    owner = DeskWorker.claims(services, "gpu", sandbox=True)
    held = on_another_machine(owner, tmp_path / "machine", **settings)
    assert held.sandbox is not None and held.sandbox.network == "none"


ON_RAY = {"ray": RayCluster("http://127.0.0.1:8265"), "isolation": "required"}


@pytest.mark.parametrize("config", [ON_RAY], indirect=True)
def test_a_platform_that_requires_a_sandbox_requires_it_of_the_nodes_of_its_cluster(
    api: TestClient, services: PlatformServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_sandbox(monkeypatch, is_there=False)
    node = DeskWorker.claims(services, run_id=submitted(api)["id"], isolation="off")
    with pytest.raises(IsolationUnavailableError, match="isolation is required, and rollouts cannot be"):
        on_another_machine(node, tmp_path / "node", OSMOSIS_ISOLATION="off")
    submitted(api, advanced_config={"execution": {"pool": "gpu"}})
    # What the machines of a pool may is up to the operator of the pool: some are made for what no sandbox allows.
    machine = DeskWorker.claims(services, "gpu", sandbox=False, isolation="off")
    held = on_another_machine(machine, tmp_path / "machine", OSMOSIS_ISOLATION="off")
    assert not held.isolation.is_sandboxed
