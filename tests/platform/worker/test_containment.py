"""Isolation of a run's rollouts: machine, platform and config decide, and the strictest of them counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osmosis_ai.api.models.workers import FinishRequest
from osmosis_ai.config.execution import ExecutionSection
from osmosis_ai.errors import OsmosisError
from osmosis_ai.platform.config import from_environment
from osmosis_ai.platform.worker import work as work_module
from osmosis_ai.platform.worker.evaluation import EvalWork
from osmosis_ai.platform.worker.process import WorkingDirectory, worker_environment
from osmosis_ai.platform.worker.work import RunContainment, failed
from osmosis_ai.sandbox.isolation import IsolationUnavailableError, SandboxCapability
from tests.platform.worker.fake_platform import assignment

HERE = SandboxCapability(Path("/bin/bwrap"))
ABSENT = SandboxCapability(problem="bubblewrap is not installed", remedy="install it")
REQUIRED = {"OSMOSIS_ISOLATION": "required"}
OFF, HOST, NONE = ({"OSMOSIS_ISOLATION": "off"}, {"OSMOSIS_NETWORK": "host"}, {"OSMOSIS_NETWORK": "none"})


@pytest.fixture
def capability(monkeypatch: pytest.MonkeyPatch) -> list[SandboxCapability]:
    """What the sandbox of the machine can do; the last one counts."""
    found = [HERE]
    monkeypatch.setattr(work_module, "check_sandbox", lambda home: found[-1])
    return found


def contained(
    home: Path, settings: dict[str, str], has_keys: bool, assigned: dict[str, str], asked: dict[str, Any]
) -> RunContainment:
    """Return how a machine with these settings isolates a run, as its worker reads them."""
    machine = from_environment({"OSMOSIS_HOME": str(home), **settings})
    config = from_environment(worker_environment({}, machine))
    reporter: Any = SimpleNamespace(assignment=assignment(**assigned))
    work = EvalWork(config, reporter, WorkingDirectory(home / "runs", "r"), has_bucket_keys=has_keys)
    experiment = SimpleNamespace(entrypoint="main.py")
    request: Any = SimpleNamespace(experiment=experiment, execution=ExecutionSection.model_validate(asked))
    work.contain(request)
    assert work.containment is not None
    return work.containment


@pytest.mark.parametrize(
    ("settings", "has_keys", "assigned", "asked", "network"),
    [
        ({}, False, {}, {}, "host"),
        ({}, False, {}, {"network": "none"}, "none"),
        (NONE, False, {}, {}, "none"),
        (NONE, False, {}, {"network": "host"}, "none"),
        (HOST, False, {}, {"network": "none"}, "none"),
        # Less of a network needs a sandbox, whatever else the machine is set to.
        (OFF, False, {}, {"network": "none", "isolation": None}, "none"),
        (OFF, False, {}, {"isolation": None}, None),
        (OFF, False, {}, {"isolation": "required"}, "host"),
        (OFF, False, {}, {"isolation": "auto"}, "host"),
        (REQUIRED, False, {}, {"isolation": "auto"}, "host"),
        # A machine that gives the bucket's credentials to every program.
        ({}, True, {}, {}, "none"),
        ({}, True, {}, {"network": "host"}, "none"),
        (HOST, True, {}, {}, "host"),
        # What the platform demands of workers on other machines.
        ({}, False, {"network": "none"}, {"network": "host"}, "none"),
        (HOST, False, {"network": "none"}, {"network": "host"}, "none"),
        (OFF, False, {"network": "none"}, {"network": "host"}, "none"),
        (OFF, False, {"isolation": "required"}, {"network": "host"}, "host"),
        (OFF, False, {}, {"network": "host"}, None),
    ],
)
def test_the_strictest_setting_counts(
    tmp_path: Path,
    capability: list[SandboxCapability],
    settings: dict[str, str],
    has_keys: bool,
    assigned: dict[str, str],
    asked: dict[str, Any],
    network: str | None,
) -> None:
    found = contained(tmp_path, settings, has_keys, assigned, asked)
    line = found.line.message
    if network is None:
        assert found.sandbox is None and "without a sandbox (OSMOSIS_ISOLATION=off)" in line
        return
    assert found.sandbox is not None and found.sandbox.network == network
    with found.sandbox.command(["true"], cwd=tmp_path, writable=[]).start({}) as begun:
        assert ("--unshare-net" in begun.command) == (network == "none")
    assert ("only the run's model" in line) == (network == "none")
    assert ("OSMOSIS_NETWORK=host" in line) == (has_keys and network == "none")
    assert found.words.startswith(f"bubblewrap, network {network}; ")
    capability.append(ABSENT)
    levels = {asked.get("isolation"), assigned.get("isolation"), settings.get("OSMOSIS_ISOLATION")}
    if network == "none" or "required" in levels:
        with pytest.raises(IsolationUnavailableError) as refused:
            contained(tmp_path, settings, has_keys, assigned, asked)
        assert "install it" in (refused.value.hint or "")
    else:
        assert contained(tmp_path, settings, has_keys, assigned, asked).line.level == "warning"


def test_a_machine_without_a_sandbox_is_named_and_no_other_is_tried(
    tmp_path: Path, capability: list[SandboxCapability], monkeypatch: pytest.MonkeyPatch
) -> None:
    capability.append(ABSENT)
    monkeypatch.setattr("socket.gethostname", lambda: "node-3")
    with pytest.raises(IsolationUnavailableError) as refused:
        contained(tmp_path, {}, False, {}, {"isolation": "required"})
    end = failed(refused.value)
    assert isinstance(end, FinishRequest) and end.error is not None
    assert "on the machine 'node-3': bubblewrap is not installed; install it." in end.error


def test_an_unknown_network_is_refused_at_the_start() -> None:
    with pytest.raises(OsmosisError, match="OSMOSIS_NETWORK must be one of host, none, not 'off'"):
        from_environment({"OSMOSIS_NETWORK": "off"})
