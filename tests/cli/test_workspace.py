"""What a person and a script see of workspaces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import respx

from tests.cli.conftest import Cli
from tests.logins import (
    FERN,
    IDENTITY,
    NOT_CONNECTED,
    REFUSALS,
    TOKEN,
    VERIFIED,
    make_checkout,
    save_login,
    use_platform,
)

LAB = {"id": "ws_1", "name": "fern-lab", "role": "admin", "connected_repo": {"repo_full_name": IDENTITY}}
MOSS = {"id": "ws_2", "name": "moss", "connected_repo": None}


@pytest.fixture(autouse=True)
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[respx.MockRouter]:
    use_platform(monkeypatch)
    save_login()
    with respx.mock(base_url=FERN, assert_all_called=False) as router:
        router.get("/api/cli/workspaces").respond(json={"workspaces": [LAB, MOSS]})
        router.get("/api/cli/verify").respond(json=VERIFIED)
        yield router


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of the workspace fern-lab, and the current directory."""
    found = make_checkout(tmp_path / "with space").root
    monkeypatch.chdir(found)
    return found


def test_the_list_in_all_three_modes(cli: Cli, root: Path) -> None:
    outcome = cli("workspace", "list", "--json")
    envelope = json.loads(outcome.out)
    assert outcome.err == ""
    assert [(item["name"], item["current"]) for item in envelope["items"]] == [
        ("fern-lab", True),
        ("moss", False),
    ]
    assert (envelope["total_count"], envelope["has_more"], envelope["next_offset"]) == (2, False, None)
    assert cli("workspace", "list", "--plain").out.splitlines() == [
        f"fern-lab\tadmin\t{IDENTITY}\t{root}\tcurrent",
        "moss\t–\t–\t–\t",
    ]
    assert "Repository" in cli("workspace", "list").out


def test_the_current_one_in_all_three_modes(cli: Cli, root: Path) -> None:
    data = json.loads(cli("workspace", "current", "--json").out)["data"]
    assert (data["name"], data["role"], data["git"]["identity"]) == ("fern-lab", "admin", IDENTITY)
    assert data["workspace_directory"] == str(root)
    plain = cli("workspace", "current", "--plain").out.splitlines()
    assert plain[:3] == ["Workspace: fern-lab", "Role: admin", "User: mara@fern.example"]
    assert "fern-lab" in cli("workspace", "current").out


def test_switching_tells_where_to_go(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcome = cli("workspace", "switch", "fern-lab", "--json")
    assert (outcome.status, json.loads(outcome.out)["status"]) == (0, "noop")
    monkeypatch.chdir(tmp_path)
    envelope = json.loads(cli("workspace", "switch", "fern-lab", "--json").out)
    assert (envelope["operation"], envelope["status"]) == ("workspace.switch", "success")
    assert envelope["resource"]["workspace_directory"] == str(root)
    assert envelope["next_steps_structured"] == [{"action": "change_directory", "path": str(root)}]
    assert cli("workspace", "switch", "fern-lab", "--plain").out.splitlines() == [
        f"The workspace fern-lab is checked out in {root}.",
        f"Commands are about it when they run there: cd '{root}'",
    ]


@pytest.mark.parametrize(
    "name, message",
    [("fern-lub", "Did you mean 'fern-lab'?"), ("moss", "No checkout of the workspace moss is known")],
)
def test_a_workspace_that_is_not_to_be_found_exits_with_one(cli: Cli, name: str, message: str) -> None:
    outcome = cli("workspace", "switch", name, "--json")
    error = json.loads(outcome.err)["error"]
    assert (outcome.status, outcome.out, error["code"]) == (1, "", "NOT_FOUND")
    assert message in error["message"]


def test_outside_of_a_repository_there_is_no_current_one(cli: Cli) -> None:
    outcome = cli("workspace", "current", "--json")
    assert (outcome.status, json.loads(outcome.err)["error"]["code"]) == (1, "WORKSPACE_REQUIRED")


def test_a_repository_that_is_not_connected_says_what_to_run(
    cli: Cli, root: Path, platform: respx.MockRouter
) -> None:
    platform.get("/api/cli/verify").respond(404, json=NOT_CONNECTED)
    outcome = cli("workspace", "current")
    assert outcome.status == 1
    assert f"Error: The repository {IDENTITY} is not connected to a workspace on {FERN}." in outcome.err
    assert "hint: on the platform's machine: osmosis platform connect" in outcome.err


@pytest.mark.parametrize("command", [("list",), ("current",), ("switch", "fern-lab")])
@pytest.mark.parametrize("reply, code", REFUSALS)
def test_a_platform_that_is_not_well_is_told_of(
    cli: Cli,
    root: Path,
    platform: respx.MockRouter,
    command: tuple[str, ...],
    reply: dict[str, Any],
    code: str,
) -> None:
    platform.get("/api/cli/workspaces").respond(**reply)
    platform.get("/api/cli/verify").respond(**reply)
    outcome = cli("workspace", *command, "--json")
    assert (outcome.status, outcome.out, json.loads(outcome.err)["error"]["code"]) == (1, "", code)
    assert TOKEN not in outcome.err
