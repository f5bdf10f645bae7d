"""Workspaces follow the repository; switching is finding the directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai.errors import NotFoundError, OsmosisError, WorkspaceRequiredError
from osmosis_ai.services.workspaces import (
    WorkspaceDirectories,
    current_workspace,
    find_workspace_directory,
    list_workspaces,
)
from tests.logins import (
    FERN,
    IDENTITY,
    LATER,
    NOT_CONNECTED,
    REFUSALS,
    TOKEN,
    VERIFIED,
    make_checkout,
    save_login,
    use_platform,
)
from tests.workspace.builders import make_repository

LAB: dict[str, Any] = {
    "id": "ws_1",
    "name": "fern-lab",
    "role": "admin",
    "has_billing_setup": True,
    "connected_repo": {"id": "rep_1", "repo_full_name": "fern/maze"},
}
MOSS: dict[str, Any] = {"id": "ws_2", "name": "Moss", "connected_repo": None, "role": None, "extra": 1}


@pytest.fixture(autouse=True)
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[respx.MockRouter]:
    use_platform(monkeypatch)
    save_login()
    with respx.mock(base_url=FERN, assert_all_called=False) as router:
        router.get("/api/cli/workspaces").respond(json={"workspaces": [LAB, MOSS]})
        router.get("/api/cli/verify").respond(json=VERIFIED)
        yield router


def test_the_list_marks_the_workspace_of_the_repository_one_is_in(
    platform: respx.MockRouter, tmp_path: Path
) -> None:
    root = make_checkout(tmp_path).root
    assert [member.item() for member in list_workspaces(root)] == [
        {
            "id": "ws_1",
            "name": "fern-lab",
            "role": "admin",
            "repository": IDENTITY,
            "current": True,
            "workspace_directory": str(root),
        },
        {
            "id": "ws_2",
            "name": "Moss",
            "role": None,
            "repository": None,
            "current": False,
            "workspace_directory": None,
        },
    ]
    asked = {call.request.url.path: call.request.headers for call in platform.calls}
    assert "x-osmosis-git" not in asked["/api/cli/workspaces"]
    assert asked["/api/cli/verify"]["x-osmosis-git"] == IDENTITY


def test_outside_of_a_repository_none_is_marked(platform: respx.MockRouter) -> None:
    assert [member.current for member in list_workspaces()] == [False, False]
    assert platform.calls.call_count == 1


@pytest.mark.parametrize("reply", [{"status_code": 404, "json": NOT_CONNECTED}, {"status_code": 500}])
def test_a_repository_nobody_knows_is_no_reason_to_list_nothing(
    platform: respx.MockRouter, tmp_path: Path, reply: dict[str, Any]
) -> None:
    platform.get("/api/cli/verify").respond(**reply)
    assert len(list_workspaces(make_checkout(tmp_path).root)) == 2


def test_somebody_without_workspaces_sees_none(platform: respx.MockRouter) -> None:
    platform.get("/api/cli/workspaces").respond(json={"workspaces": []})
    assert list_workspaces() == ()


@pytest.mark.parametrize("reply, code", REFUSALS)
def test_a_platform_that_is_not_well_is_told_of(
    platform: respx.MockRouter, reply: dict[str, Any], code: str
) -> None:
    platform.get("/api/cli/workspaces").respond(**reply)
    with pytest.raises(OsmosisError) as caught:
        list_workspaces()
    assert caught.value.code == code
    assert TOKEN not in f"{caught.value.message} {caught.value.details}"


def test_the_current_workspace_needs_an_origin_and_no_directories(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceRequiredError):
        current_workspace(tmp_path)
    with pytest.raises(OsmosisError, match="origin"):
        current_workspace(make_repository(tmp_path / "bare"))
    workspace = make_checkout(tmp_path / "w")
    workspace.data_dir.rmdir()
    assert current_workspace(workspace.root).data() == {
        "id": "ws_1",
        "name": "fern-lab",
        "role": "admin",
        "email": "mara@fern.example",
        "expires_at": LATER,
        "platform_url": FERN,
        "git": {"identity": IDENTITY, "remote_url": "ssh://git@github.com/Fern/Maze.git"},
        "workspace_directory": str(workspace.root),
    }


@pytest.mark.parametrize(
    "reply",
    [
        {"status_code": 200, "json": {**VERIFIED, "workspace": None}},
        {"status_code": 404, "json": NOT_CONNECTED},
        {"status_code": 403, "json": {"error": "no", "code": "GIT_SCOPE_HEADER_ACCESS_DENIED"}},
    ],
)
def test_a_repository_of_no_workspace_says_how_to_connect_it(
    platform: respx.MockRouter, tmp_path: Path, reply: dict[str, Any]
) -> None:
    platform.get("/api/cli/verify").respond(**reply)
    with pytest.raises(OsmosisError) as caught:
        current_workspace(make_checkout(tmp_path).root)
    assert IDENTITY in caught.value.message
    assert "osmosis platform connect ssh://git@github.com/Fern/Maze.git" in (caught.value.hint or "")


def test_switching_leads_to_where_commands_have_run(tmp_path: Path) -> None:
    root = make_checkout(tmp_path).root
    with pytest.raises(NotFoundError) as caught:
        find_workspace_directory("fern-lab")
    assert caught.value.hint == "git clone URL, then run `osmosis workspace current` in the clone"
    current_workspace(root)
    for name in ("fern-lab", "ws_1", "FERN-LAB"):
        found = find_workspace_directory(name)
        assert (found.directory, found.current) == (root, False)
    assert find_workspace_directory("fern-lab", root).current


def test_a_hosted_workspace_says_what_to_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    hosted = "https://platform.osmosis.ai"
    monkeypatch.setenv("OSMOSIS_PLATFORM_URL", hosted)
    save_login(hosted)
    with respx.mock(base_url=hosted) as router:
        router.get("/api/cli/workspaces").respond(json={"workspaces": [LAB]})
        with pytest.raises(NotFoundError) as caught:
            find_workspace_directory("fern-lab")
    assert (caught.value.hint or "").startswith("git clone https://github.com/fern/maze.git, then")


def test_a_name_that_is_nearly_right_gets_the_right_one(platform: respx.MockRouter) -> None:
    with pytest.raises(NotFoundError, match="Did you mean 'fern-lab'") as caught:
        find_workspace_directory("fernlab")
    assert caught.value.details == {"name": "fernlab", "workspaces": ["fern-lab", "Moss"]}
    with pytest.raises(NotFoundError, match="No checkout") as caught:
        find_workspace_directory("Moss")
    assert "connect a repository" in (caught.value.hint or "")
    platform.get("/api/cli/workspaces").mock(return_value=httpx.Response(200, json={"workspaces": []}))
    with pytest.raises(NotFoundError) as caught:
        find_workspace_directory("x")
    assert caught.value.hint == "ask the owner of a workspace to add you"


# What is remembered


def test_directories_are_remembered_by_platform_in_the_known_format(tmp_path: Path, home: Path) -> None:
    root = make_repository(tmp_path)
    WorkspaceDirectories(FERN).remember("ws_1", root)
    WorkspaceDirectories("https://other.example").remember("ws_1", tmp_path / "gone")
    path = home / ".config/osmosis/workspace-directories.json"
    assert json.loads(path.read_text()) == {
        "version": 1,
        "platforms": {
            FERN: {"ws_1": str(root)},
            "https://other.example": {"ws_1": str(tmp_path / "gone")},
        },
    }
    assert WorkspaceDirectories(FERN).find("ws_1") == root
    assert WorkspaceDirectories(FERN).find("ws_2") is None
    assert WorkspaceDirectories("https://other.example").find("ws_1") is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        "{",
        "[" * 100_000,
        '{"version": 2, "platforms": {}}',
        '{"version": 1, "platforms": 7}',
        f'{{"version": 1, "platforms": {{"{FERN}": ["x"]}}}}',
        f'{{"version": 1, "platforms": {{"{FERN}": {{"ws_1": 7}}}}}}',
    ],
)
def test_a_file_that_makes_no_sense_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    directories = WorkspaceDirectories(FERN, tmp_path)
    directories.path.write_text(content)
    assert directories.find("ws_1") is None
    root = make_repository(tmp_path / "w")
    directories.remember("ws_1", root)
    assert directories.find("ws_1") == root


def test_a_place_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    WorkspaceDirectories(FERN, tmp_path / "file").remember("ws_1", tmp_path)
