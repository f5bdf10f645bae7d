"""What a run's rollouts reach is decided by the operator and by the config, and the one that gives less counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.config import PlatformConfig, from_environment
from osmosis_ai.platform.runs.execute.worker_process import worker_environment
from osmosis_ai.platform.runs.work import containment, worker
from osmosis_ai.platform.runs.work.containment import contain
from osmosis_ai.platform.runs.working_directory import WorkingDirectory
from osmosis_ai.sandbox import IsolationUnavailableError, Network, SandboxCapability


def config_of(home: Path, **settings: str) -> PlatformConfig:
    return from_environment({"OSMOSIS_HOME": str(home), **settings})


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
    monkeypatch.setattr(containment, "check_sandbox", lambda home: SandboxCapability(Path("/bin/bwrap")))
    # As a worker reads it, which has it from the platform.
    config = from_environment(worker_environment({}, config_of(tmp_path, **machine)))
    asks = ExecutionSection.model_validate({"network": asked, "isolation": isolation})
    held = contain(config, WorkingDirectory(tmp_path / "runs", "r"), "w", asks)
    assert held.sandbox is not None and held.sandbox.network == network
    with held.sandbox.command(["true"], cwd=tmp_path, writable=[]).start({}) as begun:
        command = begun.command
    assert ("--unshare-net" in command) == (network == "none")
    assert ("reach the run's model alone" in held.line.message) == (network == "none")


def test_a_run_without_a_network_does_not_run_where_nothing_can_be_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = SandboxCapability(problem="bubblewrap is not installed", remedy="install it")
    monkeypatch.setattr(containment, "check_sandbox", lambda home: absent)
    asks = ExecutionSection(network="none")
    with pytest.raises(
        IsolationUnavailableError, match=r'`network = "none"` needs a sandbox, and'
    ) as refused:
        contain(config_of(tmp_path), WorkingDirectory(tmp_path / "runs", "r"), "w", asks)
    assert refused.value.hint == "install it"


def test_a_node_without_a_sandbox_fails_a_run_that_needs_one_and_is_named_with_what_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = SandboxCapability(problem="bubblewrap is not installed", remedy="install it")
    monkeypatch.setattr(containment, "check_sandbox", lambda home: absent)
    monkeypatch.setattr("socket.gethostname", lambda: "node-3")
    with pytest.raises(IsolationUnavailableError) as refused:
        contain(
            config_of(tmp_path),
            WorkingDirectory(tmp_path / "runs", "r"),
            "w",
            ExecutionSection(isolation="required"),
        )
    ended = worker._failed(refused.value)
    assert (ended.outcome, ended.is_infrastructure) == ("failed", False), "no other try would help"
    assert ended.error == (
        "isolation is required, and rollouts can not be sandboxed on the machine 'node-3': bubblewrap is not installed; "
        "install it."
    )


@pytest.mark.parametrize(
    ("said", "asked", "network"), [(None, None, "none"), (None, "host", "none"), ("host", None, "host")]
)
def test_where_the_machine_hands_out_keys_rollouts_reach_its_metadata_only_if_the_operator_says_so(
    said: str | None,
    asked: Network | None,
    network: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(containment, "check_sandbox", lambda home: SandboxCapability(Path("/bin/bwrap")))
    config = config_of(tmp_path, **({"OSMOSIS_NETWORK": said} if said else {}))
    directory, asks = WorkingDirectory(tmp_path / "runs", "r"), ExecutionSection(network=asked)
    held = contain(config, directory, "w", asks, hands_out_keys=True)
    assert held.sandbox is not None and held.sandbox.network == network
    assert ("OSMOSIS_NETWORK=host" in held.line.message) == (network == "none")
    absent = SandboxCapability(problem="bubblewrap is not installed", remedy="install it")
    monkeypatch.setattr(containment, "check_sandbox", lambda home: absent)
    if network == "none":
        with pytest.raises(IsolationUnavailableError) as refused:
            contain(config, directory, "w", asks, hands_out_keys=True)
        assert "OSMOSIS_NETWORK=host says that rollouts may reach it" in (refused.value.hint or "")


def test_a_network_that_there_is_not_is_refused_at_the_platforms_start(tmp_path: Path) -> None:
    with pytest.raises(OsmosisError, match="OSMOSIS_NETWORK must be one of host, none, and is 'off'"):
        config_of(tmp_path, OSMOSIS_NETWORK="off")
