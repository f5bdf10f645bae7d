from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import respx

from osmosis_ai.errors import OsmosisError
from osmosis_ai.sandbox import MachineControl, ProcessLimits, SandboxCapability
from osmosis_ai.sandbox.control_groups import Delegation
from osmosis_ai.services.workspace_check import examine
from tests.logins import FERN, IDENTITY, REFUSALS, VERIFIED, make_checkout, save_login, use_platform
from tests.workspace.builders import git, make_repository, make_workspace

REQUIRED = [
    "rollouts",
    "configs/training",
    "configs/eval",
    "data",
    "AGENTS.md",
    "CLAUDE.md",
    "configs/AGENTS.md",
]


@pytest.fixture(autouse=True)
def unable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine can not make a sandbox, which is no fault of a workspace."""
    unable = SandboxCapability(problem="no bwrap", remedy="install it")
    monkeypatch.setattr("osmosis_ai.sandbox.check_sandbox", lambda: unable)
    monkeypatch.setattr(
        "osmosis_ai.sandbox.look_at_control", lambda: MachineControl(Delegation(problem="there is none"))
    )


def test_the_resource_has_the_keys_that_scripts_know(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    git(workspace.root, "remote", "add", "origin", "https://ada:token@example.org/team/agents.git")
    assert examine(workspace.data_dir).resource() == {
        "workspace_directory": str(workspace.root),
        "git": {
            "identity": "example-org/agents-63f5fb2e",
            "remote_url": "https://example.org/team/agents.git",
        },
        "workspace": None,
        "required_paths": REQUIRED,
        "missing": ["AGENTS.md", "CLAUDE.md", "configs/AGENTS.md"],
        "valid": True,
        "fixed": [],
        "gitignore": {"missing": [".env", ".osmosis/"], "added": []},
        "tracked_env_files": [],
        "sandbox": {
            "works": False,
            "problem": "no bwrap",
            "remedy": "install it",
            "limits": f"{ProcessLimits().words}; no cgroup: there is none",
        },
    }


def test_a_repository_without_an_origin_is_warned_about_and_fine(tmp_path: Path) -> None:
    resource = examine(make_workspace(tmp_path).root).resource()
    assert resource["git"]["remote_url"] is None
    assert "origin" in resource["git"]["warning"]


def test_missing_directories_fail_with_the_resource_as_details(tmp_path: Path) -> None:
    root = make_repository(tmp_path)
    with pytest.raises(OsmosisError) as caught:
        examine(root)
    assert caught.value.code == "VALIDATION"
    assert caught.value.details["missing"] == REQUIRED
    assert caught.value.details["valid"] is False
    assert caught.value.message.splitlines()[1:] == [
        "  - rollouts/",
        "  - configs/training/",
        "  - configs/eval/",
        "  - data/",
        "Run `osmosis doctor --fix` to create what is missing.",
    ]


def test_fixing_reports_what_was_created(tmp_path: Path) -> None:
    resource = examine(make_repository(tmp_path), fix=True).resource()
    assert (resource["fixed"], resource["missing"], resource["valid"]) == (REQUIRED, [], True)


def test_who_is_logged_in_sees_the_workspace_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_platform(monkeypatch)
    save_login()
    root = make_checkout(tmp_path).root
    with respx.mock(base_url=FERN) as platform:
        verify = platform.get("/api/cli/verify").respond(json=VERIFIED)
        resource = examine(root).resource()
    assert resource["git"] == {"identity": IDENTITY, "remote_url": "ssh://git@github.com/Fern/Maze.git"}
    assert resource["workspace"] == {"id": "ws_1", "name": "fern-lab", "role": "admin"}
    assert verify.calls.last.request.headers["x-osmosis-git"] == IDENTITY


@pytest.mark.parametrize("reply, code", REFUSALS)
def test_a_platform_that_does_not_tell_is_no_fault_of_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: dict[str, Any], code: str
) -> None:
    use_platform(monkeypatch)
    save_login()
    with respx.mock(base_url=FERN) as platform:
        platform.get("/api/cli/verify").respond(**reply)
        resource = examine(make_checkout(tmp_path).root).resource()
    assert (resource["workspace"], resource["valid"]) == (None, True)


def test_an_origin_that_names_no_repository_is_a_warning(tmp_path: Path) -> None:
    root = make_checkout(tmp_path, "https://ada:canary@github.com/only-an-owner").root
    git_facts = examine(root).resource()["git"]
    assert git_facts["identity"] is None
    assert "exactly one GitHub repository" in git_facts["warning"]
    assert "canary" not in str(git_facts)
