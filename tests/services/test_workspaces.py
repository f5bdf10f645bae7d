"""Checkout, workspace and platform of a command."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from osmosis_ai.api.capabilities import Capability
from osmosis_ai.api.client import PlatformClient
from osmosis_ai.api.http_errors import PlatformError
from osmosis_ai.api.models.datasets import DatasetList
from osmosis_ai.cli.main import main
from osmosis_ai.errors import NotFoundError, OsmosisError, WorkspaceRequiredError
from osmosis_ai.services.capabilities import require_offered
from osmosis_ai.services.context import open_context
from osmosis_ai.services.workspace_check import examine
from osmosis_ai.services.workspaces import (
    WorkspaceDirectories,
    current_workspace,
    find_workspace_directory,
)
from tests.logins import (
    FERN,
    IDENTITY,
    NOT_CONNECTED,
    TOKEN,
    VERIFIED,
    make_checkout,
    save_login,
    use_platform,
)
from tests.workspace.builders import git, make_repository, make_workspace

LAB: dict[str, Any] = {
    "id": "ws_1",
    "name": "fern-lab",
    "role": "admin",
    "has_billing_setup": True,
    "connected_repo": {"id": "rep_1", "repo_full_name": "fern/maze"},
}
MOSS: dict[str, Any] = {"id": "ws_2", "name": "Moss", "connected_repo": None, "role": None, "extra": 1}


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[respx.MockRouter]:
    use_platform(monkeypatch)
    save_login()
    with respx.mock(base_url=FERN, assert_all_called=False) as router:
        router.get("/api/cli/workspaces").respond(json={"workspaces": [LAB, MOSS]})
        router.get("/api/cli/verify").respond(json=VERIFIED)
        yield router


@pytest.mark.usefixtures("platform")
def test_find_workspace_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_checkout(tmp_path).root
    with pytest.raises(NotFoundError) as caught:
        find_workspace_directory("fern-lab")
    assert caught.value.hint == "git clone URL, then run `osmosis workspace current` in the clone"
    current_workspace(root)
    for name in ("fern-lab", "ws_1", "FERN-LAB"):
        found = find_workspace_directory(name)
        assert (found.directory, found.current) == (root, False)
    monkeypatch.chdir(root)
    assert find_workspace_directory("fern-lab").current


def test_unknown_workspace(platform: respx.MockRouter) -> None:
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


@pytest.mark.usefixtures("platform")
def test_remembered_directories(tmp_path: Path, home: Path) -> None:
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
@pytest.mark.usefixtures("platform")
def test_invalid_directories_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setenv("OSMOSIS_CONFIG_DIR", str(tmp_path))
    directories = WorkspaceDirectories(FERN)
    directories.path.write_text(content)
    assert directories.find("ws_1") is None
    root = make_repository(tmp_path / "w")
    directories.remember("ws_1", root)
    assert directories.find("ws_1") == root


@pytest.mark.usefixtures("platform")
def test_unwritable_directories_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OSMOSIS_CONFIG_DIR", str(tmp_path / "file"))
    WorkspaceDirectories(FERN).remember("ws_1", tmp_path)


@pytest.fixture
def platform_address(monkeypatch: pytest.MonkeyPatch) -> None:
    use_platform(monkeypatch)


def _refusal(start: Path) -> OsmosisError:
    with respx.mock, pytest.raises(OsmosisError) as caught, open_context(start):
        raise AssertionError("the context must not open")
    return caught.value


@pytest.mark.usefixtures("platform_address")
def test_order_of_problems(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    assert isinstance(_refusal(root), WorkspaceRequiredError)
    make_repository(root)
    assert "osmosis doctor --fix" in _refusal(root).message
    make_workspace(root / "inner")
    refusal = _refusal(root / "inner")
    assert (refusal.code, "`origin`" in refusal.message) == ("VALIDATION", True)
    assert refusal.hint == f"git -C {root / 'inner'} remote add origin URL"
    git(root / "inner", "remote", "add", "upstream", "https://example.com/fern/maze.git")
    assert _refusal(root / "inner").hint == f"git -C {root / 'inner'} remote rename upstream origin"
    git(root / "inner", "remote", "add", "origin", "https://github.com/only-an-owner")
    assert "exactly one GitHub repository" in _refusal(root / "inner").message
    git(root / "inner", "remote", "set-url", "origin", "https://github.com/fern/maze")
    refusal = _refusal(root / "inner")
    assert (refusal.code, refusal.message) == (
        "AUTH_REQUIRED",
        "Not logged in. Run 'osmosis auth login' first.",
    )
    save_login()
    with open_context(root / "inner"):
        pass


@pytest.mark.usefixtures("platform_address")
def test_expired_login(tmp_path: Path) -> None:
    workspace = make_checkout(tmp_path)
    save_login(expires_at=datetime(2020, 1, 1, tzinfo=timezone.utc))
    refusal = _refusal(workspace.root)
    assert (refusal.code, refusal.message) == ("AUTH_REQUIRED", f"Your session on {FERN} has expired.")


@pytest.mark.usefixtures("platform_address")
def test_platform_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workspace = make_checkout(tmp_path)
    save_login()
    headers = {"X-Osmosis-Version-Status": "deprecated", "X-Osmosis-Version-Message": "Upgrade soon."}
    heard: list[tuple[str, str | None]] = []
    with respx.mock(base_url=FERN) as router:
        router.get("/api/cli/datasets").respond(json={"datasets": []}, headers=headers)
        with open_context(workspace.root, warn=lambda text, code: heard.append((text, code))) as context:
            context.client.get("/api/cli/datasets", model=DatasetList)
        use_platform(monkeypatch)
        with caplog.at_level(logging.WARNING), open_context(workspace.root) as context:
            context.client.get("/api/cli/datasets", model=DatasetList)
    assert heard == [("Upgrade soon.", "DEPRECATED")]
    assert [record.getMessage() for record in caplog.records if record.name == "osmosis_ai"] == [
        "Upgrade soon."
    ]


@pytest.mark.parametrize("header", ["eval-imports, deletion", "deletion,something-newer, eval-imports "])
def test_capabilities_header(header: str) -> None:
    headers = {"X-Osmosis-Capabilities": header}
    with respx.mock(base_url=FERN) as router, PlatformClient(FERN, TOKEN, IDENTITY) as client:
        router.get("/api/cli/datasets").respond(json={"datasets": []}, headers=headers)
        client.get("/api/cli/datasets", model=DatasetList)
        require_offered(client, Capability.EVAL_IMPORTS)
        require_offered(client, Capability.DELETION)
        with pytest.raises(PlatformError) as refused:
            require_offered(client, Capability.BENCHMARKS)
        assert len(router.calls) == 1  # what is known need not be asked
    assert refused.value.message == f"This platform does not support benchmark runs: {FERN}."
    assert refused.value.details == {"platform_code": "NOT_OFFERED", "capability": "benchmarks"}


def test_doctor_hides_origin_credentials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_workspace(tmp_path).root
    git(root, "remote", "add", "origin", "https://ada:token@example.org/team/agents.git")
    assert main(["doctor", str(root), "--fix", "--json"]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown)["resource"]["git"]["remote_url"] == "https://example.org/team/agents.git"
    assert "token" not in shown


@pytest.mark.parametrize(
    "reply",
    [
        {"status_code": 200, "json": {**VERIFIED, "workspace": None}},
        {"status_code": 404, "json": NOT_CONNECTED},
        {"status_code": 403, "json": {"error": "no", "code": "GIT_SCOPE_HEADER_ACCESS_DENIED"}},
    ],
)
def test_unconnected_repository(platform: respx.MockRouter, tmp_path: Path, reply: dict[str, Any]) -> None:
    platform.get("/api/cli/verify").respond(**reply)
    with pytest.raises(OsmosisError) as caught:
        current_workspace(make_checkout(tmp_path).root)
    assert IDENTITY in caught.value.message
    assert "osmosis platform connect ssh://git@github.com/Fern/Maze.git" in (caught.value.hint or "")


def test_origin_without_repository(tmp_path: Path) -> None:
    root = make_checkout(tmp_path, "https://ada:canary@github.com/only-an-owner").root
    git_facts = examine(root)["git"]
    assert git_facts["identity"] is None
    assert "exactly one GitHub repository" in git_facts["warning"]
    assert "canary" not in str(git_facts)
