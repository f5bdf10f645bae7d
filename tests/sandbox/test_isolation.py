"""The isolation of a run, from the machine's setting, the run's request and the machine's abilities."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from osmosis_ai.errors import ConflictError, OsmosisError
from osmosis_ai.platform.config import PlatformConfig, RayCluster, from_environment
from osmosis_ai.platform.isolation import look_at_isolation, require_one_workspace, why_not_shared
from osmosis_ai.sandbox.bubblewrap import interpreter_places
from osmosis_ai.sandbox.isolation import (
    IsolationUnavailableError,
    SandboxCapability,
    choose_isolation,
    explain,
    isolation_setting,
)
from tests.sandbox.conftest import Machine

ABLE = SandboxCapability(Path("/usr/bin/bwrap"))
UNABLE = SandboxCapability(problem="the kernel allows no user namespaces", remedy="sysctl -w x=1")


def test_what_a_run_gets_says_why_it_is_no_sandbox() -> None:
    assert choose_isolation("auto", ABLE).words == choose_isolation("required", ABLE).words == "bubblewrap"
    assert choose_isolation("off", ABLE).words == "none: OSMOSIS_ISOLATION=off"
    assert choose_isolation("off", ABLE).warning is None
    without = choose_isolation("auto", UNABLE)
    assert without.words == "none: the kernel allows no user namespaces"
    assert "sysctl -w x=1" in (without.warning or "")
    with pytest.raises(IsolationUnavailableError, match="no user namespaces") as refused:
        choose_isolation("required", UNABLE)
    assert refused.value.hint == "sysctl -w x=1"


def test_a_setting_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(OsmosisError, match="off, auto, required, not 'on'"):
        isolation_setting({"OSMOSIS_ISOLATION": "on"})
    with pytest.raises(OsmosisError, match="OSMOSIS_ISOLATION"):
        from_environment({"OSMOSIS_ISOLATION": "always"})
    assert from_environment({"OSMOSIS_ISOLATION": " required "}).isolation == "required"


@pytest.mark.parametrize(
    "files, problem, remedy",
    [
        ({"proc/sys/user/max_user_namespaces": "0\n"}, "no user namespaces", "max_user_namespaces=15000"),
        ({"proc/sys/kernel/unprivileged_userns_clone": "0"}, "to root alone", "unprivileged_userns_clone=1"),
        ({".dockerenv": ""}, "container's profile", "seccomp"),
        ({"run/.containerenv": ""}, "container's profile", "seccomp"),
        ({}, "bubblewrap: No permissions", "user namespaces"),
    ],
)
def test_why_it_does_not_work_is_told_from_the_kernels_settings(
    tmp_path: Path, files: dict[str, str], problem: str, remedy: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = explain(Path("/bwrap"), "bwrap: setting up\nbwrap: No permissions\n", root=tmp_path)
    assert not found.works
    assert problem in (found.problem or "")
    assert "No permissions" in (found.problem or "")
    assert remedy in (found.remedy or "")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[SandboxCapability]:
    """What the self-test finds: the last one."""
    capabilities = [UNABLE]
    monkeypatch.setattr("osmosis_ai.platform.isolation.check_sandbox", lambda _home: capabilities[-1])
    return capabilities


def test_a_second_workspace_needs_a_sandbox_or_the_operators_word(
    tmp_path: Path, found: list[SandboxCapability]
) -> None:
    config = PlatformConfig(home=tmp_path)
    require_one_workspace(config, 0)
    require_one_workspace(PlatformConfig(home=tmp_path, isolation="off"), 1)
    with pytest.raises(ConflictError, match="a second workspace is not added") as refused:
        require_one_workspace(config, 1)
    assert refused.value.hint and refused.value.hint.endswith(
        "OSMOSIS_ISOLATION=off, to this command as to `platform start`"
    )
    # Where a cluster executes runs, each of its nodes is asked, and this machine holds nobody back.
    require_one_workspace(PlatformConfig(home=tmp_path, ray=RayCluster("http://127.0.0.1:8265")), 1)
    found.append(ABLE)
    require_one_workspace(config, 1)


def test_several_workspaces_without_a_sandbox_need_the_operators_word_at_a_start_too(
    tmp_path: Path, found: list[SandboxCapability]
) -> None:
    config = PlatformConfig(home=tmp_path)
    assert why_not_shared(config, 0) is why_not_shared(config, 1) is None
    assert why_not_shared(PlatformConfig(home=tmp_path, isolation="off"), 2) is None
    why = why_not_shared(config, 2) or ""
    assert "there are 2 workspaces" in why and "no run is executed: the kernel allows no user" in why
    assert "sysctl -w x=1" in why and "OSMOSIS_ISOLATION=off" in why
    found.append(ABLE)
    assert why_not_shared(config, 2) is None


def test_a_platform_that_requires_what_there_is_not_executes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("osmosis_ai.platform.isolation.check_sandbox", lambda _home: UNABLE)
    with caplog.at_level(logging.WARNING):
        words, executes = look_at_isolation(PlatformConfig(home=tmp_path, isolation="required"))
        assert not executes
        assert "no run is executed" in words and "sysctl -w x=1" in words
        words, executes = look_at_isolation(PlatformConfig(home=tmp_path))
        assert executes and words.startswith("none: ") and "sysctl -w x=1" in words
        assert look_at_isolation(PlatformConfig(home=tmp_path, isolation="off")) == (
            "none: OSMOSIS_ISOLATION=off",
            True,
        )
    assert "cannot be sandboxed here" in caplog.text


@pytest.mark.integration
def test_where_the_kernel_allows_no_user_namespaces_that_is_what_is_said(machine: Machine) -> None:
    python = Path(sys.executable)
    code = (
        "import json; from osmosis_ai.sandbox.isolation import check_sandbox; found = check_sandbox();"
        "print(json.dumps([found.works, found.problem, found.remedy]))"
    )
    from dataclasses import replace

    machine.sandbox = replace(machine.sandbox, readable=interpreter_places(python))
    ended = machine.run(f'{python} -c "$1"', code)
    works, problem, remedy = json.loads(ended.stdout.splitlines()[-1])
    assert not works
    assert "the kernel allows no user namespaces" in problem
    assert "sysctl" in remedy
